"""What a model directory is, in facts: for ``glmforge inspect`` and the model card.

Owns `inspect_model`. Reads config.json and the headers of the weight files; loads no weight, runs
no code, and works where the weights are not there yet.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import ModelError
from glmforge.models.counts import ParameterCounts, count_parameters
from glmforge.models.families import FamilyDecision, decide_family
from glmforge.models.hub import resolve_directory
from glmforge.models.loading import check_directory, load_config
from glmforge.models.weights import stored_tensors, weight_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of one model directory.

    ``problems`` are what would stop `load_model`; ``dtype`` and ``weight_bytes`` are of the
    files (empty and 0 without weights); ``notes`` are sentences that a user should read.
    """

    directory: str
    family: str
    title: str
    recognised_by: str
    layout: str
    vocabulary_rows: int
    max_positions: int
    positions: str
    parameters: ParameterCounts
    dtype: str
    weight_files: int
    weight_bytes: int
    template: str
    stop_tokens: tuple[str, ...]
    lora_targets: tuple[str, ...]
    lora_modules: tuple[str, ...]
    packing: bool
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def inspect_model(directory: str | Path) -> ModelFacts:
    """Return the facts of a model directory or hub model.

    Raises:
        ModelError: there is no config.json, or it is of no known model.
    """
    path = resolve_directory(directory)
    config = load_config(path)
    decision = getattr(config, "family_decision", None)
    if decision is None:
        decision = decide_family({"model_type": config.model_type})
    family = decision.family
    dtype, files, size, problems = _weights(path, config)
    return ModelFacts(
        directory=str(path),
        family=family.name,
        title=family.title,
        recognised_by=decision.reason,
        layout="chatglm" if config.model_type == "chatglm" else "transformers",
        vocabulary_rows=config.vocab_size,
        max_positions=getattr(config, "max_position_embeddings", 0),
        positions=_positions(config),
        parameters=count_parameters(config),
        dtype=dtype,
        weight_files=files,
        weight_bytes=size,
        template=family.template,
        stop_tokens=family.stop_tokens,
        lora_targets=family.lora_targets,
        lora_modules=family.lora_modules,
        packing=family.packing,
        notes=tuple(_notes(config, decision, path)),
        problems=problems,
    )


def _weights(path: Path, config: Any) -> tuple[str, int, int, tuple[str, ...]]:
    try:
        files = weight_files(path)
        found = Counter(tensor.dtype for tensor in stored_tensors(path).values())
        check_directory(path, config)
    except ModelError as error:
        return "", 0, 0, error.problems
    size = sum(file.stat().st_size for file in files)
    return found.most_common(1)[0][0] if found else "", len(files), size, ()


def _positions(config: Any) -> str:
    if hasattr(config, "position_divisor"):
        if config.position_divisor != 1.0:
            return f"rotary, base 10000, positions divided by {config.position_divisor:g}"
        return f"rotary, base {config.rope_base:g}"
    if hasattr(config, "position_encoding_2d"):
        return "rotary, " + ("two rows (2-D)" if config.position_encoding_2d else "one row (1-D)")
    rope = getattr(config, "rope_parameters", None) or {}
    return f"rotary, base {rope['rope_theta']:g}" if "rope_theta" in rope else "as in its class"


def _notes(config: Any, decision: FamilyDecision, path: Path) -> list[str]:
    notes = []
    name = getattr(config, "_origin", "") or path.name
    if is_base_model(name, decision.family.name):
        notes.append(
            f"{name} is a base model: it was not trained on the chat format, so untrained answers "
            "are continuations and fine-tuning has to teach the format and its stop tokens too"
        )
    ratio = getattr(config, "rope_ratio", 1.0)
    if ratio != 1.0 and "nothing names" in decision.reason:
        notes.append(
            f"rope_ratio is {ratio:g}, and what it means depends on the generation, which nothing "
            "in this directory names: add glmforge_family to config.json if the guess is wrong"
        )
    if getattr(config, "has_old_vocabulary", False):
        notes.append("this is the first published vocabulary of ChatGLM-6B, with image tokens")
    return notes


def is_base_model(name: str, family: str) -> bool:
    """Whether a model's hub id or directory name says that it was not trained to chat."""
    if re.search(r"-base\b", name, re.IGNORECASE):
        return True
    return family in ("glm4", "glm4-hf") and bool(
        re.fullmatch(r"(?:.*/)?glm-4-9b(?:-hf)?", name, re.IGNORECASE)
    )
