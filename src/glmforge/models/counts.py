"""Parameters of a model by group, from its configuration alone.

Owns the arithmetic that the plan and ``inspect`` share: linear layers with their shapes, and the
sums by group. No weight is read and, for the families of the table, no module is built; another
model is counted on the meta device.
"""

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

from glmforge.models.families import family_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """One linear layer of a decoder layer, by its module name."""

    name: str
    in_features: int
    out_features: int
    bias: bool

    @property
    def parameters(self) -> int:
        """Weights and bias."""
        return self.out_features * (self.in_features + self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters of a whole model. A tied head counts with the embedding, so ``head`` is 0."""

    embedding: int
    attention: int
    mlp: int
    norm: int
    head: int
    other: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return sum((self.embedding, self.attention, self.mlp, self.norm, self.head, self.other))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a mixture, in one layer that has them.

    ``weights`` are elements of each stacked weight (all experts in one tensor); a token goes
    through ``per_token`` of ``number`` experts, each ``inner`` wide. ``layers`` have some.
    """

    number: int
    per_token: int
    inner: int
    weights: tuple[int, ...]
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What is counted of a model: parameters by group, its linear layers, LoRA's usual targets.

    ``linears`` are of one decoder layer, of the kind that most layers are; ``everywhere`` lists the
    linear layers of all of them, each with the number of layers that have it. ``head_norms``:
    queries and keys are normed (Qwen3, Gemma3, OLMo2).
    """

    counts: ParameterCounts
    linears: tuple[LinearShape, ...]
    everywhere: tuple[tuple[LinearShape, int], ...]
    usual_targets: tuple[str, ...]
    experts: Experts | None = None
    head_norms: bool = False


_ATTENTION = ("query_key_value", "dense", "q_proj", "k_proj", "v_proj", "o_proj")
_FUSED = ("query_key_value", "qkv_proj", "Wqkv", "c_attn")
"""What transformers' decoders call queries, keys and values in one layer. PEFT's own table says the
same of those that it knows (tests hold it), but costs a plan as much as its whole arithmetic."""


def take_census(config: Any) -> Census:
    """Count a model once; one outside the table is built on the meta device once."""
    family = family_of(config)
    if family.model_type:
        linears = _linears_of_table(config)
        return Census(
            counts=_count_of_table(config),
            linears=linears,
            everywhere=tuple((linear, config.num_hidden_layers) for linear in linears),
            usual_targets=family.lora_targets,
        )
    model = _on_meta(config)
    by_layer = _linears_on_meta(model)
    usual = Counter(by_layer).most_common(1)[0][0]
    return Census(
        counts=_count_on_meta(model),
        linears=usual,
        everywhere=tuple(Counter(linear for layer in by_layer for linear in layer).items()),
        usual_targets=_foreign_targets(config, usual),
        experts=_experts_on_meta(model, config),
        head_norms=any(path.endswith("q_norm") for path, _ in model.named_modules()),
    )


def layer_linears(config: Any) -> tuple[LinearShape, ...]:
    """Return the linear layers of one decoder layer; a model outside the table is built empty."""
    if family_of(config).model_type:
        return _linears_of_table(config)
    return Counter(_linears_on_meta(_on_meta(config))).most_common(1)[0][0]


def _linears_of_table(config: Any) -> tuple[LinearShape, ...]:
    family = family_of(config)
    width, inner = config.hidden_size, getattr(config, "intermediate_size", 0)

    def linear(name: str, inputs: int, outputs: int, bias: bool) -> LinearShape:
        return LinearShape(name=name, in_features=inputs, out_features=outputs, bias=bias)

    if family.name == "chatglm":
        return (
            linear("query_key_value", width, 3 * width, True),
            linear("dense", width, width, True),
            linear("dense_h_to_4h", width, inner, True),
            linear("dense_4h_to_h", inner, width, True),
        )
    query = config.num_attention_heads * config.head_dim
    group = config.num_key_value_heads * config.head_dim
    if family.model_type == "chatglm":
        plain = config.add_bias_linear
        return (
            linear("query_key_value", width, query + 2 * group, plain or config.add_qkv_bias),
            linear("dense", query, width, plain),
            linear("dense_h_to_4h", width, 2 * inner, plain),
            linear("dense_4h_to_h", inner, width, plain),
        )
    return (
        linear("q_proj", width, query, config.attention_bias),
        linear("k_proj", width, group, config.attention_bias),
        linear("v_proj", width, group, config.attention_bias),
        linear("o_proj", query, width, False),
        linear("gate_up_proj", width, 2 * inner, False),
        linear("down_proj", inner, width, False),
    )


def usual_lora_targets(config: Any) -> tuple[str, ...]:
    """Return the linear layers that LoRA adapts where nothing else is asked for.

    A family's own row; for another model its query, key and value projections, apart or in one
    layer, else every linear layer.
    """
    family = family_of(config)
    if family.model_type:
        return family.lora_targets
    return _foreign_targets(config, layer_linears(config))


def _foreign_targets(config: Any, linears: tuple[LinearShape, ...]) -> tuple[str, ...]:
    family = family_of(config)
    names = tuple(dict.fromkeys(linear.name for linear in linears))
    if set(family.lora_targets) <= set(names):
        return family.lora_targets
    return tuple(name for name in names if name in _FUSED) or names


def count_parameters(config: Any) -> ParameterCounts:
    """Return the parameters of a model by group."""
    if family_of(config).model_type:
        return _count_of_table(config)
    return _count_on_meta(_on_meta(config))


def _count_of_table(config: Any) -> ParameterCounts:
    family = family_of(config)
    linears = _linears_of_table(config)
    layers, width = config.num_hidden_layers, config.hidden_size
    # LayerNorm has a bias, RMSNorm has none; Glm4 has two more norms a layer.
    norms_a_layer = 4 if family.model_type == "glm4" else 2
    norm_width = 2 * width if family.name == "chatglm" else width
    rows = config.vocab_size * width
    return ParameterCounts(
        embedding=rows,
        attention=layers * sum(x.parameters for x in linears if x.name in _ATTENTION),
        mlp=layers * sum(x.parameters for x in linears if x.name not in _ATTENTION),
        norm=(layers * norms_a_layer + 1) * norm_width,
        head=0 if config.tie_word_embeddings else rows,
    )


def count_lora_parameters(config: Any, targets: tuple[str, ...], rank: int) -> int:
    """Return what LoRA of this rank adds on the linear layers called ``targets``."""
    per_layer = sum(
        rank * (shape.in_features + shape.out_features)
        for shape in layer_linears(config)
        if shape.name in targets
    )
    return int(config.num_hidden_layers * per_layer)


def _on_meta(config: Any) -> Any:
    """Build a model of transformers on no memory."""
    import torch

    from glmforge.models.foreign import class_for

    with torch.device("meta"):
        return class_for(config)(copy.deepcopy(config))


def _linears_on_meta(model: Any) -> list[tuple[LinearShape, ...]]:
    """Return the linear layers of each decoder layer, by the last part of their names."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    from glmforge.models.layers import decoder_layers

    every = []
    for layer in decoder_layers(model):
        found = []
        for path, module in layer.named_modules():
            if not isinstance(module, nn.Linear | Conv1D):
                continue
            rows, columns = module.weight.shape
            # GPT-2's Conv1D keeps its weight the other way round.
            inputs, outputs = (columns, rows) if isinstance(module, nn.Linear) else (rows, columns)
            found.append(
                LinearShape(
                    name=path.rpartition(".")[2],
                    in_features=inputs,
                    out_features=outputs,
                    bias=module.bias is not None,
                )
            )
        every.append(tuple(found))
    return every


def _experts_on_meta(model: Any, config: Any) -> Experts | None:
    """Return the experts of a model: stacked weights, one tensor for all experts of a layer."""
    from glmforge.models.layers import decoder_layers

    stacks = []
    for layer in decoder_layers(model):
        found = [parameter for parameter in layer.parameters() if parameter.dim() == 3]
        # GPT-2's kin have none; a stack has the number of experts first.
        stacks += [found] if found else []
    if not stacks:
        return None
    number = int(stacks[0][0].shape[0])
    names = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    widths = [getattr(config, name, None) for name in names]
    counts = [getattr(config, name, None) for name in ("num_experts_per_tok", "moe_topk", "top_k")]
    return Experts(
        number=number,
        per_token=next((one for one in counts if isinstance(one, int)), number),
        inner=next((one for one in widths if isinstance(one, int)), 0),
        weights=tuple(weight.numel() for weight in stacks[0]),
        layers=len(stacks),
    )


def _count_on_meta(model: Any) -> ParameterCounts:
    embedding = model.get_input_embeddings().weight
    head = getattr(model.get_output_embeddings(), "weight", embedding)
    total = sum(parameter.numel() for parameter in model.parameters())
    head_size = 0 if head is embedding else head.numel()
    return ParameterCounts(
        embedding=embedding.numel(),
        attention=0,
        mlp=0,
        norm=0,
        head=head_size,
        other=total - embedding.numel() - head_size,
    )
