"""From a run config to a workload: which settings of the run decide memory and time.

Owns the reading of the config (and of the DeepSpeed config written for it), the rules that make a
plan impossible, and nothing of the arithmetic. Takes plain facts about the card; looks at none.
"""

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glmforge.config import RunConfig
from glmforge.plan.batch import BatchSizes
from glmforge.plan.shape import ModelShape
from glmforge.plan.workload import Precision, Workload

OFFLOADS = ("offload_optimizer", "offload_param")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What decides about number formats: name and compute capability; None on the CPU."""

    name: str
    capability: tuple[int, int]


def planned_precision(config: RunConfig, card: Card | None) -> Precision:
    """Return the number format of a run on a card; a card that is not known computes bf16."""
    wanted = config.training.precision
    if wanted != "auto":
        return wanted
    return "fp16" if card is not None and card.capability < (8, 0) else "bf16"


def precision_verdict(
    precision: Precision, card: Card | None, family: str = ""
) -> tuple[str | None, str | None]:
    """Return (problem, warning) about a number format on a card, each None where there is none."""
    if precision == "bf16" and card is not None and card.capability < (8, 0):
        major, minor = card.capability
        return (
            f"training.precision is bf16, but {card.name} has compute capability {major}.{minor} "
            "and bf16 needs 8.0 or newer: write training.precision=fp16 (with its loss scale), or "
            "fp32",
            None,
        )
    if precision == "fp16" and family.startswith("glm4"):
        return (
            None,
            "training.precision is fp16, but this family was trained in bf16 and overflows to NaN "
            "are common: use bf16 where the card has it",
        )
    return None, None


def is_packed(config: RunConfig, shape: ModelShape) -> bool:
    """Whether rows hold several dialogues ("auto": where the family can)."""
    packing: Any = config.data.packing
    return shape.family.packing if packing == "auto" else bool(packing)


def lora_targets(config: RunConfig, shape: ModelShape) -> tuple[str, ...]:
    """Return the linear layers that get adapters; empty for other methods."""
    if config.method not in ("lora", "qlora"):
        return ()
    wanted = config.lora.target_modules
    if wanted is None:
        return shape.usual_targets
    every = tuple(dict.fromkeys(linear.name for linear, _ in shape.everywhere))
    return every if list(wanted) == ["all-linear"] else tuple(wanted)


def workload_of(
    config: RunConfig,
    engine: Mapping[str, Any],
    sizes: BatchSizes,
    shape: ModelShape,
    precision: Precision,
    row_tokens: int,
) -> Workload:
    """Gather what memory and time depend on.

    Args:
        config: the run config.
        engine: the whole DeepSpeed config of the run (``write_config``).
        sizes: the batch equation.
        shape: of the model.
        precision: resolved.
        row_tokens: of the longest row.
    """
    zero = engine["zero_optimization"]
    packed = is_packed(config, shape)
    optimizer, parameters = (offloads(zero, name) for name in OFFLOADS)
    sums = (engine.get("data_types") or {}).get("grad_accum_dtype") or precision
    return Workload(
        method=config.method,
        precision=precision,
        world_size=sizes.world_size,
        zero_stage=zero["stage"],
        offload_optimizer=optimizer,
        offload_param=parameters,
        pin_memory=_pins(zero),
        micro_batch=sizes.micro_batch,
        accumulation=sizes.accumulation,
        row_tokens=row_tokens,
        checkpointing=bool(config.training.gradient_checkpointing),
        checkpoint_every=max(1, int(config.training.gradient_checkpointing)),
        compiled=config.method != "qlora",
        packed=packed,
        repeats_heads=packed and kernel_repeats_heads(),
        lora_r=config.lora.r,
        lora_targets=lora_targets(config, shape),
        lora_dropout=config.lora.lora_dropout,
        use_dora=config.lora.use_dora and config.method in ("lora", "qlora"),
        trained_layers=config.freeze.num_trainable_layers if config.method == "freeze" else 0,
        eight_bit=config.training.optim == "adamw_bnb_8bit",
        reduce_bucket=zero["reduce_bucket_size"],
        prefetch_bucket=zero.get("stage3_prefetch_bucket_size", 50_000_000),
        max_live=zero.get("stage3_max_live_parameters", 1_000_000_000),
        sub_group=int(zero.get("sub_group_size", 1_000_000_000)),
        persistence=zero.get("stage3_param_persistence_threshold", 100_000),
        all_persistent=zero.get("stage3_model_persistence_threshold", 2**63 - 1),
        overlap_comm=bool(zero["overlap_comm"]),
        gradient_bytes=4 if sums == "fp32" else 2,
        secondary=min(int(zero.get("zero_hpz_partition_size", 1)), sizes.world_size),
        on_host=float((zero.get("offload_optimizer") or {}).get("ratio", 1.0)),
        async_save=config.training.async_save,
    )


def offloads(zero: Mapping[str, Any], key: str) -> bool:
    """Whether one of `OFFLOADS` in a ``zero_optimization`` map moves something to the host."""
    section = zero.get(key)
    return isinstance(section, Mapping) and section.get("device", "none") not in ("none", "auto")


def _pins(zero: Mapping[str, Any]) -> bool:
    """Whether what is offloaded is pinned, also what only another configuration would offload.

    The optimizer's section decides, then that of the weights, then DeepSpeed's default, which is on
    (runtime/zero/offload_config.py).
    """
    for name in OFFLOADS:
        section = zero.get(name) or {}
        if "pin_memory" in section:
            return bool(section["pin_memory"])
        if section.get("device", "none") != "none":
            return True
    return True


def kernel_repeats_heads() -> bool:
    """Whether the installed torch's packed attention takes no grouped heads (before 2.12)."""
    if importlib.util.find_spec("flash_attn") is not None:
        return False
    found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    return found is not None and (int(found[1]), int(found[2])) < (2, 12)


def request_problems(config: RunConfig, shape: ModelShape, work: Workload) -> list[str]:
    """List what makes a run impossible whatever the cards: targets, lengths, methods and stages."""
    problems = []
    known = list(dict.fromkeys(linear.name for linear, _ in shape.everywhere))
    unknown = [name for name in work.lora_targets if name not in known]
    if unknown:
        problems.append(
            f"lora.target_modules: {', '.join(map(repr, unknown))} matches no linear module of "
            f"this model, which has {', '.join(known)}; the usual choice is "
            f"{', '.join(shape.usual_targets)}. The account counts "
            + ("no adapters" if len(unknown) == len(work.lora_targets) else "those of the others")
        )
    if work.trained_layers > shape.layers:
        problems.append(
            f"freeze.num_trainable_layers is {work.trained_layers}, but the model has "
            f"{shape.layers} decoder layers"
        )
    if config.data.packing is True and not shape.family.packing:
        problems.append(
            f"data.packing is true, but {shape.family.title} cannot take packed rows: write "
            "data.packing: false (or auto)"
        )
    if work.method == "qlora" and work.zero_stage == 3:
        problems.append(
            "method is qlora at ZeRO stage 3: 4-bit weights cannot be divided; use stage 2, or "
            "method lora"
        )
    if work.eight_bit and work.offload_optimizer:
        problems.append(
            "training.optim is adamw_bnb_8bit with offload_optimizer: the host's Adam is "
            "DeepSpeed's own; keep one of the two"
        )
    return problems


def stage_3_notes(config: RunConfig, work: Workload, engine: Mapping[str, Any]) -> list[str]:
    """Say what differs at ZeRO stage 3, where users run into it."""
    if work.zero_stage != 3:
        return []
    notes = []
    zero = engine["zero_optimization"]
    if work.is_low_rank and not zero.get("stage3_gather_16bit_weights_on_model_save", False):
        notes.append(
            "ZeRO-3 divides the adapter too, and DeepSpeed's own saving would write empty tensors: "
            "this program gathers it itself when it saves"
        )
    if config.data.validation is not None:
        notes.append(
            "ZeRO-3 gathers weights in each forward pass, so that every rank evaluates and "
            f"generates the same number of times: where rows do not divide by {work.world_size}, "
            "filler rows are run and not counted"
        )
    return notes
