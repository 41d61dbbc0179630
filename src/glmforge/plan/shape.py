"""The numbers of a model that a plan needs, taken from its configuration.

Owns `ModelShape` and `shape_of`; counting is ``models/counts.py``'s. A shape holds plain numbers,
so that the account and the advisor run without torch and can be asked about any card.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glmforge.errors import ModelError
from glmforge.models.counts import Experts, LinearShape, take_census
from glmforge.models.families import Family, family_of

Block = Literal["chatglm", "glm", "split"]
"""Which layer code computes: ChatGLM-6B's, our GLM decoder's (fused projections), or one of
transformers' (separate q, k and v)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model in numbers (parameters are counts, widths are elements).

    ``layer_parameters`` are of one decoder layer; ``head`` is 0 where it is tied to the embedding.
    ``largest`` is the biggest single weight. ``norms`` are the norms of one layer.
    ``usual_targets`` is what LoRA adapts where nothing else is asked for. ``linears`` are of one
    layer, of the kind that most are; ``everywhere`` counts them over all layers. ``inner`` is the
    width of an MLP that all tokens go through, 0 where experts take its place. ``head_norms``:
    queries and keys are normed.
    """

    family: Family
    block: Block
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    embedding: int
    head: int
    layer_parameters: int
    parameters: int
    norms: int
    linears: tuple[LinearShape, ...]
    everywhere: tuple[tuple[LinearShape, int], ...]
    usual_targets: tuple[str, ...]
    experts: Experts | None = None
    head_norms: bool = False

    @property
    def query_width(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_width

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate (SwiGLU) besides its up projection."""
        named = any("gate" in linear.name for linear in self.linears)
        return self.block == "glm" or (self.block == "split" and named)

    @property
    def largest(self) -> int:
        """Elements of the biggest single weight."""
        linear = max(one.in_features * one.out_features for one, _ in self.everywhere)
        stacked = max(self.experts.weights) if self.experts else 0
        return max(linear, stacked, self.embedding)

    @property
    def linear_elements(self) -> int:
        """Elements of the weight matrices of all layers' linear layers, experts left out."""
        return sum(one.in_features * one.out_features * count for one, count in self.everywhere)

    @property
    def matrix_parameters(self) -> int:
        """Weights that each token is multiplied with: all layers, its experts, and the head."""
        chosen = 0
        if self.experts is not None:
            stacked = self.experts.layers * sum(self.experts.weights)
            chosen = stacked * self.experts.per_token // self.experts.number
        return self.linear_elements + chosen + self.vocabulary * self.hidden

    def lora_parameters(self, targets: Sequence[str], rank: int) -> int:
        """Return what LoRA of this rank adds on the linear layers called `targets`."""
        return sum(
            count * rank * (one.in_features + one.out_features)
            for one, count in self.everywhere
            if one.name in targets
        )

    def lora_outputs(self, targets: Sequence[str]) -> int:
        """Return the rows of the linear layers called `targets`: DoRA's magnitudes."""
        named = ((one, count) for one, count in self.everywhere if one.name in targets)
        return sum(one.out_features * count for one, count in named)


def shape_of(config: Any) -> ModelShape:
    """Read the shape of a model's configuration (ours, or one of transformers').

    Raises:
        ModelError: it is of no decoder with attention, or of weights that are quantised already.
    """
    family = family_of(config)
    _check_countable(config)
    census = take_census(config)
    counts, linears = census.counts, census.linears
    heads = config.num_attention_heads
    layers = config.num_hidden_layers
    in_layers = counts.total - counts.embedding - counts.head
    is_first = family.name == "chatglm"
    return ModelShape(
        family=family,
        block="chatglm" if is_first else "glm" if family.model_type == "chatglm" else "split",
        layers=layers,
        hidden=config.hidden_size,
        inner=_inner_width(config, linears, census.experts),
        heads=heads,
        kv_heads=heads if is_first else getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        embedding=counts.embedding,
        head=counts.head,
        layer_parameters=in_layers // layers,
        parameters=counts.total,
        norms=4 if family.model_type == "glm4" else 2,
        linears=linears,
        everywhere=census.everywhere,
        usual_targets=census.usual_targets,
        experts=census.experts,
        head_norms=census.head_norms,
    )


def _check_countable(config: Any) -> None:
    """Refuse a model that the account has no numbers for.

    Raises:
        ModelError: naming what is missing, or the quantisation that is there.
    """
    kind = getattr(config, "model_type", "")
    wanted = ("num_attention_heads", "num_hidden_layers", "hidden_size", "vocab_size")
    missing = [name for name in wanted if not isinstance(getattr(config, name, None), int)]
    if missing:
        raise ModelError(
            f"model_type {kind!r}: its config.json has no number {', '.join(missing)}; only "
            "decoders with attention heads can be planned and trained, choose another base"
        )
    found = getattr(config, "quantization_config", None)
    if found is not None:
        values = found if isinstance(found, dict) else found.to_dict()
        method = values.get("quant_method") or "some method"
        bits = f", {values['bits']} bits" if values.get("bits") else ""
        raise ModelError(
            f"model_type {kind!r}: these weights are quantised already ({method}{bits}), which "
            "cannot be trained here: take the base in 16 bits (method qlora makes it 4-bit itself)"
        )


def _inner_width(config: Any, linears: Sequence[LinearShape], experts: Experts | None) -> int:
    """Return the width of the MLP, from the layers themselves where the configuration is silent."""
    width = config.hidden_size
    if experts is not None:
        shared = [one.in_features for one in linears if one.name == "down_proj"]
        return max(shared, default=0)
    named = getattr(config, "intermediate_size", None)
    if named is not None:
        return int(named)
    return max(linear.in_features for linear in linears if linear.out_features == width)
