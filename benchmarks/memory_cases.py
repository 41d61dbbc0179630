"""The configurations whose memory is measured, and the account of each.

Owns `POINTS`; ``memory_points.py`` measures them.
"""

from dataclasses import dataclass, field

EVERY_LINEAR = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


@dataclass(frozen=True)
class Point:
    """One configuration; `rows` of `length` tokens in a forward pass."""

    name: str
    shape: str = "chatglm3-6b"
    method: str = "lora"
    stage: int = 2
    rows: int = 8
    length: int = 2048
    checkpoint: int = 0
    compiled: bool = True
    dropout: float = 0.1
    packed: bool = False
    targets: tuple[str, ...] = ("query_key_value",)
    offload: bool = False
    eight_bit: bool = False
    trained_layers: int = 0
    extra: dict = field(default_factory=dict)


NINE = "glm-4-9b-chat"
POINTS = (
    Point("6B LoRA", dropout=0.0),
    Point("6B LoRA, dropout"),
    Point("6B LoRA, packed", packed=True),
    Point("6B LoRA, packed, checkpointing", packed=True, checkpoint=1),
    Point("6B LoRA, 1 row", rows=1),
    Point("6B LoRA, rows of 4096", rows=4, length=4096),
    Point("6B LoRA, 16 rows, checkpointing", rows=16, checkpoint=1),
    Point("6B LoRA, every 2nd layer checkpointed", checkpoint=2),
    Point("6B LoRA on all linear layers", rows=4, targets=EVERY_LINEAR),
    Point("6B LoRA, ZeRO-0", rows=4, stage=0),
    Point("6B LoRA, ZeRO-3", rows=4, stage=3),
    Point("6B LoRA, ZeRO-3, checkpointing", rows=4, stage=3, checkpoint=1),
    Point("6B LoRA, plain path", rows=4, compiled=False),
    Point("6B LoRA, plain path, ZeRO-0", rows=4, stage=0, compiled=False),
    Point("6B LoRA, plain path, ZeRO-3", rows=4, stage=3, compiled=False),
    Point("6B LoRA, plain path, checkpointing", compiled=False, checkpoint=1),
    Point("9B LoRA", NINE, rows=4),
    Point("9B LoRA, 1 row", NINE, rows=1),
    Point("9B LoRA, checkpointing", NINE, checkpoint=1),
    Point("9B LoRA, ZeRO-0", NINE, stage=0, rows=4),
    Point("9B LoRA, plain path", NINE, rows=2, compiled=False),
    Point("9B LoRA, plain path, ZeRO-0", NINE, stage=0, rows=4, compiled=False, checkpoint=1),
    Point("9B LoRA, plain path, ZeRO-3", NINE, stage=3, rows=2, compiled=False),
    Point("9B LoRA, ZeRO-3, checkpointing", NINE, rows=2, stage=3, checkpoint=1),
    Point("6B QLoRA, checkpointing", method="qlora", compiled=False, checkpoint=1),
    Point("9B QLoRA, checkpointing", NINE, "qlora", rows=4, compiled=False, checkpoint=1),
    Point("6B last 4 layers", method="freeze", rows=4, trained_layers=4),
    Point("1.5B full, ZeRO-1, checkpointing", "glm-1.5b", "full", 1, checkpoint=1),
    Point("1.5B full, ZeRO-2", "glm-1.5b", "full", 2),
    Point("1.5B full, ZeRO-3, checkpointing", "glm-1.5b", "full", 3, checkpoint=1),
    Point("3B full, ZeRO-2, checkpointing", "glm-3b", "full", 2, checkpoint=1),
    Point("3B full, ZeRO-3", "glm-3b", "full", 3, rows=4),
    Point("3B LoRA, ZeRO-1", "glm-3b", stage=1),
    Point("1.5B LoRA, ZeRO-2", "glm-1.5b", rows=4),
    Point("1.5B LoRA, ZeRO-3", "glm-1.5b", stage=3),
    Point("6B full, ZeRO-0, checkpointing", method="full", stage=0, rows=2, checkpoint=1),
    Point("6B full, ZeRO-2, checkpointing", method="full", rows=1, checkpoint=1),
    Point("6B full, ZeRO-3, checkpointing", method="full", stage=3, rows=1, checkpoint=1),
    Point("6B full, 8-bit AdamW", method="full", rows=2, checkpoint=1, eight_bit=True),
    Point("6B full, offload", method="full", rows=4, checkpoint=1, offload=True),
    Point("1.5B full, offload", "glm-1.5b", "full", 2, checkpoint=1, offload=True),
    Point("3B full, ZeRO-3, offload", "glm-3b", "full", 3, rows=4, checkpoint=1, offload=True),
)


def model_config(shape: str):
    """The configuration of a shape of random_checkpoint.py."""
    from random_checkpoint import SHAPES

    from glmforge.models.glm.configuration import ChatGLM2Config

    return ChatGLM2Config(**SHAPES[shape])


def engine_config(point: Point) -> dict:
    """The DeepSpeed config that training would write."""
    from glmforge.plan.batch import BatchSizes
    from glmforge.plan.deepspeed_config import EngineSettings, write_config

    sizes = BatchSizes(micro_batch=point.rows, accumulation=1, world_size=1)
    zero: dict = {"stage": point.stage}
    if point.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    settings = EngineSettings(sizes=sizes, precision="bf16", max_grad_norm=1.0)
    return write_config(settings, {"zero_optimization": zero})


def planned(point: Point, repeats: bool | None = None):
    """The account of a point; `repeats`: what the packed kernel of the measured torch does."""
    from glmforge.plan.memory import account
    from glmforge.plan.request import kernel_repeats_heads
    from glmforge.plan.shape import shape_of
    from glmforge.plan.workload import Workload

    low_rank = point.method in ("lora", "qlora")
    work = Workload(
        method=point.method,
        zero_stage=point.stage,
        offload_optimizer=point.offload,
        micro_batch=point.rows,
        row_tokens=point.length,
        checkpointing=point.checkpoint > 0,
        checkpoint_every=max(1, point.checkpoint),
        compiled=point.compiled,
        packed=point.packed,
        repeats_heads=point.packed and (kernel_repeats_heads() if repeats is None else repeats),
        lora_targets=point.targets if low_rank else (),
        lora_dropout=point.dropout if low_rank else 0.0,
        trained_layers=point.trained_layers,
        eight_bit=point.eight_bit,
    )
    return account(shape_of(model_config(point.shape)), work)
