"""What a forward pass keeps for its backward pass, by layer and kind, in bytes a token.

Derived from the layer code (models/glm, models/chatglm, transformers' decoders): which tensors
autograd, or the partition of the compiled layer, keeps. Checked on torch 2.13 by listing every
saved storage of one layer (tests/unit/plan/test_activations.py repeats it). Pure arithmetic.

Letters in formulas: e bytes of an element, T tokens of the micro-batch, H hidden width, F MLP
width, D width of all query heads, K width of all key heads, V vocabulary rows, r LoRA rank.
"""

from dataclasses import dataclass

from glmforge.plan.dora import kept_outputs
from glmforge.plan.shape import ModelShape
from glmforge.plan.workload import Workload

HEAD_CHUNK_TOKENS = 4096
HEAD_CHUNK_LOGITS = 2**29
"""models/head.py: at most so many tokens, and so many logits, of the head exist at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One kind of tensor: bytes a token, and the formula that gave them."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBytes:
    """The end of the forward pass: logits of the chunks alive, and rows of the last hidden state.

    ``weight`` is the head's own gradient in fp32 (full parameters), ``formula`` says all three.
    """

    logits: int
    rows: int
    weight: int
    formula: str

    @property
    def total(self) -> int:
        """All bytes of the head."""
        return self.logits + self.rows + self.weight


def keeps_linear_inputs(work: Workload) -> bool:
    """Whether each linear layer keeps its input.

    Full parameters need it for the weight's gradient. Under ZeRO-3 DeepSpeed's own linear function
    (runtime/zero/linear.py, LinearFunctionForZeroStage3) keeps it for frozen weights too, unless
    the compiler traces through that function and drops what no gradient needs.
    """
    return not work.is_low_rank or (work.zero_stage == 3 and not work.compiled)


def layer_items(shape: ModelShape, work: Workload) -> tuple[Item, ...]:
    """List what one decoder layer keeps without checkpointing, in bytes a token."""
    items = [*_norm_items(shape, work), *_attention_items(shape, work), *_mlp_items(shape, work)]
    return tuple(items + _lora_items(shape, work))


def layer_bytes(shape: ModelShape, work: Workload) -> int:
    """Return the bytes a token that one layer keeps without checkpointing."""
    return sum(item.bytes for item in layer_items(shape, work))


def graph_layers(shape: ModelShape, work: Workload) -> int:
    """Return how many layers a backward pass goes through: the trained ones of method freeze."""
    return min(work.trained_layers, shape.layers) if work.method == "freeze" else shape.layers


def kept_bytes(shape: ModelShape, work: Workload) -> tuple[int, str]:
    """Return what all layers keep until their backward pass, in bytes, and the formula."""
    per_layer, layers = layer_bytes(shape, work), graph_layers(shape, work)
    again = -(-layers // work.checkpoint_every) if work.checkpointing else 0
    inputs = work.element * shape.hidden
    if again:
        text = f"{again} layers x T x eH (each layer's input; the rest is computed again)"
        if again < layers:
            text += f" + {layers - again} layers x T x {per_layer:,} bytes"
    else:
        text = f"{layers} layers x T x {per_layer:,} bytes (all that backward needs)"
    return work.tokens * (again * inputs + (layers - again) * per_layer), text


def _norm_items(shape: ModelShape, work: Workload) -> list[Item]:
    e, hidden = work.element, shape.hidden
    if shape.block == "chatglm":
        # The residual is the normed input, so that both norms keep what they read and gave.
        items = [
            Item(name="layer input", bytes=e * hidden, formula="eH"),
            Item(name="first norm's output", bytes=e * hidden, formula="eH"),
            Item(name="second norm's input", bytes=e * hidden, formula="eH"),
            Item(name="norm statistics", bytes=8, formula="8"),
        ]
        if keeps_linear_inputs(work):
            items.append(Item(name="second norm's output", bytes=e * hidden, formula="eH"))
        return items
    norms = shape.norms
    if work.compiled:
        # The middle residual of a layer with four norms is added up again, not kept.
        inputs = 3 if norms == 4 else norms
        items = [
            Item(name="norm inputs", bytes=inputs * e * hidden, formula=f"{inputs} eH"),
            Item(name="norm statistics", bytes=4 * norms, formula=f"4 x {norms}"),
        ]
    else:
        scaled = 0  # the normed values, which a trained norm weight needs
        if not work.is_low_rank:
            scaled = 4 if shape.block == "glm" else e
        items = [
            Item(
                name="norm inputs in fp32",
                bytes=norms * (4 + scaled) * hidden,
                formula=f"{norms} x {4 + scaled} H",
            ),
            Item(name="norm statistics", bytes=4 * norms, formula=f"4 x {norms}"),
        ]
    items.append(Item(name="attention's input", bytes=e * hidden, formula="eH"))
    if keeps_linear_inputs(work):
        items.append(Item(name="MLP's input", bytes=e * hidden, formula="eH"))
    return items


def _attention_items(shape: ModelShape, work: Workload) -> list[Item]:
    e, query, key = work.element, shape.query_width, shape.key_width
    items = [Item(name="rotated queries", bytes=e * query, formula="eD")]
    if work.packed and work.repeats_heads and key != query:
        items.append(Item(name="keys and values, repeated", bytes=2 * e * query, formula="2eD"))
    elif shape.block == "split":
        items.append(Item(name="keys and values", bytes=2 * e * key, formula="2eK"))
    else:
        # Values are a view of the fused product, which therefore stays whole.
        fused = query + 2 * key
        items.append(Item(name="rotated keys", bytes=e * key, formula="eK"))
        items.append(Item(name="query_key_value", bytes=e * fused, formula="e(D + 2K)"))
    if shape.head_norms:
        # Their inputs, as of the other norms, and one statistic a head.
        each = e if work.compiled else 4 if work.is_low_rank else 4 + e
        size = each * (query + key) + 4 * (shape.heads + shape.kv_heads)
        items.append(Item(name="norms of queries and keys", bytes=size, formula=f"{each} (D + K)"))
    items.append(Item(name="attention output", bytes=e * query, formula="eD"))
    if keeps_linear_inputs(work) and not work.packed:
        # The kernel answers head by head; the output projection reads, and keeps, a copy by token.
        items.append(Item(name="attention output by token", bytes=e * query, formula="eD"))
    items.append(Item(name="softmax sums", bytes=4 * shape.heads, formula="4 x heads"))
    return items


def _mlp_items(shape: ModelShape, work: Workload) -> list[Item]:
    e, inner = work.element, shape.inner
    if not shape.is_gated:
        items = [Item(name="MLP product before GELU", bytes=e * inner, formula="eF")]
    else:
        items = [Item(name="gate and up", bytes=2 * e * inner, formula="2eF")]
        if not work.compiled:
            items.append(Item(name="silu(gate)", bytes=e * inner, formula="eF"))
    if keeps_linear_inputs(work):
        items.append(Item(name="MLP product", bytes=e * inner, formula="eF"))
    return [*(item for item in items if inner), *_expert_items(shape, work)]


def _expert_items(shape: ModelShape, work: Workload) -> list[Item]:
    """List what a mixture keeps of the k experts that a token goes through.

    transformers 5.24's integrations/moe.py, `grouped_mm_experts_forward`: rows gathered by expert.
    """
    if shape.experts is None:
        return []
    e, k, inner = work.element, shape.experts.per_token, shape.experts.inner
    items = [
        Item(name="experts' gate and up", bytes=2 * e * k * inner, formula="2ekF"),
        Item(name="experts' silu(gate)", bytes=e * k * inner, formula="ekF"),
        Item(name="experts' answers", bytes=e * k * shape.hidden, formula="ekH (before weighting)"),
    ]
    if not work.is_low_rank:
        size = e * k * (shape.hidden + inner)
        items.append(Item(name="experts' inputs", bytes=size, formula="ek(H + F)"))
    return items


def _lora_items(shape: ModelShape, work: Workload) -> list[Item]:
    """List what adapters add: with dropout each keeps a mask and its own dropped input."""
    if not work.is_low_rank:
        return []
    e, kept = work.element, keeps_linear_inputs(work)
    chosen = [linear for linear in shape.linears if linear.name in work.lora_targets]
    items = [Item(name="LoRA A outputs", bytes=e * work.lora_r * len(chosen), formula="er each")]
    if work.use_dora:
        products = kept_outputs(shape, work)
        items.append(
            Item(name="DoRA's two products", bytes=products.bytes, formula=products.formula)
        )
    attention = {"query_key_value", "q_proj", "k_proj", "v_proj"}
    projections = [linear for linear in chosen if linear.name in attention]
    others = [linear for linear in chosen if linear.name not in attention]
    if work.lora_dropout > 0:
        masks = sum(linear.in_features for linear in chosen)
        items.append(Item(name="dropout masks", bytes=masks, formula="1 byte x input width each"))
        # The first adapter's dropped input stands in place of the attention's input, which
        # nothing else needs.
        own = [*projections[(0 if kept else 1) :], *others]
        copies = sum(linear.in_features for linear in own)
        items.append(Item(name="dropped inputs", bytes=e * copies, formula="e x input width each"))
        return items
    if kept:
        return items
    wide = {linear.in_features for linear in others if linear.in_features != shape.query_width}
    if any(linear.in_features == shape.hidden for linear in others):
        wide.add(shape.hidden)
    extra = sum(width for width in wide if width in (shape.hidden, shape.inner))
    reads_attention = any(linear.in_features == shape.query_width for linear in others)
    if reads_attention and not work.compiled and not work.packed:
        extra += shape.query_width  # the attention's answer by token, a copy
    items.append(Item(name="adapters' inputs", bytes=e * extra, formula="e x input width"))
    return items


def head_bytes(shape: ModelShape, work: Workload) -> HeadBytes:
    """Return what exists at the loss: one chunk of logits, or all logits and their copies."""
    e, tokens, rows = work.element, work.tokens, shape.vocabulary
    each, letter = (e, "e") if shape.block == "chatglm" else (4, "4")
    hidden = tokens * (each + 3 * e) * shape.hidden
    hidden_text = f"T({letter}H + 3eH) (last hidden rows)"
    if not shape.family.chunked_loss:
        logits = tokens * rows * (8 + 2 * e)
        return HeadBytes(
            logits=logits,
            rows=hidden,
            weight=0,
            formula="T V (e + 4 + 4 + e) (logits, fp32 copy, its gradient, theirs) + "
            + hidden_text,
        )
    chunk = max(1, min(HEAD_CHUNK_TOKENS, HEAD_CHUNK_LOGITS // rows))
    chunk = min(chunk, tokens)
    per_logit = 8  # fp32 logits and the exponentials of their sum
    weight = 0
    if work.method == "full":
        in_loop = chunk * rows * per_logit + 4 * rows * shape.hidden
        at_product = chunk * rows * (4 + (0 if e == 4 else e)) + 8 * rows * shape.hidden
        weight = max(in_loop, at_product) - chunk * rows * per_logit
    return HeadBytes(
        logits=chunk * rows * per_logit,
        rows=hidden,
        weight=weight,
        formula=f"{per_logit} x {chunk:,} x V (chunks of logits) + {hidden_text}"
        + (" + the head's gradient in fp32" if weight else ""),
    )


def backward_workspace(shape: ModelShape, work: Workload) -> tuple[int, str]:
    """Return what the backward pass of one layer needs beside what was kept, and the formula."""
    e, hidden, inner = work.element, shape.hidden, shape.inner
    gates = 2 if shape.is_gated else 1
    if shape.experts is not None:
        inner += shape.experts.per_token * shape.experts.inner
        gates = 2
    # Highest where the product of gate and up is taken apart: its gradient and those of both
    # factors, while all that the layer kept is still there.
    rows = 2 if work.compiled else 1
    size = work.tokens * (e * (1 + gates) * inner + rows * e * hidden)
    formula = f"T(e x {1 + gates}F + {rows}eH) (gradients inside one layer)"
    if work.method == "qlora":
        # A weight in 16 bit is there only while its own layer's product is computed.
        matrix = e * max(linear.in_features * linear.out_features for linear in shape.linears)
        product = work.tokens * e * (inner + hidden) + matrix
        if product > size:
            size, formula = product, "T(eF + eH) + e x largest linear weight (in 16 bit)"
    last = graph_layers(shape, work) - 1
    if work.checkpointing and last % work.checkpoint_every == 0:
        size += work.tokens * (layer_bytes(shape, work) - e * hidden)
        formula += " + the layer computed again"
    return size, formula
