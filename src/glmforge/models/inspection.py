"""What a model directory is, in facts: for ``glmforge inspect`` and the model card.

Owns `inspect_model`. Reads config.json, the tokenizer and the headers of the weight files; loads no
weight, runs no code, and works where the weights are not there yet.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.errors import ModelError
from glmforge.models.counts import ParameterCounts, take_census
from glmforge.models.families import Family, FamilyDecision, decide_family
from glmforge.models.hub import resolve_directory
from glmforge.models.loading import check_directory, load_config
from glmforge.models.tokenizers import load_tokenizer
from glmforge.models.weights import stored_tensors, weight_files


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of one model directory.

    ``problems`` are what would stop `load_model`; ``dtype`` and ``weight_bytes`` are of the
    files (empty and 0 without weights); ``tokenizer_tokens`` is 0 where no tokenizer opens;
    ``notes`` are sentences that a user should read.
    """

    directory: str
    family: str
    title: str
    recognised_by: str
    layout: str
    vocabulary_rows: int
    tokenizer_tokens: int
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
    """Return the facts of a model directory or hub model (whose weights are not downloaded).

    Raises:
        ModelError: there is no config.json, or it is of no known model.
    """
    path = resolve_directory(directory, weights=False)
    config = load_config(path)
    decision = getattr(config, "family_decision", None)
    if decision is None:
        decision = decide_family({"model_type": config.model_type})
    family = decision.family
    census = take_census(config)
    dtype, files, size, problems = _weights(path, config)
    tokenizer, complaint = _tokenizer(path)
    return ModelFacts(
        directory=str(path),
        family=family.name,
        title=family.title,
        recognised_by=decision.reason,
        layout="chatglm" if config.model_type == "chatglm" else "transformers",
        vocabulary_rows=config.vocab_size,
        tokenizer_tokens=0 if tokenizer is None else len(tokenizer),
        max_positions=getattr(config, "max_position_embeddings", 0),
        positions=_positions(config),
        parameters=census.counts,
        dtype=dtype,
        weight_files=files,
        weight_bytes=size,
        template=family.template,
        stop_tokens=family.stop_tokens,
        lora_targets=census.usual_targets,
        lora_modules=tuple(dict.fromkeys(linear.name for linear in census.linears)),
        packing=family.packing,
        notes=(
            *_notes(config, decision, path),
            *_row_notes(tokenizer, config.vocab_size),
            *_chat_notes(tokenizer, family),
            *complaint,
        ),
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


def _tokenizer(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the tokenizer, or None and the sentence that says why there is none."""
    try:
        return load_tokenizer(path), ()
    except ModelError as error:
        return None, (f"no tokenizer opens here: {error}",)


def _row_notes(tokenizer: Any, rows: int) -> list[str]:
    """Notice tokens that the embedding has no row for."""
    if tokenizer is None or len(tokenizer) <= rows:
        return []
    return [
        f"the tokenizer knows {len(tokenizer):,} tokens and the model has {rows:,} rows: ids from "
        f"{rows:,} on, where control tokens lie, cannot be read by the model. The tokenizer is "
        "another model's, or tokens were added without rows for them"
    ]


def _chat_notes(tokenizer: Any, family: Family) -> list[str]:
    """Notice a vocabulary without the tokens that the family's dialogues are made of."""
    if tokenizer is None or family.tokenizer != "transformers":
        return []
    known = tokenizer.get_vocab()
    lacking = [name for name in family.stop_tokens if name not in known]
    if not lacking:
        return []
    return [
        f"the tokenizer has no {', '.join(lacking)}: this is a base without chat tokens, or its "
        "tokenizer is another model's; dialogues cannot be written in the family's format"
    ]


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
    if re.search(r"(\d+b|glm\d?)-base\b|-base$", name, re.IGNORECASE):
        return True
    return family in ("glm4", "glm4-hf") and bool(
        re.fullmatch(r"(?:.*/)?glm-4-9b(?:-hf)?", name, re.IGNORECASE)
    )
