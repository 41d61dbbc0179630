"""Rows of examples to tensors: padding, document boundaries, token counts.

Packed batches carry positions that restart at each document and the documents' boundaries over
the flattened batch, under the names transformers' attention knows. The padding at a row's end is
a document of its own, so no real token ever sees it. Plain batches are padded on the right and
need no mask in a causal model; padding on the left is for other programs and brings its mask.
Shapes: B rows, T tokens a row, D documents of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glmforge.data.examples import Example
from glmforge.data.segments import IGNORED

Documents = Sequence[Example]
Side = Literal["right", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch.

    ``input_ids``, ``labels`` [B, T] int64 (labels unshifted, -100 untrained); ``position_ids``
    [B, T] int64 and ``cu_seq_lens`` [D + 1] int32 over B * T tokens, for packed batches only.
    ``tokens`` counts what is neither padding nor filler, ``trained_tokens`` the labels;
    ``row_lengths`` are the rows' tokens without padding.
    """

    input_ids: Tensor
    labels: Tensor
    tokens: int
    trained_tokens: int
    position_ids: Tensor | None = None
    cu_seq_lens: Tensor | None = None
    max_length: int | None = None
    row_lengths: tuple[int, ...] = ()
    padding_side: Side = "right"

    @property
    def attention_mask(self) -> Tensor:
        """1 for tokens and 0 for padding, [B, T] int64."""
        places_T = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        lengths_B = torch.tensor(self.row_lengths, device=self.input_ids.device)[:, None]
        if self.padding_side == "left":
            return (places_T >= len(places_T) - lengths_B).long()
        return (places_T < lengths_B).long()

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device; copies from pinned memory run beside the computation."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            position_ids=moved(self.position_ids),
            cu_seq_lens=moved(self.cu_seq_lens),
        )

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments of the model's forward (``num_items_in_batch`` is the loop's)."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "labels": self.labels}
        if self.padding_side == "left":
            inputs["attention_mask"] = self.attention_mask
        if self.position_ids is not None:
            inputs |= {
                "position_ids": self.position_ids,
                "cu_seq_lens_q": self.cu_seq_lens,
                "cu_seq_lens_k": self.cu_seq_lens,
                "max_length_q": self.max_length,
                "max_length_k": self.max_length,
            }
        return inputs


def collate(
    rows: Sequence[Documents],
    *,
    packed: bool,
    pad_id: int = 0,
    pad_to: int | None = None,
    pad_to_multiple_of: int = 1,
    fillers: int = 0,
    padding_side: Side = "right",
) -> Batch:
    """Lay rows into tensors.

    Args:
        rows: for each row its documents, one after another.
        packed: write positions and document boundaries.
        pad_id: token id of padding; its label is -100 and nothing looks at it.
        pad_to: row length in tokens; None for the longest row.
        pad_to_multiple_of: round the row length up to a multiple of this.
        fillers: how many rows at the end are fillers: they train nothing and count nothing.
        padding_side: "left" pads plain rows at their beginning.
    """
    assert padding_side == "right" or not packed, "packed rows are padded on the right"
    lengths = [sum(len(document.input_ids) for document in row) for row in rows]
    width = pad_to if pad_to is not None else max(lengths)
    width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    assert max(lengths) <= width, f"a row of {max(lengths)} tokens does not fit {width}"
    input_ids_BT = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels_BT = np.full((len(rows), width), IGNORED, dtype=np.int64)
    positions_BT = np.zeros((len(rows), width), dtype=np.int64)
    documents: list[int] = []  # lengths, padding included, over the flattened batch
    real = len(rows) - fillers
    for number, row in enumerate(rows):
        at = width - lengths[number] if padding_side == "left" else 0
        for document in row:
            length = len(document.input_ids)
            input_ids_BT[number, at : at + length] = document.input_ids
            if number < real:
                labels_BT[number, at : at + length] = document.labels
            positions_BT[number, at : at + length] = np.arange(length)
            documents.append(length)
            at += length
        if at < width:
            positions_BT[number, at:] = np.arange(width - at)
            documents.append(width - at)
    boundaries = np.concatenate([[0], np.cumsum(documents)]).astype(np.int32)
    return Batch(
        input_ids=torch.from_numpy(input_ids_BT),
        labels=torch.from_numpy(labels_BT),
        tokens=sum(lengths[:real]),
        trained_tokens=int((labels_BT != IGNORED).sum()),
        position_ids=torch.from_numpy(positions_BT) if packed else None,
        cu_seq_lens=torch.from_numpy(boundaries) if packed else None,
        max_length=max(documents) if packed else None,
        row_lengths=tuple(lengths),
        padding_side=padding_side,
    )
