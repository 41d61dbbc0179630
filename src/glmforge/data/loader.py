"""Which rows a rank sees at a step, and in which micro-batch.

A step's set of rows is a pure function of (seed, epoch, step, global batch), never of the number
of ranks or of micro-batches; a resumed run therefore needs no loader state. Within the step, rows
are dealt to (rank, micro-batch) slots so that all carry about the same tokens. Every rank gets
the same number of micro-batches by construction: what is missing is filled with rows that train
nothing. No row is repeated or left out in an epoch.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glmforge.data.collate import Batch, collate
from glmforge.data.examples import Example, Int64s
from glmforge.data.packing import PackedRows
from glmforge.data.segments import IGNORED

Order = Literal["shuffled", "grouped"]
_MEGABATCH_STEPS = 50  # rows of this many steps are sorted together by length in "grouped"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatches:
    """One rank's part of one optimizer step.

    ``trained_tokens`` and ``tokens`` are of the whole step on all ranks (fillers and padding not
    counted); the loss of the step is Σ nll / ``trained_tokens``.
    """

    micro_batches: tuple[Batch, ...]
    trained_tokens: int
    tokens: int


class BatchPlan:
    """The order of a training set's rows, cut into steps."""

    def __init__(
        self,
        examples: Sequence[Example],
        rows: PackedRows,
        *,
        global_batch: int,
        seed: int,
        packed: bool | None = None,
        pad_id: int = 0,
        pad_to_multiple_of: int = 1,
        order: Order = "shuffled",
    ) -> None:
        """Bind examples and rows.

        Args:
            examples: an ``ExampleList``, a prepared set, or any sequence of examples.
            rows: indices of the examples of each row, from ``packing``.
            global_batch: rows of one optimizer step over all ranks.
            seed: of the shuffle.
            packed: write positions and boundaries; None does so when some row holds several.
            pad_id: token id of padding.
            pad_to_multiple_of: round row lengths up to a multiple of this.
            order: "grouped" puts rows of like length into one step (less padding).
        """
        assert global_batch > 0, "a step needs at least one row"
        self._examples = examples
        self._rows = rows
        self._global_batch = global_batch
        self._seed = seed
        self._packed = any(len(row) > 1 for row in rows) if packed is None else packed
        self._pad_id = pad_id
        self._pad_to_multiple_of = pad_to_multiple_of
        self._order: Order = order
        lengths, trained = _sizes(examples)
        self.row_tokens: Int64s = np.array(
            [int(lengths[list(row)].sum()) for row in rows], np.int64
        )
        self._row_trained: Int64s = np.array(
            [int(trained[list(row)].sum()) for row in rows], np.int64
        )
        self._cached: tuple[int, Int64s] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps that cover every row once; the last may be short."""
        return -(-len(self._rows) // self._global_batch)

    def step_rows(self, epoch: int, step_in_epoch: int) -> list[int]:
        """Row indices of one step: a pure function of (seed, epoch, step, global batch)."""
        order = self._epoch_order(epoch)
        start = step_in_epoch * self._global_batch
        return [int(row) for row in order[start : start + self._global_batch]]

    def sources(self, epoch: int, step_in_epoch: int) -> list[str]:
        """Where the dialogues of one step come from, such as ``train.jsonl:17``."""
        rows = self.step_rows(epoch, step_in_epoch)
        return [document.source for row in rows for document in self._documents(row)]

    def rank_batches(
        self,
        epoch: int,
        step_in_epoch: int,
        *,
        rank: int,
        world_size: int,
        micro_batch: int,
        accumulation: int,
        pad_to: int | None = None,
    ) -> StepBatches:
        """One rank's micro-batches of a step, exactly ``accumulation`` of them.

        Args:
            epoch: 0-based.
            step_in_epoch: 0-based.
            rank: of this process.
            world_size: number of processes.
            micro_batch: rows of one micro-batch.
            accumulation: micro-batches of one step.
            pad_to: row length in tokens; None for the longest row of each micro-batch.
        """
        assert micro_batch * accumulation * world_size >= self._global_batch, "step does not fit"
        chosen = self.step_rows(epoch, step_in_epoch)
        slots = deal(
            [int(self.row_tokens[row]) for row in chosen],
            slots=world_size * accumulation,
            capacity=micro_batch,
            by_length=not self._packed,
        )
        filler = [self._filler(chosen)]
        batches = []
        for micro_step in range(accumulation):
            slot = slots[micro_step * world_size + rank]
            rows = [self._documents(chosen[index]) for index in slot]
            missing = micro_batch - len(rows)
            batches.append(
                collate(
                    [*rows, *([filler] * missing)],
                    packed=self._packed,
                    pad_id=self._pad_id,
                    pad_to=pad_to,
                    pad_to_multiple_of=self._pad_to_multiple_of,
                    fillers=missing,
                )
            )
        return StepBatches(
            micro_batches=tuple(batches),
            trained_tokens=int(self._row_trained[chosen].sum()),
            tokens=int(self.row_tokens[chosen].sum()),
        )

    def _epoch_order(self, epoch: int) -> Int64s:
        if self._cached is None or self._cached[0] != epoch:
            random = np.random.default_rng([self._seed, epoch])
            order = random.permutation(len(self._rows))
            if self._order == "grouped":
                order = self._grouped(order, random)
            self._cached = (epoch, order)
        return self._cached[1]

    def _grouped(self, order: Int64s, random: np.random.Generator) -> Int64s:
        """Sort stretches of the shuffled order by length, then shuffle the full steps."""
        stretch = self._global_batch * _MEGABATCH_STEPS
        parts = []
        for start in range(0, len(order), stretch):
            part = order[start : start + stretch]
            parts.append(part[np.argsort(-self.row_tokens[part], kind="stable")])
        joined = np.concatenate(parts) if parts else order
        full = len(joined) // self._global_batch * self._global_batch
        steps = joined[:full].reshape(-1, self._global_batch)
        return np.concatenate([random.permutation(steps).reshape(-1), joined[full:]])

    def _documents(self, row: int) -> list[Example]:
        return [self._examples[index] for index in self._rows[row]]

    def _filler(self, chosen: Sequence[int]) -> Example:
        """The first document of the step's shortest row; its labels are cleared by ``collate``.

        A real document, because ChatGLM-6B derives its mask from the control tokens in a row.
        """
        shortest = min(chosen, key=lambda row: int(self.row_tokens[row]))
        return self._examples[self._rows[shortest][0]]


def deal(
    tokens: Sequence[int], *, slots: int, capacity: int, by_length: bool = False
) -> list[list[int]]:
    """Spread items over slots so that the slots' tokens are about equal.

    Args:
        tokens: of every item.
        slots: number of slots; slot s belongs to rank s % world and micro-step s // world.
        capacity: most items of one slot.
        by_length: neighbours in length share a slot (padded rows: a slot costs its longest).

    Returns:
        Item indices of every slot; a pure function of the input.
    """
    assert len(tokens) <= slots * capacity, "more rows than places"
    order = sorted(range(len(tokens)), key=lambda index: (-tokens[index], index))
    dealt: list[list[int]] = [[] for _ in range(slots)]
    if by_length:
        per_slot = _even_shares(len(tokens), slots)
        at = 0
        for slot, share in enumerate(per_slot):
            dealt[slot] = order[at : at + share]
            at += share
        return dealt
    lightest = [(0, slot) for slot in range(slots)]  # a heap of (tokens, slot) with room
    for index in order:
        load, slot = heapq.heappop(lightest)
        dealt[slot].append(index)
        if len(dealt[slot]) < capacity:
            heapq.heappush(lightest, (load + tokens[index], slot))
    return dealt


def _even_shares(count: int, slots: int) -> list[int]:
    """Sizes that differ by at most one, the smaller ones first (there the longest rows stand)."""
    small, extra = divmod(count, slots)
    return [small] * (slots - extra) + [small + 1] * extra


def eval_batches(
    examples: Sequence[Example],
    rows: PackedRows,
    *,
    rank: int,
    world_size: int,
    micro_batch: int,
    packed: bool | None = None,
    pad_id: int = 0,
) -> list[Batch]:
    """One rank's batches of an evaluation: every row once over all ranks, equal in number.

    Args:
        examples: as for ``BatchPlan``.
        rows: as for ``BatchPlan``.
        rank: of this process.
        world_size: number of processes.
        micro_batch: rows of one batch.
        packed: as for ``BatchPlan``.
        pad_id: token id of padding.
    """
    if not rows:
        return []
    packed = any(len(row) > 1 for row in rows) if packed is None else packed
    lengths, _ = _sizes(examples)
    tokens = [int(lengths[list(row)].sum()) for row in rows]
    order = sorted(range(len(rows)), key=lambda index: (-tokens[index], index))
    shortest = rows[order[-1]][0]
    group = world_size * micro_batch
    batches = []
    for start in range(0, len(order), group):
        mine = order[start + rank * micro_batch : start + (rank + 1) * micro_batch]
        documents = [[examples[index] for index in rows[row]] for row in mine]
        missing = micro_batch - len(documents)
        filled = [*documents, *([[examples[shortest]]] * missing)]
        batches.append(collate(filled, packed=packed, pad_id=pad_id, fillers=missing))
    return batches


def _sizes(examples: Sequence[Example]) -> tuple[Int64s, Int64s]:
    """Lengths and trained tokens of all examples, without touching them where they are known."""
    lengths = getattr(examples, "lengths", None)
    trained = getattr(examples, "trained_counts", None)
    if lengths is None or trained is None:
        lengths = np.array([len(e.input_ids) for e in examples], np.int64)
        trained = np.array([int((e.labels != IGNORED).sum()) for e in examples], np.int64)
    return lengths, trained
