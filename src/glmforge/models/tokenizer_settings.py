"""Whether the files beside a vocabulary of the ChatGLM line are of the same model.

Owns `refuse_settings`, which holds tokenizer_config.json against the kinds that its keys need and
against the rows of config.json, and `refuse_other_family`, for a vocabulary file of one generation
in the directory of another. Both run before a tokenizer is built.
"""

from collections.abc import Collection, Mapping
from typing import Any

from glmforge.errors import ModelError
from glmforge.models.families import FAMILY_KEY, decide_family, family_named

_TOKENS = ("bos_token", "eos_token", "mask_token", "pad_token", "unk_token")
_SWITCHES = ("clean_up_tokenization_spaces", "split_special_tokens")
_SHARED_FORMAT = {"chatglm2", "chatglm3"}


def refuse_settings(
    settings: Mapping[str, Any], model: Mapping[str, Any], known: Collection[str], name: str
) -> None:
    """Refuse values of tokenizer_config.json that no tokenizer of the line can have.

    Args:
        settings: the keys of tokenizer_config.json; empty where there is none.
        model: those of config.json; empty where there is none.
        known: the tokenizer classes that are opened.
        name: the directory or hub id.

    Raises:
        ModelError: naming each key and value.
    """
    kinds: dict[str, tuple[type | tuple[type, ...], str]] = {
        **dict.fromkeys(_TOKENS, ((str, dict), "a text")),
        **dict.fromkeys(_SWITCHES, (bool, "true or false")),
        "model_max_length": ((int, float), "a number"),
        "chat_template": ((str, list, dict), "a text"),
        "added_tokens_decoder": (dict, "a map of ids to tokens"),
    }
    faults = [
        f"{key} is {settings[key]!r}, which must be {words}"
        for key, (kind, words) in kinds.items()
        if settings.get(key) is not None
        and (
            not isinstance(settings[key], kind)
            or (isinstance(settings[key], bool) and kind is not bool)
        )
    ]
    class_name = settings.get("tokenizer_class")
    if class_name is not None and class_name not in known:
        faults.append(f"tokenizer_class is {class_name!r}; a ChatGLM has {' or '.join(known)}")
    if settings.get("padding_side", "left") not in ("left", "right"):
        faults.append(f"padding_side is {settings['padding_side']!r}, which must be left or right")
    if isinstance(added := settings.get("added_tokens_decoder"), dict):
        faults += _added_faults(added, model.get("padded_vocab_size") or model.get("vocab_size"))
    if faults:
        raise ModelError(
            [
                f"{name}/tokenizer_config.json: {fault}; take the file from where the model came "
                "from"
                for fault in faults
            ]
        )


def _added_faults(added: Mapping[str, Any], rows: Any) -> list[str]:
    faults = []
    for index, token in added.items():
        content = token.get("content") if isinstance(token, dict) else token
        if not index.isdecimal() or not isinstance(content, str) or not isinstance(token, dict):
            faults.append(f"added_tokens_decoder has {index!r}: {token!r}, not an id and a token")
        elif isinstance(rows, int) and int(index) >= rows:
            faults.append(
                f"added_tokens_decoder gives {content!r} the id {index}, but config.json has "
                f"{rows:,} rows"
            )
    return faults


def refuse_other_family(found: str, model: Mapping[str, Any], vocabulary: str, name: str) -> None:
    """Refuse a vocabulary file of another family than config.json's.

    Raises:
        ModelError: naming both.
    """
    if model.get("model_type") != "chatglm":
        return
    try:
        decision = decide_family(model, name)
    except ModelError:
        return  # said where the model is opened
    wanted = decision.family.name
    if wanted != found and not {wanted, found} <= _SHARED_FORMAT:
        raise ModelError(
            f"{vocabulary}: the vocabulary of {family_named(found).title}, but {name}/config.json "
            f"is of {decision.family.title} ({decision.reason}): take both files from one download "
            f"of the model, or name the family with {FAMILY_KEY} in config.json"
        )
