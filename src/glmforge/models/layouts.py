"""Name tables between the vendor's ``chatglm`` layout and transformers' ``glm`` layout.

Owns the one table of module names (`MODULES`), the conversion of weights along it in both
directions, tensor by tensor, and of the configuration. The fused query_key_value of one layout is
three modules of the other, split by rows; everything else is renamed. Values are never changed.
LoRA adapters follow the same table in adapter_layouts.py.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GlmConfig

from glmforge.errors import ModelError
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.families import family_of

MODULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("transformer.embedding.word_embeddings", ("model.embed_tokens",)),
    (
        "transformer.encoder.layers.{}.input_layernorm",
        ("model.layers.{}.input_layernorm",),
    ),
    (
        "transformer.encoder.layers.{}.self_attention.query_key_value",
        (
            "model.layers.{}.self_attn.q_proj",
            "model.layers.{}.self_attn.k_proj",
            "model.layers.{}.self_attn.v_proj",
        ),
    ),
    ("transformer.encoder.layers.{}.self_attention.dense", ("model.layers.{}.self_attn.o_proj",)),
    (
        "transformer.encoder.layers.{}.post_attention_layernorm",
        ("model.layers.{}.post_attention_layernorm",),
    ),
    ("transformer.encoder.layers.{}.mlp.dense_h_to_4h", ("model.layers.{}.mlp.gate_up_proj",)),
    ("transformer.encoder.layers.{}.mlp.dense_4h_to_h", ("model.layers.{}.mlp.down_proj",)),
    ("transformer.encoder.final_layernorm", ("model.norm",)),
    ("transformer.output_layer", ("lm_head",)),
)
"""(module of the chatglm layout, its modules in the glm layout); ``{}`` is the layer."""

_COMPUTED = re.compile(r"rotary_pos_emb\.inv_freq$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor name stands in the table: row, part of a split row, layer, leaf."""

    row: int
    part: int
    layer: str
    leaf: str


def _pattern(module: str) -> re.Pattern[str]:
    return re.compile(re.escape(module).replace(r"\{\}", r"(\d+)") + r"\.(.+)")


_CHATGLM = [(row, 0, _pattern(ours)) for row, (ours, _) in enumerate(MODULES)]
_GLM = [
    (row, part, _pattern(theirs))
    for row, (_, parts) in enumerate(MODULES)
    for part, theirs in enumerate(parts)
]


def find_place(name: str, *, layout: str) -> Place | None:
    """Return where a tensor name of ``layout`` ("chatglm" or "glm") stands in the table."""
    for row, part, pattern in _CHATGLM if layout == "chatglm" else _GLM:
        found = pattern.fullmatch(name)
        if found:
            layer = found.group(1) if pattern.groups == 2 else ""
            return Place(row=row, part=part, layer=layer, leaf=found.group(pattern.groups))
    return None


def glm_names(place: Place) -> tuple[str, ...]:
    """Return the names of a tensor's parts in the glm layout."""
    return tuple(f"{m.format(place.layer)}.{place.leaf}" for m in MODULES[place.row][1])


def chatglm_name(place: Place) -> str:
    """Return the name of a tensor in the chatglm layout."""
    return f"{MODULES[place.row][0].format(place.layer)}.{place.leaf}"


def fused_rows(config: Any) -> tuple[int, int, int]:
    """Return the rows of query, key and value in the fused product."""
    group = config.num_key_value_heads * config.head_dim
    return config.num_attention_heads * config.head_dim, group, group


def to_transformers(
    tensors: Iterable[tuple[str, Tensor]], config: Any
) -> Iterator[tuple[str, Tensor]]:
    """Yield a chatglm checkpoint's tensors under transformers' names, the fused ones split.

    Raises:
        ModelError: a name is not of the chatglm layout; found names before it are already out.
    """
    for name, tensor in tensors:
        if _COMPUTED.search(name):
            continue
        place = find_place(name, layout="chatglm")
        if place is None:
            raise ModelError(f"{name}: no tensor of the chatglm layout, so it has no other name")
        names = glm_names(place)
        parts = (tensor,) if len(names) == 1 else tensor.split(fused_rows(config))
        yield from zip(names, parts)


def to_chatglm(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield a glm checkpoint's tensors under the vendor's names, query, key and value fused.

    A fused tensor comes out when the last of its three parts has come in.

    Raises:
        ModelError: a name is not of the glm layout, or parts of a fused tensor never came.
    """
    waiting: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors:
        place = find_place(name, layout="glm")
        if place is None:
            raise ModelError(
                f"{name}: no tensor of transformers' glm layout, so it has no other name"
            )
        fused, num_parts = chatglm_name(place), len(MODULES[place.row][1])
        parts = waiting.setdefault(fused, {})
        parts[place.part] = tensor
        if len(parts) == num_parts:
            del waiting[fused]
            yield (
                fused,
                torch.cat([parts[i] for i in range(num_parts)]) if num_parts > 1 else tensor,
            )
    if waiting:
        raise ModelError(
            [f"{name}: not all of its query, key and value parts are there" for name in waiting]
        )


def to_transformers_config(config: Any) -> GlmConfig:
    """Return the configuration of `GlmForCausalLM` for a ChatGLM2/3 or GLM-4-9B configuration.

    Raises:
        ModelError: the model has no counterpart in transformers (ChatGLM-6B, biased layers).
    """
    family = family_of(config)
    if family.rope_ratio == "none" or config.add_bias_linear:
        raise ModelError(
            f"{family.title}: transformers has no class of its own for this model; "
            "keep the chatglm layout"
        )
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": config.rope_base,
        "partial_rotary_factor": 0.5,
    }
    if config.position_divisor != 1.0:
        rope.update(rope_type="linear", factor=config.position_divisor)
    return GlmConfig(
        vocab_size=config.padded_vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.multi_query_group_num,
        head_dim=config.kv_channels,
        attention_bias=config.add_qkv_bias,
        attention_dropout=0.0,
        hidden_act="silu",
        rms_norm_eps=config.layernorm_epsilon,
        max_position_embeddings=config.seq_length,
        rope_parameters=rope,
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        use_cache=config.use_cache,
        dtype=config.dtype,
        architectures=["GlmForCausalLM"],
    )


def to_chatglm_config(config: Any, name: str = "THUDM/glm-4-9b-chat") -> ChatGLMConfig:
    """Return the vendor's configuration for one of `GlmForCausalLM`.

    Args:
        config: a ``GlmConfig``.
        name: the original's hub id; it tells the generation.

    Raises:
        ModelError: the vendor's code has no counterpart for a setting.
    """
    rope = dict(config.rope_parameters)
    kind = rope.get("rope_type", "default")
    if config.model_type != "glm" or kind not in ("default", "linear"):
        raise ModelError(
            f"model_type {config.model_type!r} with rope_type {kind!r} has no form in the chatglm "
            "layout"
        )
    ratio = float(rope["factor"]) if kind == "linear" else float(rope["rope_theta"]) / 10000.0
    keys: dict[str, Any] = {
        "_name_or_path": name,
        "model_type": "chatglm",
        "architectures": ["ChatGLMModel"],
        "padded_vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.intermediate_size,
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "multi_query_group_num": config.num_key_value_heads,
        "kv_channels": config.head_dim,
        "add_qkv_bias": config.attention_bias,
        "layernorm_epsilon": config.rms_norm_eps,
        "seq_length": config.max_position_embeddings,
        "rope_ratio": int(ratio) if ratio.is_integer() else ratio,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "dtype": config.dtype,
    }
    made = ChatGLMConfig.from_dict(keys)
    meaning = "positions" if kind == "linear" else "base"
    if ratio != 1.0 and family_of(made).rope_ratio != meaning:
        raise ModelError(
            f"{name}: that generation's rope_ratio does not mean what rope_type {kind!r} of this "
            "model does; give the hub id of the model that these weights come from"
        )
    return made
