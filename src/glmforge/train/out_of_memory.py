"""Running out of GPU memory, explained: where, with what batch, planned and measured, what to do.

Turns torch's error into a `TrainingError`. The advice depends on the phase and on what the run is
already doing: no setting is advised that is already so.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from glmforge.config import RunConfig
from glmforge.config.from_deepspeed import read_map
from glmforge.data import Batch
from glmforge.distributed.collectives import Ranks
from glmforge.errors import ConfigError, GlmForgeError, TrainingError
from glmforge.models import load_config
from glmforge.plan.summary import plan_for_run
from glmforge.train.phases import place_of_error
from glmforge.train.session import Session

GIB = 2**30
_SAYS_SO = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_LOOSE_GIB = 2.0
_OTHERS_GIB = 1.0

_DOING = {
    "load": "while the model and the optimizer were set up",
    "data": "while the batch was made",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's update",
    "evaluation": "in the evaluation",
    "saving": "while weights were gathered to be saved",
    "records": "between two steps",
    "exchange": "between two steps",
}
_ORDERS = {
    "load": "precision qlora stage offload_param lora offload_optimizer eight_bit",
    "forward": "batch checkpointing length precision qlora lora stage offload_param",
    "optimizer": "offload_optimizer eight_bit stage lora precision batch",
    "evaluation": "eval_batch new_tokens length stage precision qlora",
    "saving": "stage offload_optimizer lora precision batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """A GPU as this process saw it when memory ran out, in GiB.

    ``peak`` is the most that tensors held, ``reserved`` what torch's allocator holds now,
    ``allocated`` what tensors hold of it, ``others`` what is held outside of torch (contexts, NCCL,
    other processes).
    """

    total: float
    peak: float
    allocated: float
    reserved: float
    others: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is doing, as far as memory goes."""

    config: RunConfig
    world_size: int
    accumulation: int
    stage: int
    offload_optimizer: bool
    offload_param: bool
    precision: str


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a GPU has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAYS_SO)


@contextmanager
def out_of_memory_explained(
    config: RunConfig, ranks: Ranks, session: Session | None = None
) -> Iterator[None]:
    """Explain it when memory runs out inside.

    Raises:
        TrainingError: in place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        phase = place_of_error(error).phase
        text = explanation(
            _setting(config, ranks, session),
            phase=phase,
            step=None if session is None else session.progress.step + (phase not in _BETWEEN),
            batch=None if session is None else _batch(session, phase),
            card=_card(ranks.device),
            planned_gib=_planned_gib(config, ranks, session),
            asked=_asked(error),
        )
        raise TrainingError(text) from error


_BETWEEN = ("evaluation", "saving", "records")


def explanation(
    setting: Setting,
    *,
    phase: str,
    step: int | None,
    batch: Batch | None,
    card: CardMemory | None,
    planned_gib: float | None,
    asked: str | None = None,
) -> str:
    """Say where memory ran out, with what, and the three settings that help most, in order.

    Args:
        setting: what the run is doing.
        phase: of ``phases``.
        step: that was being done; None before the first.
        batch: that was on the card; None before the first.
        card: the GPU; None where it was not asked.
        planned_gib: peak of `glmforge plan`; None where there is no plan.
        asked: the size that could not be had, as torch says it.
    """
    when = f" at step {step}" if step is not None and phase != "load" else ""
    size = "" if asked is None else f" (asked for {asked} more)"
    parts = [f"the GPU ran out of memory {_DOING[phase]}{when}{size}"]
    if batch is not None:
        rows, length = batch.input_ids.shape
        parts.append(
            f"the batch had {rows} x {length:,} = {rows * length:,} tokens ({batch.tokens:,} of "
            "them no padding)"
        )
    if card is not None:
        planned = "not planned" if planned_gib is None else f"planned {planned_gib:.1f} GiB"
        parts.append(
            f"peak {planned}, measured {card.peak:.1f} GiB when it failed, of {card.total:.1f} GiB"
        )
    elif planned_gib is not None:
        parts.append(f"peak planned {planned_gib:.1f} GiB, not measured")
    advice = remedies(setting, phase)
    numbered = "".join(f"\n  {number}. {text}" for number, text in enumerate(advice, 1))
    more = "".join(f"\n  {text}" for text in card_notes(card))
    return f"{'; '.join(parts)}. What helps most, in order:{numbered}{more}"


def remedies(setting: Setting, phase: str) -> list[str]:
    """Return the three settings that help most in a phase, the first first."""
    known = dict(_remedies(setting))
    order = _ORDERS.get(phase, _ORDERS["forward"]).split()
    found = [known[name] for name in order if name in known]
    cards = setting.world_size + 1 if setting.world_size > 1 else 2
    last = [
        f"more GPUs (--nproc {max(cards, 2 * setting.world_size)}) with ZeRO-3, which divides the "
        "weights among them",
        "a GPU with more memory, or a smaller model",
        "glmforge plan CONFIG: the whole account, and what would fit",
    ]
    return [*found, *last][:3]


def _remedies(setting: Setting) -> Iterator[tuple[str, str]]:
    """Yield (name, advice) for everything that is not already so."""
    config, training = setting.config, setting.config.training
    rows = training.per_device_train_batch_size
    if rows > 1:
        fewer = max(n for n in range(1, rows // 2 + 1) if rows % n == 0)
        more = setting.accumulation * rows // fewer
        yield (
            "batch",
            (
                f"training.per_device_train_batch_size={fewer} (now {rows}) with "
                f"training.gradient_accumulation_steps={more}: the same rows a step"
            ),
        )
    layers = training.gradient_checkpointing
    if int(layers) != 1:
        now = "false" if not layers else f"every {layers}th layer"
        yield "checkpointing", f"training.gradient_checkpointing=true (now {now})"
    if config.data.max_length > 64:
        half = config.data.max_length // 2
        yield "length", f"data.max_length={half} (now {config.data.max_length})"
    if setting.precision == "fp32":
        yield "precision", "training.precision=bf16 (now fp32), or fp16 on older GPUs"
    if config.method == "lora" and setting.stage < 3:
        yield "qlora", "method=qlora (now lora): a base of 4 bits"
    if config.method in ("full", "freeze"):
        yield "lora", f"method=lora (now {config.method}): gradients and states of adapters only"
    if setting.world_size > 1 and setting.stage < 3 and config.method != "qlora":
        yield (
            "stage",
            (
                f"deepspeed.zero_optimization.stage=3 (now {setting.stage}): weights divided among "
                f"{setting.world_size} GPUs"
            ),
        )
    if not setting.offload_optimizer and setting.stage > 0 and config.method in ("full", "freeze"):
        yield (
            "offload_optimizer",
            (
                "deepspeed.zero_optimization.offload_optimizer.device=cpu: optimizer states on "
                "the host"
            ),
        )
    if setting.stage == 3 and not setting.offload_param:
        yield (
            "offload_param",
            ("deepspeed.zero_optimization.offload_param.device=cpu: weights on the host, slow"),
        )
    plain = training.optim == "adamw_torch" and not setting.offload_optimizer
    if plain and config.method in ("full", "freeze"):
        yield "eight_bit", "training.optim=adamw_bnb_8bit (now adamw_torch)"
    if training.per_device_eval_batch_size > 1:
        wide = training.per_device_eval_batch_size
        yield "eval_batch", f"training.per_device_eval_batch_size={wide // 2} (now {wide})"
    if config.generation.max_new_tokens > 32:
        long = config.generation.max_new_tokens
        yield "new_tokens", f"generation.max_new_tokens={long // 2} (now {long})"


def card_notes(card: CardMemory | None) -> Sequence[str]:
    """Say what else takes memory of the card."""
    if card is None:
        return ()
    notes = []
    if card.others > _OTHERS_GIB:
        notes.append(
            f"{card.others:.1f} GiB of the card are held outside of this process's tensors: see in "
            "nvidia-smi whether another program uses it"
        )
    if card.reserved - card.allocated > _LOOSE_GIB:
        notes.append(
            f"{card.reserved - card.allocated:.1f} GiB are reserved in pieces too small to use: "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    return notes


def _asked(error: BaseException) -> str | None:
    found = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    return found[1] if found else None


def _setting(config: RunConfig, ranks: Ranks, session: Session | None) -> Setting:
    zero: dict[str, Any] = (read_map(config.deepspeed) or {}).get("zero_optimization", {})
    stage = zero.get("stage", 2) if session is None else session.zero_stage
    wanted = config.training.gradient_accumulation_steps
    usual = 8 if config.data.packing is False else 1
    return Setting(
        config=config,
        world_size=ranks.world_size,
        accumulation=session.sizes.accumulation
        if session is not None
        else (usual if wanted == "auto" else wanted),
        stage=stage,
        offload_optimizer=_offloads(zero, "offload_optimizer"),
        offload_param=_offloads(zero, "offload_param"),
        precision=config.training.precision if session is None else session.precision,
    )


def _offloads(zero: dict[str, Any], key: str) -> bool:
    return (zero.get(key) or {}).get("device", "none") != "none"


def _batch(session: Session, phase: str) -> Batch | None:
    """Return the batch that was being computed, or the largest of an evaluation."""
    if phase == "evaluation":
        return max(session.eval_batches, key=lambda one: one.input_ids.numel(), default=None)
    if session.batches is None or phase in _BETWEEN:
        return None
    done = int(session.engine.micro_steps) % session.sizes.accumulation
    return session.batches.micro_batches[done]


def _card(device: torch.device) -> CardMemory | None:
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    return CardMemory(
        total=total / GIB,
        peak=torch.cuda.max_memory_allocated(device) / GIB,
        allocated=torch.cuda.memory_allocated(device) / GIB,
        reserved=reserved / GIB,
        others=max(0, total - free - reserved) / GIB,
    )


def _planned_gib(config: RunConfig, ranks: Ranks, session: Session | None) -> float | None:
    """Return the planned peak of a card, None where the model is none that can be planned."""
    if session is not None and session.memory_plan is not None:
        return session.memory_plan.written.account.peak_gib
    try:
        plan = plan_for_run(
            config,
            load_config(config.model.model_name_or_path),
            world_size=ranks.world_size,
            local_world_size=ranks.world.local_world_size,
        )
    except (GlmForgeError, ConfigError):
        return None
    found = plan.written.account.peak_gib
    return None if math.isinf(found) else found
