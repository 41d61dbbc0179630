"""Shapes of published models for the tests of the plan."""

from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.shape import ModelShape, shape_of
from glmforge.plan.workload import Workload


def chatglm3() -> ModelShape:
    """ChatGLM3-6B."""
    return shape_of(ChatGLM2Config())


def glm4() -> ModelShape:
    """GLM-4-9B."""
    return shape_of(ChatGLM2Config(num_layers=40, padded_vocab_size=151552, rope_ratio=500.0))


def three_billion() -> ModelShape:
    """The 3B shape of benchmarks/random_checkpoint.py."""
    config = ChatGLM2Config(
        num_layers=26, hidden_size=3072, num_attention_heads=24, ffn_hidden_size=8192
    )
    return shape_of(config)


def lora(**changes: object) -> Workload:
    """LoRA r 8 on query_key_value, 8 rows of 2048 tokens, no checkpointing, ZeRO-2, bf16."""
    values = {
        "method": "lora",
        "micro_batch": 8,
        "checkpointing": False,
        "lora_targets": ("query_key_value",),
        **changes,
    }
    return Workload(**values)
