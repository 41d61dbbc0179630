"""Where the files of a model say that answers end, held against its tokenizer.

Asked before weights are read, by training and by comparison: a model that is stopped at an id of
another vocabulary, or never told where to stop, spoils every answer.
"""

import json
from pathlib import Path
from typing import Any

from glmforge.errors import ModelError
from glmforge.models.families import family_of, family_of_tokenizer
from glmforge.models.tokenizers import find_file, tokenizer_class_of

# Stop ids by family and vocabulary rows, for a directory of weights without a vocabulary file.
_PUBLISHED = {
    ("chatglm3", 65_024): (2, 64_795, 64_797),
    ("glm4", 151_552): (151_329, 151_336, 151_338),
}


def named_stops(tokenizer: Any) -> dict[int, str]:
    """Return the stop tokens of a tokenizer's family by their ids; none for an unknown family."""
    return {
        int(tokenizer.convert_tokens_to_ids(name)): name
        for name in family_of_tokenizer(tokenizer).stop_tokens
    }


def stops_line(stops: dict[int, str]) -> str:
    """Stop tokens in one line: names with ids."""
    return ", ".join(f"{name} ({index})" for index, name in stops.items())


def complete_stops(model: Any, name: str | Path, options: dict[str, Any]) -> None:
    """Let a model stop where its family's answers end, if its files name no list of their own.

    The vendor's config.json of ChatGLM3 has only ``</s>``, and no generation_config.json is beside
    it; one that exists is left as it is. Nothing is downloaded for it.

    Args:
        model: a model of the ChatGLM line, as opened.
        name: the directory or hub id that it was opened from.
        options: of ``from_pretrained``, that say where in the cache the files are.
    """
    family = family_of(model.config)
    options = {**options, "local_files_only": True}
    if len(family.stop_tokens) < 2 or find_file(name, "generation_config.json", options):
        return
    stops: tuple[int, ...] = _PUBLISHED.get((family.name, model.config.vocab_size), ())
    if (vocabulary := find_file(name, "tokenizer.model", options)) is not None:
        try:
            own: Any = tokenizer_class_of(name, **options)
            if own.family == family.name:
                stops = tuple(named_stops(own(str(vocabulary))))
        except ModelError:
            stops = ()  # what is wrong with the file is said where the tokenizer is opened
    found = model.config.eos_token_id
    ids = dict.fromkeys(index for index in _as_list(found) if index is not None)
    ids |= dict.fromkeys(index for index in stops if index < model.config.vocab_size)
    if len(ids) > len(_as_list(found)):
        model.generation_config.eos_token_id = list(ids)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def compare_stops(directory: str | Path, tokenizer: Any) -> list[str]:
    """Compare a model directory's stop ids with its tokenizer's.

    Args:
        directory: of the model; its generation_config.json may be absent.
        tokenizer: of the model.

    Returns:
        Sentences that the user should read.

    Raises:
        ModelError: generation_config.json names stop ids of another vocabulary.
    """
    stops = named_stops(tokenizer)
    if not stops:
        return []  # transformers' own tokenizers: the model's config alone says where to stop
    configured = configured_stops(Path(directory))
    path = Path(directory) / "generation_config.json"
    if not configured:
        return _without_list(Path(directory), tokenizer, stops)
    if not stops.keys() & set(configured):
        raise ModelError(
            f"{path}: eos_token_id is {', '.join(map(str, configured))}, but this tokenizer's "
            f"answers end at {stops_line(stops)}: the two are of different vocabularies. Take both "
            "files from one download of the model"
        )
    missing = {index: name for index, name in stops.items() if index not in configured}
    if not missing:
        return []
    return [
        f"{path}: eos_token_id lacks {stops_line(missing)}; a program that follows it lets the "
        "model run on into a made-up turn (samples and exports of this program stop there)"
    ]


def _without_list(directory: Path, tokenizer: Any, stops: dict[int, str]) -> list[str]:
    """Say what a program stops at where generation_config.json names no stop id."""
    path = directory / "config.json"
    value = (
        json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    )
    where = "config.json" if value is not None else "its tokenizer"
    value = tokenizer.eos_token_id if value is None else value
    followed = value if isinstance(value, list) else [value]
    missing = {index: name for index, name in stops.items() if index not in followed}
    if not missing:
        return []
    return [
        f"{directory}: no generation_config.json names its stop ids; a program that follows "
        f"{where} ({', '.join(map(str, followed))}) lacks {stops_line(missing)} and lets the model "
        "run on into a made-up turn (samples and exports of this program stop there)"
    ]


def configured_stops(directory: Path) -> list[int]:
    """Return the stop ids of a directory's generation_config.json; none where there is no file."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a JSON object; download it again") from error
    return [int(index) for index in (value if isinstance(value, list) else [value]) if index]
