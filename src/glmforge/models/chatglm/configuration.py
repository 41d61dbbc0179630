"""Configuration of ChatGLM-6B, the first generation.

Owns the keys of its config.json (names as on the hub), their transformers aliases, and the fact
that its head is tied to the word embeddings unless the file says otherwise: the published config
lacks the key, and the original opened by ``from_pretrained`` ties them although the checkpoint
holds ``lm_head.weight`` too.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from glmforge.models.configuration import ChatGLMConfig

_IMAGE_TOKENS = 20000
"""The first published vocabulary (150528 rows) has so many image tokens before all others."""
_OLD_SOP = 130004 + _IMAGE_TOKENS


class ChatGLM6BConfig(ChatGLMConfig):
    """Keys of a ChatGLM-6B config.json, vendor's names."""

    families: ClassVar[tuple[str, ...]] = ("chatglm",)
    fixed_values: ClassVar[Mapping[str, Any]] = {"pre_seq_len": None, "prefix_projection": False}
    attribute_map: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "num_layers",
        "intermediate_size": "inner_hidden_size",
        "max_position_embeddings": "max_sequence_length",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values", "cache"]

    vocab_size: int = 130528
    hidden_size: int = 4096
    num_layers: int = 28
    num_attention_heads: int = 32
    inner_hidden_size: int = 16384
    layernorm_epsilon: float = 1e-5
    max_sequence_length: int = 2048
    position_encoding_2d: bool = True
    use_cache: bool = True
    pre_seq_len: int | None = None
    prefix_projection: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 130004
    eos_token_id: int | list[int] | None = 130005
    pad_token_id: int | None = None
    mask_token_id: int | None = None
    gmask_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        offset = _IMAGE_TOKENS if self.has_old_vocabulary else 0
        for name, value in (
            ("pad_token_id", 3),
            ("mask_token_id", 130000),
            ("gmask_token_id", 130001),
        ):
            if getattr(self, name) is None:
                setattr(self, name, value + offset)

    @property
    def has_old_vocabulary(self) -> bool:
        """Whether this is the first published vocabulary, with its 20000 image tokens."""
        return self.bos_token_id == _OLD_SOP
