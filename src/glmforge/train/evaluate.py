"""Validation loss: every row exactly once, weighted by tokens, no logits kept.

Called by ``session`` between steps, on all ranks together. The rows are dealt by ``data.loader``;
the loss is the model's own chunked sum, so that memory stays that of one training forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glmforge.data import Batch
from glmforge.distributed.collectives import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean nll over all trained tokens of the validation rows, in nats per token."""

    loss: float
    tokens: int


def evaluate(engine: Any, batches: Sequence[Batch], ranks: Ranks) -> Evaluation:
    """Compute the validation loss over all ranks' batches.

    Args:
        engine: the DeepSpeed engine; left in evaluation mode.
        batches: this rank's share: the same number on every rank (ZeRO-3 gathers weights in each
            forward), filler rows having no trained token.
        ranks: all ranks.
    """
    engine.eval()
    nll = torch.zeros((), dtype=torch.float64, device=ranks.device)
    tokens = 0
    with torch.no_grad():
        for batch in batches:
            inputs = batch.to(ranks.device).model_inputs()
            nll += engine(**inputs, num_items_in_batch=1.0).loss.double()
            tokens += batch.trained_tokens
    sums = ranks.gather_floats([float(nll), float(tokens)])
    total = int(sum(row[1] for row in sums))
    return Evaluation(loss=sum(row[0] for row in sums) / max(1, total), tokens=total)
