"""Configuration of the decoder that ChatGLM2-6B, ChatGLM3-6B and GLM-4-9B share.

Owns the keys of their config.json (names as on the hub) with the defaults of ChatGLM3-6B, their
transformers aliases, and what ``rope_ratio`` means for the family at hand. Read by
glm/modeling.py, counts.py and layouts.py.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from glmforge.models.configuration import ChatGLMConfig


class ChatGLM2Config(ChatGLMConfig):
    """Keys of a ChatGLM2, ChatGLM3 or GLM-4-9B config.json, vendor's names."""

    families: ClassVar[tuple[str, ...]] = ("chatglm2", "chatglm3", "glm4")
    # The vendor's code can do otherwise, but no published checkpoint does.
    fixed_values: ClassVar[Mapping[str, Any]] = {
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "fp32_residual_connection": False,
        "hidden_dropout": 0.0,
        "multi_query_attention": True,
        "original_rope": True,
        "post_layer_norm": True,
        "pre_seq_len": None,
        "rmsnorm": True,
    }
    attribute_map: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "num_layers",
        "vocab_size": "padded_vocab_size",
        "intermediate_size": "ffn_hidden_size",
        "head_dim": "kv_channels",
        "num_key_value_heads": "multi_query_group_num",
        "rms_norm_eps": "layernorm_epsilon",
        "max_position_embeddings": "seq_length",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]

    num_layers: int = 28
    padded_vocab_size: int = 65024
    hidden_size: int = 4096
    ffn_hidden_size: int = 13696
    kv_channels: int = 128
    num_attention_heads: int = 32
    seq_length: int = 8192
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    layernorm_epsilon: float = 1e-5
    rmsnorm: bool = True
    apply_residual_connection_post_layernorm: bool = False
    post_layer_norm: bool = True
    add_bias_linear: bool = False
    add_qkv_bias: bool = True
    bias_dropout_fusion: bool = True
    multi_query_attention: bool = True
    multi_query_group_num: int = 2
    rope_ratio: float = 1.0
    original_rope: bool = True
    apply_query_key_layer_scaling: bool = True
    attention_softmax_in_fp32: bool = True
    fp32_residual_connection: bool = False
    pre_seq_len: int | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 2
    pad_token_id: int | None = 0

    @property
    def rope_base(self) -> float:
        """Base of the rotary frequencies."""
        multiplies = self.family_decision.family.rope_ratio == "base"
        return 10000.0 * (self.rope_ratio if multiplies else 1.0)

    @property
    def position_divisor(self) -> float:
        """What positions are divided by (linear interpolation of ChatGLM2-6B-32K)."""
        divides = self.family_decision.family.rope_ratio == "positions"
        return float(self.rope_ratio) if divides else 1.0
