"""A directory (or a name on the hub) to its tokenizer, and the names AutoTokenizer knows.

All four generations ship code files named in ``auto_map``; none is ever run. The classes of
ours are registered under the names that the generations write in ``tokenizer_config.json``, which
makes transformers prefer them whatever ``trust_remote_code`` says. ChatGLM-6B, 2 and 3 all write
``ChatGLMTokenizer``: that class looks at the files and hands over to the generation's own.
"""

import json
import re
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from glmforge.errors import ModelError
from glmforge.models.chatglm.tokenization import OLD_IMAGE_TOKENS, ChatGLM6BTokenizer
from glmforge.models.families import FAMILY_KEY, decide_family, family_named
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from glmforge.models.glm.tokenization_tiktoken import ChatGLM4Tokenizer, is_tiktoken_file
from glmforge.models.hub import resolve_directory
from glmforge.models.tokenizer_settings import refuse_other_family, refuse_settings

_CLASSES: tuple[type[GLMTokenizer], ...] = (
    ChatGLM6BTokenizer,
    ChatGLM2Tokenizer,
    ChatGLM3Tokenizer,
    ChatGLM4Tokenizer,
)
_SENTENCEPIECE_FAMILIES = ("chatglm2", "chatglm3")
# What a clone without Git LFS has in place of every large file.
_POINTER = b"version https://git-lfs"
_HUB_CLASS_NAME = "ChatGLMTokenizer"
_OWN_NAMES = (_HUB_CLASS_NAME, *(own.__name__ for own in _CLASSES))


class ChatGLMTokenizer:
    """What ``tokenizer_class: ChatGLMTokenizer`` opens: the tokenizer of the right generation."""

    @classmethod
    def from_pretrained(cls, name: str | Path, *inputs: Any, **kwargs: Any) -> GLMTokenizer:
        """Return the generation's tokenizer, recognised by the files of the directory or repo.

        Raises:
            ModelError: there is no vocabulary file of the family.
        """
        own = tokenizer_class_of(name, **kwargs)
        if own is ChatGLM6BTokenizer:
            kwargs.setdefault("num_image_tokens", _num_image_tokens(name, kwargs))
        return own.from_pretrained(name, *inputs, **kwargs)


def find_file(name: str | Path, file: str, options: dict[str, Any]) -> Path | None:
    """Return the path of a file of a directory or hub repo; None where there is none."""
    keys = ("cache_dir", "force_download", "token", "revision", "local_files_only", "subfolder")
    found = cached_file(
        str(name),
        file,
        _raise_exceptions_for_missing_entries=False,
        **{key: options[key] for key in keys if options.get(key) is not None},
    )
    return None if found is None else Path(found)


def _find_json(name: str | Path, file: str, options: dict[str, Any]) -> dict[str, Any]:
    path = find_file(name, file, options)
    if path is None:
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error}); download it again") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path}: expected a JSON object; download it again")
    return read


def tokenizer_class_of(name: str | Path, **options: Any) -> type[GLMTokenizer]:
    """Return the class for the vocabulary file in a directory or repo of the ChatGLM family.

    ChatGLM2 and ChatGLM3 ship equal files: ``glmforge_family`` in config.json decides, then the
    class a tokenizer of ours was saved with, then the names in the two config files.

    Raises:
        ModelError: there is no vocabulary file of the family, or a config file is damaged.
    """
    is_first = (vocabulary := find_file(name, "ice_text.model", options)) is not None
    vocabulary = vocabulary or find_file(name, "tokenizer.model", options)
    if vocabulary is None:
        raise ModelError(
            f"{name}: no ice_text.model and no tokenizer.model, so there is no vocabulary: "
            "copy the file from where the model came from"
        )
    with vocabulary.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ModelError(
                f"{vocabulary}: a pointer of Git LFS, not the vocabulary: run `git lfs pull` "
                "in the directory, or download the file"
            )
    own: type[GLMTokenizer] = ChatGLM6BTokenizer
    if not is_first and is_tiktoken_file(vocabulary):
        own = ChatGLM4Tokenizer
    elif not is_first:
        is_second = _sentencepiece_family(name, options) == ChatGLM2Tokenizer.family
        own = ChatGLM2Tokenizer if is_second else ChatGLM3Tokenizer
    model = _find_json(name, "config.json", options)
    settings = _find_json(name, "tokenizer_config.json", options)
    refuse_settings(settings, model, _OWN_NAMES, str(name))
    refuse_other_family(own.family, model, str(vocabulary), str(name))
    return own


def _num_image_tokens(name: str | Path, options: dict[str, Any]) -> int | None:
    """Return how many ids come before ChatGLM-6B's text, None where only the file can say.

    A tokenizer_config.json of today names it. The first one did not; there the ids that
    config.json holds tell the two vocabularies apart.
    """
    settings = _find_json(name, "tokenizer_config.json", options)
    model = _find_json(name, "config.json", options)
    first = model.get("bos_token_id")
    offsets = {130_004: 0, 130_004 + OLD_IMAGE_TOKENS: OLD_IMAGE_TOKENS}
    offset = offsets.get(first) if isinstance(first, int) else None
    if "num_image_tokens" in settings:
        named = settings["num_image_tokens"]
        if type(named) is not int or named < 0:
            raise ModelError(
                f"{name}/tokenizer_config.json: num_image_tokens is {named!r}, which must be 0 or "
                f"{OLD_IMAGE_TOKENS}"
            )
        if offset not in (None, named):
            raise ModelError(
                f"{name}/tokenizer_config.json: num_image_tokens is {named}, but config.json "
                f"(bos_token_id {first}, {model.get('vocab_size')} rows) is of the vocabulary with "
                f"{offset}: take both files, and ice_text.model, from one download of the model"
            )
        return named
    return offset


def _sentencepiece_family(name: str | Path, options: dict[str, Any]) -> str:
    model = _find_json(name, "config.json", options)
    settings = _find_json(name, "tokenizer_config.json", options)
    if model.get(FAMILY_KEY) in _SENTENCEPIECE_FAMILIES:
        return str(model[FAMILY_KEY])
    for own in _CLASSES:
        if settings.get("tokenizer_class") == own.__name__:
            return own.family
    for family in _SENTENCEPIECE_FAMILIES:
        pattern = family_named(family).name_pattern
        if re.search(pattern, str(settings.get("name_or_path") or ""), re.IGNORECASE):
            return family
    if model.get("model_type") == "chatglm":
        decided = decide_family(model, str(name)).family.name
        if decided in _SENTENCEPIECE_FAMILIES:
            return decided
    return "chatglm3"


def load_tokenizer(directory: str | Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model directory or hub model, running none of its code.

    A tokenizer of the ChatGLM family has ``.family`` and ``.encode_text``; any other model gets
    transformers' own tokenizer. A hub id is resolved as `load_model` does, without the weights.

    Raises:
        ModelError: no such directory or hub model, or no tokenizer in it that can be opened.
    """
    path = resolve_directory(directory, weights=False)
    settings = _find_json(path, "tokenizer_config.json", {})
    model = _find_json(path, "config.json", {})
    if (
        settings.get("tokenizer_class") in _OWN_NAMES
        or (path / "ice_text.model").is_file()
        or model.get("model_type") == "chatglm"
    ):
        return ChatGLMTokenizer.from_pretrained(path)
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())  # transformers writes several lines
        raise ModelError(
            f"{directory}: transformers cannot open a tokenizer there ({reason}); copy the "
            "tokenizer's files from where the model came from"
        ) from error


class _TokenizerNames(PreTrainedConfig):
    """A key for `AutoTokenizer.register` that no model has.

    Registering under a model's own config class would make transformers run the code of a
    directory with ``auto_map`` once ``trust_remote_code=True`` is given; a registered class *name*
    alone makes it prefer ours.
    """

    model_type = "glmforge-tokenizer-names"


def register_tokenizers() -> None:
    """Make AutoTokenizer open the family's directories with our classes; may be called again."""
    for own in (ChatGLMTokenizer, *_CLASSES):
        AutoTokenizer.register(_TokenizerNames, tokenizer_class=own, exist_ok=True)
