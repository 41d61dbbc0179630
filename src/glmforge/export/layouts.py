"""Whole models and adapters in the layout that was asked for: conversion and writing.

Owns what lies between weights in memory and the files of one layout: classes, configuration,
tokenizer, rotary buffers. Names and algebra are the tables of ``models``. Proof is merge.py's.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from glmforge.adapters import read_adapter, save_adapter_files
from glmforge.errors import ExportError, ModelError
from glmforge.export.identity import MERGED_KEY, METADATA_KEY, adapter_identity
from glmforge.export.tensor_files import parse_size
from glmforge.models import family_of
from glmforge.models.adapter_layouts import adapter_to_chatglm, adapter_to_transformers
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.families import OTHER
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from glmforge.models.glm.tokenization_tiktoken import ChatGLM4Tokenizer
from glmforge.models.layouts import (
    to_chatglm,
    to_chatglm_config,
    to_transformers,
    to_transformers_config,
)
from glmforge.models.loading import unfilled_model
from glmforge.models.progress import no_progress_bars
from glmforge.models.stock_tokenizer import STOCK_NAMES, stock_tokenizer
from glmforge.models.vendor_form import (
    rebuild_vocabulary,
    rotary_buffers,
    write_vendor_settings,
)

Layout = Literal["chatglm", "transformers"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

ORIGIN_KEY = "glmforge_origin"
"""Key of config.json in transformers' layout: hub id of the model it was made of."""

_HUB_IDS = {
    "chatglm": "THUDM/chatglm-6b",
    "chatglm2": "THUDM/chatglm2-6b",
    "chatglm3": "THUDM/chatglm3-6b",
    "glm4": "THUDM/glm-4-9b-chat",
}


def layout_of(config: Any) -> Layout:
    """Return the layout of a configuration."""
    return "chatglm" if config.model_type == "chatglm" else "transformers"


def origin_of(config: Any) -> str:
    """Return the hub id of the original that a configuration comes from."""
    if isinstance(config, ChatGLMConfig):
        return getattr(config, "_origin", "") or _HUB_IDS[config.family]
    return str(getattr(config, ORIGIN_KEY, "") or _HUB_IDS["glm4"])


def check_layout(config: Any, layout: Layout) -> None:
    """Find out before any weight is read whether a model has a form in `layout`.

    Raises:
        ExportError: it has none, with the reason.
    """
    if layout == layout_of(config):
        return
    if layout == "chatglm" and config.model_type != "glm":
        family = family_of(config)
        title = f"model_type {config.model_type!r}" if family is OTHER else family.title
        raise ExportError(f"{title}: has no form in the chatglm layout; leave --layout out")
    try:
        _converted_config(config, layout)
    except ModelError as error:
        raise ExportError(f"--layout {layout}: {error}") from error


def _converted_config(config: Any, layout: Layout) -> Any:
    if layout == "chatglm":
        converted: Any = to_chatglm_config(config, origin_of(config))
    else:
        converted = to_transformers_config(config)
        setattr(converted, ORIGIN_KEY, origin_of(config))
    if getattr(config, MERGED_KEY, None):
        setattr(converted, MERGED_KEY, getattr(config, MERGED_KEY))
    return converted


def to_layout(model: Any, layout: Layout) -> Any:
    """Return the model in the other layout's class; its tensors are taken over, not copied."""
    if layout == layout_of(model.config):
        return model
    config = _converted_config(model.config, layout)
    tensors = model.state_dict().items()
    pairs = to_chatglm(tensors) if layout == "chatglm" else to_transformers(tensors, model.config)
    other = unfilled_model(config, model.dtype)
    other.load_state_dict({name: _own(tensor) for name, tensor in pairs}, assign=True)
    other.tie_weights()
    other.generation_config = copy.deepcopy(model.generation_config)
    return other.eval()


def _own(tensor: Tensor) -> Tensor:
    """Copy a tensor that is a part of a larger one: files hold no views."""
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.clone()


def write_model(model: Any, directory: Path, max_shard_size: str) -> None:
    """Write weights and configuration; in the chatglm layout with the vendor's rotary buffers."""
    tensors = None
    if layout_of(model.config) == "chatglm":
        tensors = model.state_dict() | rotary_buffers(model.config, model.dtype)
    with no_progress_bars():
        limit = parse_size(max_shard_size)
        model.save_pretrained(str(directory), state_dict=tensors, max_shard_size=limit)


def write_tokenizer(tokenizer: Any, directory: Path, model: Any) -> None:
    """Write the tokenizer in the form that goes with the model's layout.

    Raises:
        ExportError: the tokenizer has no form there.
    """
    layout, is_ours = layout_of(model.config), isinstance(tokenizer, GLMTokenizer)
    try:
        if layout == "transformers" and is_ours:
            _write_stock(tokenizer, directory)
            return
        if layout == "chatglm" and not is_ours:
            tokenizer = _rebuilt(tokenizer, directory, model.config.family)
    except ModelError as error:
        raise ExportError(f"--layout {layout}: {error}") from error
    tokenizer.save_pretrained(str(directory))
    if layout == "chatglm":
        write_vendor_settings(tokenizer, directory, origin_of(model.config))


def _write_stock(tokenizer: GLMTokenizer, directory: Path) -> None:
    stock_tokenizer(tokenizer).save_pretrained(str(directory))
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    # The name that transformers 4 and 5 both know.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.pop("backend", None)
    path.write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _rebuilt(tokenizer: Any, directory: Path, family: str) -> GLMTokenizer:
    """Return the original's tokenizer, its vocabulary file written from a fast tokenizer."""
    vocabulary = directory / "tokenizer.model"
    rebuild_vocabulary(tokenizer, family, vocabulary)
    own: dict[str, Any] = {"glm4": ChatGLM4Tokenizer, "chatglm2": ChatGLM2Tokenizer}
    rebuilt: GLMTokenizer = own.get(family, ChatGLM3Tokenizer)(str(vocabulary))
    known = tokenizer.get_vocab()
    wrong = [
        name
        for name, index in rebuilt.control_ids.items()
        if known.get(STOCK_NAMES.get(name, name), known.get(name)) != index
    ]
    if wrong:
        raise ModelError(
            f"{', '.join(wrong)}: not at the ids of the original tokenizer; copy tokenizer.model "
            "and tokenizer_config.json from the original model"
        )
    if family == "glm4":
        rebuilt.chat_template = tokenizer.chat_template
    return rebuilt


def control_spellings(directory: Path) -> list[str]:
    """Return what the written fast tokenizer reads as control tokens wherever it stands."""
    engine = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return [token["content"] for token in engine["added_tokens"] if token["special"]]


def copy_code(source: Path, directory: Path) -> bool:
    """Copy the vendor's files of code where the source has them; nothing here runs them.

    Returns:
        Whether there were any.
    """
    files = sorted(source.glob("*_chatglm.py")) + sorted(source.glob("quantization.py"))
    for file in files:
        shutil.copy2(file, directory / file.name)
    return bool(files)


def copy_licences(source: Path, directory: Path) -> None:
    """Copy the licence files that lie beside the base: the weights stay under its terms."""
    for name in licence_names(source):
        shutil.copy2(source / name, directory / name)


def licence_names(directory: Path) -> list[str]:
    """Return the licence files in a directory."""
    patterns = ("LICENSE*", "LICENCE*", "MODEL_LICENSE*", "NOTICE*")
    found = {path.name for pattern in patterns for path in directory.glob(pattern)}
    return sorted(name for name in found if (directory / name).is_file())


def name_base(directory: Path, base: Path) -> None:
    """Write into an adapter_config.json which base the adapter was proven on."""
    path = directory / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("base_model_name_or_path") != str(base):
        settings["base_model_name_or_path"] = str(base)
        text = json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
        path.write_text(text, encoding="utf-8")


def convert_adapter(source: Path, target: Path, config: Any, layout: Layout) -> None:
    """Write the adapter in `source`, made for a model of `config`, for the other layout.

    The name of its base is left out: that base is in the other layout.
    """
    settings = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = read_adapter(source).tensors
    convert = adapter_to_chatglm if layout == "chatglm" else adapter_to_transformers
    converted, changed = convert(tensors, settings, config)
    changed = {**changed, "base_model_name_or_path": None}
    save_adapter_files(target, changed, converted, {METADATA_KEY: adapter_identity(source)})
