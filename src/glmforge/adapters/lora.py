"""LoRA on a loaded model: which modules, how many parameters, and the adapter directory.

Owns the checks that make an adapter real before any GPU time is spent: every target name must
match, something must be trainable, and what is written must hold every tensor.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import (
    LoraConfig,
    PeftModel,
    TaskType,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors import safe_open
from torch import nn
from transformers.pytorch_utils import Conv1D

from glmforge.adapters.files import peft_names, read_adapter
from glmforge.adapters.mismatch import other_modules
from glmforge.errors import AdapterError

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """LoRA's own settings, in PEFT's words; `target_modules` are resolved module names."""

    r: int
    lora_alpha: float
    lora_dropout: float
    target_modules: tuple[str, ...]
    use_rslora: bool = False
    use_dora: bool = False


def linear_module_names(model: nn.Module) -> list[str]:
    """Return the last name parts of all linear modules inside `model`'s layers, in order.

    GPT-2's Conv1D is one, with its weight the other way round. The language-model head is left
    out: the loss calls it on its own path.
    """
    head = getattr(model, "get_output_embeddings", lambda: None)()
    names: dict[str, None] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and module is not head:
            names.setdefault(name.rsplit(".", 1)[-1])
    return list(names)


def check_targets(
    model: nn.Module, wanted: Sequence[str] | None, usual: Sequence[str]
) -> tuple[str, ...]:
    """Return the target names to use, after checking each against the model's linear modules.

    Args:
        model: the model, which may live on the meta device (no weights needed).
        wanted: the user's list; None means `usual`; ["all-linear"] means every linear module
            but the head.
        usual: the family's default.

    Raises:
        AdapterError: a name that matches no linear module of the model.
    """
    existing = linear_module_names(model)
    if wanted is None:
        wanted = usual
    if list(wanted) == [ALL_LINEAR]:
        return tuple(existing)
    unknown = [name for name in wanted if name not in existing]
    if unknown:
        usual_text = ", ".join(name for name in usual if name in existing)
        hint = f" The usual choice for this model: {usual_text}." if usual_text else ""
        raise AdapterError(
            f"lora.target_modules: {', '.join(map(repr, unknown))} matches no linear module of "
            f"this model. Its linear modules: {', '.join(existing)}.{hint}"
        )
    return tuple(wanted)


def add_lora(model: nn.Module, settings: LoraSettings) -> PeftModel:
    """Wrap `model` with LoRA adapters in the model's own dtype; everything else is frozen.

    Raises:
        AdapterError: no parameter ended up trainable.
    """
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=list(settings.target_modules),
        use_rslora=settings.use_rslora,
        use_dora=settings.use_dora,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        bias="none",
        task_type=TaskType.CAUSAL_LM,
    )
    wrapped = get_peft_model(model, config, autocast_adapter_dtype=False)
    if not any(p.requires_grad for p in wrapped.parameters()):
        raise AdapterError(
            f"LoRA on {', '.join(settings.target_modules)} left no trainable parameter: "
            f"the model's linear modules are {', '.join(linear_module_names(model))}"
        )
    return wrapped


def trainable_line(model: nn.Module) -> str:
    """Return "trainable params: N || all params: M || trainable%: P" (PEFT's wording).

    Counts whole parameters, also where ZeRO-3 has partitioned them or a byte holds two (4 bit).
    """
    trainable = total = 0
    for parameter in model.parameters():
        count = int(getattr(parameter, "ds_numel", parameter.numel()))
        if parameter.dtype == torch.uint8:
            count *= 2
        total += count
        trainable += count if parameter.requires_grad else 0
    return (
        f"trainable params: {trainable:,} || all params: {total:,} || "
        f"trainable%: {100 * trainable / total:.4f}"
    )


def save_adapter(
    model: PeftModel, weights: Mapping[str, torch.Tensor], directory: Path
) -> list[str]:
    """Write `directory` in PEFT's format from whole `weights`, read it back and check it.

    Args:
        model: the wrapped model (its config and names).
        weights: name → whole CPU tensor of every trainable parameter.
        directory: made where missing.

    Returns:
        Sentences the user should read: empty, or that every lora_B is still zero.

    Raises:
        AdapterError: a tensor is missing or empty in the written file.
    """
    model.save_pretrained(str(directory), state_dict=dict(weights), safe_serialization=True)
    readme = directory / "README.md"
    readme.unlink(missing_ok=True)  # PEFT's template card holds nothing about this run
    path = directory / "adapter_model.safetensors"
    with safe_open(path, framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        zero_b = [bool((file.get_tensor(name) == 0).all()) for name in shapes if ".lora_B." in name]
    empty = [name for name, shape in shapes.items() if 0 in shape]
    if empty or len(shapes) != len(weights):
        raise AdapterError(
            f"{path}: wrote {len(shapes)} of {len(weights)} tensors, {len(empty)} of them empty: "
            "the partitioned weights were not gathered; this is a bug of this program"
        )
    if zero_b and all(zero_b):
        return ["every lora_B is zero: the adapter changes nothing yet"]
    return []


def open_adapter(model: nn.Module, directory: Path) -> PeftModel:
    """Put the adapter in `directory` on `model`, in the model's dtype, ready to answer.

    Every tensor of the file is counted against the model before any is used: an adapter that
    matches nothing would leave the base as it is, in silence.

    Raises:
        AdapterError: the directory holds no readable adapter, or one made for another model.
    """
    files = read_adapter(directory)
    wrapped = wrap(model, files.config, files.path)
    check_match(wrapped, files.tensors, files.path)
    set_peft_model_state_dict(wrapped, dict(files.tensors))
    return wrapped.eval()


def wrap(model: nn.Module, config: LoraConfig, path: Path | str) -> PeftModel:
    """Put an empty adapter of a configuration on `model`: any that PEFT itself can put there.

    Args:
        model: the base; the meta device will do.
        config: as read from a file; it is left as it is.
        path: of the adapter, for the error.

    Raises:
        AdapterError: the configuration fits no module of this model.
    """
    config = copy.deepcopy(config)
    config.inference_mode = True
    config.base_model_name_or_path = None  # a base may have moved: its tensors are what is checked
    config.task_type = TaskType.CAUSAL_LM  # what the adapter was trained for, our models do so
    try:
        return get_peft_model(model, config, autocast_adapter_dtype=False)
    except ValueError as error:
        targets = config.target_modules or ()
        names = [targets] if isinstance(targets, str) else sorted(targets)
        raise AdapterError(
            f"{path}: its target_modules {', '.join(map(repr, names))} do not fit this base "
            f"({str(error).splitlines()[0]}). The base's linear modules: "
            f"{', '.join(linear_module_names(model))}: it was made for another model"
            f"{_other_layout(names, linear_module_names(model))}"
        ) from error


def _other_layout(targets: Sequence[str], modules: Sequence[str]) -> str:
    """The end of a sentence where an adapter has one layout's names and the base the other's."""
    for layout, mark, theirs in (
        ("transformers", "q_proj", "query_key_value"),
        ("chatglm", "query_key_value", "q_proj"),
    ):
        if mark in modules and theirs in targets:
            return (
                f", or for this one in its other layout: `glmforge export ADAPTER OUT --layout "
                f"{layout}` writes it for such a base"
            )
    return ""


def check_match(wrapped: PeftModel, tensors: Mapping[str, torch.Tensor], path: Path | str) -> None:
    """Count the tensors of an adapter against a wrapped model (one on the meta device will do).

    What an adapter holds is for PEFT to say: LoRA's parts, biases and modules trained whole. PEFT
    may have put the embedding and the head beside them.

    Raises:
        AdapterError: names or shapes are not the model's; says how many, and whose base differs.
    """
    expected = _shapes_in_files(wrapped, embeddings=False)
    allowed = dict(expected)
    if hasattr(wrapped, "get_input_embeddings"):
        allowed |= _shapes_in_files(wrapped, embeddings=True)
    fitting = {name for name, shape in allowed.items() if _shape(tensors, name) == shape}
    matched = expected.keys() & fitting
    missing, unexpected = expected.keys() - matched, tensors.keys() - fitting
    if missing or unexpected:
        raise AdapterError(
            f"{path}: matched {len(matched)} of {len(expected)} tensors, unexpected "
            f"{len(unexpected)}, missing {len(missing)} "
            f"{_reason(wrapped, expected, allowed, tensors)}"
        )


def _shapes_in_files(wrapped: PeftModel, *, embeddings: bool) -> dict[str, tuple[int, ...]]:
    """Return name → shape of what PEFT would save of a wrapped model."""
    saved = get_peft_model_state_dict(
        wrapped, state_dict=wrapped.state_dict(), save_embedding_layers=embeddings
    )
    return {name: tuple(tensor.shape) for name, tensor in saved.items()}


def _reason(
    wrapped: PeftModel,
    expected: Mapping[str, tuple[int, ...]],
    allowed: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, torch.Tensor],
) -> str:
    """Say what is wrong: ranks, the base's widths, names, target modules or number of layers."""
    for name, shape in allowed.items():
        found = _shape(tensors, name)
        if found is not None and found != shape:
            return (
                f"(for example {name} is {list(found)}, and {_other_shape(name, found, shape)} "
                f"{list(shape)}): {_shape_reason(name, found, shape)}"
            )
    renamed, changed = peft_names(tensors)
    example = ", ".join(sorted(tensors.keys() - allowed.keys())[:2])
    example = example or ", ".join(sorted(expected.keys() - tensors.keys())[:2])
    if changed and renamed.keys() >= expected.keys():
        return (
            f"(for example {example}): the names are another program's; `glmforge export "
            "--fix-names` writes them as PEFT does"
        )
    why = other_modules(wrapped, expected, renamed)
    why = why or "it was made for another model, or its names or shapes were changed"
    return f"(for example {example}): {why}"


def _is_rank(name: str, found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether two shapes of a LoRA matrix differ in the rank alone."""
    side = 0 if ".lora_A." in name else 1
    is_matrix = ".lora_" in name and len(found) == len(wanted) == 2
    return is_matrix and found[1 - side] == wanted[1 - side]


def _other_shape(name: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    return "adapter_config.json needs" if _is_rank(name, found, wanted) else "this base needs"


def _shape_reason(name: str, found: Sequence[int], wanted: Sequence[int]) -> str:
    if _is_rank(name, found, wanted):
        return "its rank is not the r or rank_pattern that adapter_config.json gives that module"
    return "it was made for a base of another size"


def saved_name(name: str) -> str:
    """Return the name of a wrapped model's LoRA parameter in PEFT's files."""
    if name.endswith(".lora_magnitude_vector.default.weight"):  # DoRA's is saved bare
        return name.removesuffix(".default.weight")
    return name.replace(".default.", ".")


def _shape(tensors: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None
