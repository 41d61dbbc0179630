"""The families of models that glmforge knows, one row each: a family is data, not a class.

Owns: how a family is recognised from ``config.json`` (`decide_family`), what its tokenizer, prompt
template, stop tokens and LoRA targets are called, and what its ``rope_ratio`` means. Plain data:
importing it needs neither torch nor transformers. All four generations of ChatGLM write
``"model_type": "chatglm"``; the keys tell 6B from the later decoder, and among those only names,
vocabulary and versions differ, so every decision carries its reason and can be overridden with
``"glmforge_family": "<row name>"`` in config.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from glmforge.errors import ModelError

FAMILY_KEY = "glmforge_family"
"""Key of config.json by which a user overrides the recognition."""

_SIZE_SHARE = 0.25
"""A model of a published size has this share more or less parameters than its name says."""

_FUSED_MODULES = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
_SPLIT_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of models.

    ``rope_ratio`` says what the key of that name does: multiply the rotary base (``base``) or
    divide the positions (``positions``). ``lora_modules`` are all linear modules that LoRA may
    target, ``lora_targets`` the default ones. ``stop_tokens`` end an answer, by name.
    """

    name: str
    title: str
    model_type: str
    tokenizer: Literal["ice", "sentencepiece", "tiktoken", "transformers"]
    template: str
    stop_tokens: tuple[str, ...]
    signature: tuple[str, ...] = ()
    name_pattern: str = ""
    rope_ratio: Literal["base", "positions", "none"] = "none"
    packing: bool = True
    lora_targets: tuple[str, ...] = ("query_key_value",)
    lora_modules: tuple[str, ...] = _FUSED_MODULES
    chunked_loss: bool = True

    def title_for(self, parameters: int) -> str:
        """Name a model: by its published size only where it has about as many parameters."""
        found = re.search(r"-(\d+)B", self.title)
        if found is None or abs(parameters / (int(found[1]) * 1e9) - 1) <= _SIZE_SHARE:
            return self.title
        rest = self.title[found.end() :]
        return f"{self.title[: found.start()]}{rest or ' layout'}"


_DECODER_SIGNATURE = ("ffn_hidden_size", "kv_channels", "padded_vocab_size", "num_layers")
_GLM4_STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")

FAMILIES: tuple[Family, ...] = (
    Family(
        name="chatglm",
        title="ChatGLM-6B",
        model_type="chatglm",
        tokenizer="ice",
        template="chatglm",
        stop_tokens=("<eop>",),
        signature=("inner_hidden_size", "max_sequence_length", "num_layers"),
        packing=False,
    ),
    Family(
        name="chatglm2",
        title="ChatGLM2-6B",
        model_type="chatglm",
        tokenizer="sentencepiece",
        template="chatglm2",
        stop_tokens=("</s>",),
        signature=_DECODER_SIGNATURE,
        name_pattern=r"chatglm-?2|codegeex2",
        rope_ratio="positions",
    ),
    Family(
        name="chatglm3",
        title="ChatGLM3-6B",
        model_type="chatglm",
        tokenizer="sentencepiece",
        template="chatglm3",
        stop_tokens=("</s>", "<|user|>", "<|observation|>"),
        signature=_DECODER_SIGNATURE,
        name_pattern=r"chatglm-?3",
        rope_ratio="base",
    ),
    Family(
        name="glm4",
        title="GLM-4-9B",
        model_type="chatglm",
        tokenizer="tiktoken",
        template="glm4",
        stop_tokens=_GLM4_STOPS,
        signature=_DECODER_SIGNATURE,
        name_pattern=r"glm-?4|codegeex4",
        rope_ratio="base",
    ),
    Family(
        name="glm4-hf",
        title="GLM-4-9B, transformers' layout",
        model_type="glm",
        tokenizer="transformers",
        template="glm4",
        stop_tokens=_GLM4_STOPS,
        lora_targets=("q_proj", "k_proj", "v_proj"),
        lora_modules=_SPLIT_MODULES,
    ),
    Family(
        name="glm4-0414",
        title="GLM-4-0414 and GLM-Z1",
        model_type="glm4",
        tokenizer="transformers",
        template="glm4-0414",
        stop_tokens=_GLM4_STOPS,
        lora_targets=("q_proj", "k_proj", "v_proj"),
        lora_modules=_SPLIT_MODULES,
    ),
)

OTHER = Family(
    name="other",
    title="another causal language model of transformers",
    model_type="",
    tokenizer="transformers",
    template="tokenizer",
    stop_tokens=(),
    packing=False,
    lora_targets=("q_proj", "k_proj", "v_proj"),
    lora_modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    chunked_loss=False,
)
"""What any model_type outside the table gets: the tokenizer's own chat template, no packing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDecision:
    """The family of a configuration and the sentence that says why."""

    family: Family
    reason: str


def family_named(name: str) -> Family:
    """Return the row called ``name``.

    Raises:
        ModelError: no row has that name.
    """
    for family in (*FAMILIES, OTHER):
        if family.name == name:
            return family
    known = ", ".join(family.name for family in (*FAMILIES, OTHER))
    raise ModelError(
        f"unknown model family {name!r} ({FAMILY_KEY} in config.json): use one of {known}"
    )


def decide_family(keys: Mapping[str, Any], directory: str = "") -> FamilyDecision:
    """Recognise the family of the keys of a config.json; ``directory`` is where it was read.

    Raises:
        ModelError: model_type is "chatglm" and the keys are of no known generation.
    """
    if keys.get(FAMILY_KEY):
        family = family_named(str(keys[FAMILY_KEY]))
        return FamilyDecision(family=family, reason=f"{FAMILY_KEY} in config.json says so")
    model_type = keys.get("model_type", "chatglm")
    if model_type != "chatglm":
        for family in FAMILIES:
            if family.model_type == model_type:
                return FamilyDecision(family=family, reason=f"model_type is {model_type!r}")
        return FamilyDecision(family=OTHER, reason=f"model_type is {model_type!r}")
    fitting = [
        family
        for family in FAMILIES
        if family.signature and all(key in keys for key in family.signature)
    ]
    if not fitting:
        raise ModelError(_unknown_signature(keys, directory))
    if len(fitting) == 1:
        return FamilyDecision(
            family=fitting[0], reason=f"config.json has {fitting[0].signature[0]}"
        )
    return _decide_generation(keys, directory)


def _decide_generation(keys: Mapping[str, Any], directory: str) -> FamilyDecision:
    # ChatGLM2, ChatGLM3 and GLM-4-9B share every architectural key: names first, then the
    # vocabulary, then the transformers version that the vendor saved the config with.
    places = (
        ("_name_or_path of config.json", str(keys.get("_name_or_path") or "")),
        ("the directory's name", PurePath(directory).name),
    )
    for place, name in places:
        for family in FAMILIES:
            if family.name_pattern and re.search(family.name_pattern, name, re.IGNORECASE):
                return FamilyDecision(family=family, reason=f"{place} is {name!r}")
    vocabulary = keys["padded_vocab_size"]
    if isinstance(vocabulary, int) and vocabulary > 100_000:
        return FamilyDecision(
            family=family_named("glm4"), reason=f"vocabulary of {vocabulary} rows"
        )
    version = str(keys.get("transformers_version") or "")
    if version.startswith("4.27."):
        return FamilyDecision(
            family=family_named("chatglm2"),
            reason=f"saved by transformers {version}, as ChatGLM2 was",
        )
    return FamilyDecision(
        family=family_named("chatglm3"),
        reason=f"nothing names the generation; {FAMILY_KEY} in config.json overrides this",
    )


def _unknown_signature(keys: Mapping[str, Any], directory: str) -> str:
    own = [key for key in keys if not key.startswith("_") and key != "name_or_path"]
    needs = {
        "ChatGLM-6B": family_named("chatglm").signature,
        "ChatGLM2/3 and GLM-4-9B": _DECODER_SIGNATURE,
    }
    missing = "; ".join(
        f"{title} needs {', '.join(key for key in signature if key not in keys)} besides"
        for title, signature in needs.items()
    )
    return (
        f'{directory or "config.json"}: model_type is "chatglm" but the keys are of no known '
        f"generation (it has {', '.join(sorted(own)) or 'none'}). {missing}. Download the original "
        "config.json again, or remove model_type if this is another model."
    )


def family_of(config: Any) -> Family:
    """Return the family of a configuration object or of a map of config.json keys."""
    if isinstance(config, Mapping):
        return decide_family(config).family
    decided = getattr(config, "family", None)
    if isinstance(decided, str):
        return family_named(decided)
    return decide_family({"model_type": getattr(config, "model_type", "")}).family


def family_of_tokenizer(tokenizer: Any) -> Family:
    """Return the family that a tokenizer names in ``.family``; `OTHER` where it names none."""
    name = getattr(tokenizer, "family", None)
    return family_named(name) if isinstance(name, str) else OTHER
