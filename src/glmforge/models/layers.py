"""The decoder layers of any loaded model: where they are, trained, compiled, and recomputed.

Owns the switches of the training path that act on layers. Per-layer compilation is the fused
path on GPU (measured: it takes most of what a hand-written layer gives); it replaces no module
and no name, so that state dicts, adapters and hooks stay as they are.
"""

from typing import Any

import torch
from torch import Tensor, nn

from glmforge.distributed.zero import full_shape
from glmforge.errors import ModelError


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the decoder layers in order, also of a model wrapped by PEFT.

    Raises:
        ModelError: the model has no list of layers.
    """
    return list(_stack(model)[1])


def _stack(model: Any) -> tuple[nn.Module, nn.ModuleList]:
    """Return the list of decoder layers and the module that holds it."""
    names = getattr(model, "_no_split_modules", None) or ()
    for holder in model.modules():
        for layers in holder.children():
            if not isinstance(layers, nn.ModuleList) or len(layers) == 0:
                continue
            kinds = {type(layer).__name__ for layer in layers}
            if kinds <= set(names) or (not names and len(kinds) == 1):
                return holder, layers
    raise ModelError(f"{type(model).__name__} has no list of decoder layers that could be found")


def train_last_layers(model: Any, num_layers: int) -> None:
    """Freeze all but the last `num_layers` decoder layers and the norm after them.

    Embeddings and language head stay frozen, tied or not.
    """
    holder, layers = _stack(model)
    norms = [
        child
        for child in holder.children()
        if child is not layers and all(len(full_shape(p)) == 1 for p in child.parameters())
    ]
    model.requires_grad_(False)
    for module in (*list(layers)[-num_layers:], *norms):
        module.requires_grad_(True)


def compile_layers(model: Any) -> None:
    """Compile each decoder layer in place (``nn.Module.compile``); it happens at the first call.

    Call it after adapters are put in and checkpointing is chosen. Row lengths may vary. In torch's
    deterministic mode no kernel is chosen by timing, where this torch can be told so.
    """
    options = None
    if torch.are_deterministic_algorithms_enabled():
        known = torch._inductor.list_options()  # type: ignore[no-untyped-call]
        options = {"deterministic": True} if "deterministic" in known else None
    for layer in decoder_layers(model):
        layer.compile(options=options)


def checkpoint_layers(model: Any, every: int = 1) -> None:
    """Keep only each layer's input in forward and compute the layer again in backward.

    The recomputation is of the non-reentrant kind, which works with a frozen base.

    Args:
        model: any model of transformers, wrapped by PEFT or not.
        every: do so for the first of so many layers only (1: for all of them).
    """
    # transformers 5.24 renamed the switch; the old name goes when the lower bound is 5.24.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    for number, layer in enumerate(decoder_layers(model)):
        if number % every:
            layer.gradient_checkpointing = False  # type: ignore[assignment]


def add_embedding_noise(model: nn.Module, alpha: float) -> None:
    """Add uniform noise of size alpha / sqrt(tokens x width) to embeddings, in training only.

    NEFTune (Jain et al., arXiv 2310.05914). In packed rows `tokens` are those of each document, in
    single rows those of the row, padding included, as in transformers' own hook.

    Args:
        model: what the trainer calls; gets the bounds of documents as ``cu_seq_lens_q``.
        alpha: 5 to 15 in the paper.
    """
    bounds: list[Any] = [None]

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bounds[0] = kwargs.get("cu_seq_lens_q")

    def disturb(embedding: nn.Module, _: tuple[Any, ...], output_BTD: Tensor) -> Tensor | None:
        if not embedding.training:
            return None
        num_rows, num_tokens, width = output_BTD.shape
        if bounds[0] is None:
            tokens: Any = num_tokens
        else:
            lengths = bounds[0].diff().long()
            tokens = lengths.repeat_interleave(lengths, output_size=num_rows * num_tokens)
            tokens = tokens.view(num_rows, num_tokens, 1)
        noise = torch.empty_like(output_BTD).uniform_(-1.0, 1.0)
        size = alpha * torch.as_tensor(tokens * width, device=noise.device).rsqrt()
        return output_BTD + noise * size.to(noise.dtype)

    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    model.register_forward_pre_hook(note, with_kwargs=True)
    embeddings.register_forward_hook(disturb)
