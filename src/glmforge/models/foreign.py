"""Classes for models that transformers has itself: Glm, Glm4, and any other causal LM.

Owns the choice of class and attention for a configuration that is not ours. Families whose row
says so get the chunked loss and packed rows by a subclass made before anything is built; it keeps
the name, so that what it saves names transformers' own class.
"""

from functools import cache
from typing import Any

from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    PreTrainedConfig,
)

from glmforge.errors import ModelError
from glmforge.models.families import family_of
from glmforge.models.head import ChunkedLossForward
from glmforge.models.packed_interface import PACKED_ATTENTION, register_packed_attention


def class_for(config: PreTrainedConfig) -> Any:
    """Return the model class for a configuration: ours, or transformers' with our loss.

    Raises:
        ModelError: transformers has no causal language model of this kind, or only as an encoder.
    """
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(
            f"model_type {config.model_type!r} is no causal language model that transformers has"
        )
    if _is_encoder(config):
        raise ModelError(
            f"model_type {config.model_type!r} is an encoder (its tokens see what follows them) "
            "and no causal language model: choose a decoder, such as GLM, Llama or Qwen"
        )
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if config.model_type == "chatglm" or not family_of(config).chunked_loss:
        return found
    return _with_chunked_loss(found)


def _is_encoder(config: PreTrainedConfig) -> bool:
    """Whether transformers has a causal class for it only because it can be half of a pair."""
    if getattr(config, "is_encoder_decoder", False):
        return True
    return type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)


@cache
def _with_chunked_loss(base: Any) -> Any:
    return type(base.__name__, (ChunkedLossForward, base), {"__module__": __name__})


def attention_for(config: PreTrainedConfig, attention: str) -> str | None:
    """Return transformers' name of the attention implementation; None: its own choice."""
    if attention != "auto":
        return attention
    if config.model_type == "chatglm":
        return "sdpa"
    if family_of(config).packing:
        register_packed_attention()
        return PACKED_ATTENTION
    return None
