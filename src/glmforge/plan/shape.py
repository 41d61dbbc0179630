"""The numbers of a model that a plan needs, taken from its configuration.

Owns `ModelShape` and `shape_of`; counting is ``models/counts.py``'s. A shape holds plain numbers,
so that the account and the advisor run without torch and can be asked about any card.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glmforge.errors import ModelError
from glmforge.models.counts import LinearShape, take_census
from glmforge.models.families import Family, family_of

Block = Literal["chatglm", "glm", "split"]
"""Which layer code computes: ChatGLM-6B's, our GLM decoder's (fused projections), or one of
transformers' (separate q, k and v)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One model in numbers (parameters are counts, widths are elements).

    ``layer_parameters`` are of one decoder layer; ``head`` is 0 where it is tied to the embedding.
    ``largest`` is the biggest single weight. ``norms`` are the norms of one layer.
    ``usual_targets`` is what LoRA adapts where nothing else is asked for.
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
    usual_targets: tuple[str, ...]

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
        linear = max(shape.in_features * shape.out_features for shape in self.linears)
        return max(linear, self.embedding)

    @property
    def layer_linear(self) -> int:
        """Elements of the weight matrices of one layer."""
        return sum(shape.in_features * shape.out_features for shape in self.linears)

    @property
    def matrix_parameters(self) -> int:
        """Weights that each token is multiplied with: all layers and the head."""
        return self.layers * self.layer_linear + self.vocabulary * self.hidden

    def lora_parameters(self, targets: Sequence[str], rank: int) -> int:
        """Return what LoRA of this rank adds on the linear layers called `targets`."""
        return self.layers * sum(
            rank * (shape.in_features + shape.out_features)
            for shape in self.linears
            if shape.name in targets
        )

    def lora_outputs(self, targets: Sequence[str]) -> int:
        """Return the rows of the linear layers called `targets`: DoRA's magnitudes."""
        return self.layers * sum(one.out_features for one in self.linears if one.name in targets)


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
        inner=_inner_width(config, linears),
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
        usual_targets=census.usual_targets,
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


def _inner_width(config: Any, linears: Sequence[LinearShape]) -> int:
    """Return the width of the MLP, from the layers themselves where the configuration is silent."""
    named = getattr(config, "intermediate_size", None)
    if named is not None:
        return int(named)
    width = config.hidden_size
    return max(linear.in_features for linear in linears if linear.out_features == width)
