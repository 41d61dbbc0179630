"""What the graph of a forward pass holds after it, for the tests of the plan."""

import weakref
from typing import Any

import torch
from torch import nn


class Kept:
    """A saved tensor, for as long as the graph holds it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def kept_bytes(
    layer: nn.Module, hidden: torch.Tensor, others: tuple[Any, ...], row_tokens: int
) -> int:
    """Return the bytes of storages that a backward pass needs, parameters and softmax left out."""
    left_out = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    found: list[weakref.ref[Kept]] = []

    def pack(tensor: torch.Tensor) -> Kept:
        kept = Kept(tensor)
        found.append(weakref.ref(kept))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        result = layer(hidden, *others)
    alive = [kept.tensor for kept in (one() for one in found) if kept is not None]
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in alive
        if tensor.untyped_storage().data_ptr() not in left_out and tensor.shape[-1] != row_tokens
    }
    assert result is not None
    return sum(storages.values())
