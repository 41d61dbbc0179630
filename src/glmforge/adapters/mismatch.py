"""Why an adapter's tensors are not those that its configuration asks of a base, in words.

Names and shapes of a wrapped model and of the file tell it: a layer that one of them lacks, or a
module that ``target_modules`` leaves out or the file does.
"""

import re
from collections.abc import Iterable

from peft import PeftModel

_PREFIX = "base_model.model."
_PART = re.compile(r"\.lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)(?:\..*)?$")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def other_modules(wrapped: PeftModel, expected: Iterable[str], found: Iterable[str]) -> str:
    """Say which modules or layers are on one side only; empty where that is not the reason.

    Args:
        wrapped: the base with an empty adapter of the configuration.
        expected: names of the tensors that PEFT would save of it.
        found: names of the file's tensors.
    """
    wanted, there = _modules(expected), _modules(found)
    if not wanted or not there:
        return ""
    ours, theirs = _num_layers(wanted), _num_layers(there)
    in_base = {_plain(name) for name, _ in wrapped.named_modules()}
    kinds = {_kind(name) for name in wanted}
    if there - in_base and all(_kind(name) in kinds for name in there - in_base) and theirs > ours:
        return f"the base has {ours} layers, the adapter has {theirs}: it was made for another base"
    untargeted = sorted({_last(name) for name in there & in_base - wanted})
    if untargeted:
        return (
            f"it has {', '.join(untargeted)} and target_modules of its adapter_config.json does "
            "not: the two files are of different trainings; take the adapter_config.json that was "
            "written with the weights"
        )
    lacking = wanted - there
    if there < wanted and theirs < ours and all(_layer(name) >= theirs for name in lacking):
        return f"the base has {ours} layers, the adapter has {theirs}: it was made for another base"
    unheld = sorted({_last(name) for name in lacking} - {_last(name) for name in there})
    if there < wanted and unheld:
        return (
            f"target_modules of its adapter_config.json names {', '.join(unheld)}, and the weights "
            "have none: the two files are of different trainings; take the adapter_config.json "
            "that was written with the weights"
        )
    return ""


def _modules(names: Iterable[str]) -> set[str]:
    """The modules that LoRA tensors are of."""
    return {_PART.sub("", name).removeprefix(_PREFIX) for name in names if _PART.search(name)}


def _plain(name: str) -> str:
    return name.removeprefix(_PREFIX)


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _kind(name: str) -> str:
    return _LAYER.sub("{}", name)


def _layer(name: str) -> int:
    found = _LAYER.search(name)
    return int(found[0]) if found else -1


def _num_layers(names: Iterable[str]) -> int:
    return 1 + max(map(_layer, names))
