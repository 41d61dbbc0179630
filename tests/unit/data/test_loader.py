"""The order of rows, their split over ranks, and what a packed batch looks like."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import BatchPlan, Example, ExampleList, collate, eval_batches, pack, unpacked
from glmforge.data.loader import deal


def example(length, first=1):
    ids = np.arange(first, first + length, dtype=np.int32)
    labels = ids.copy()
    labels[: max(1, length // 2)] = -100
    return Example(input_ids=ids, labels=labels, source=f"x:{length}")


def examples_of(lengths):
    """Every example begins with a token that no other example holds."""
    return ExampleList(
        example(length, first=1 + 1000 * number) for number, length in enumerate(lengths)
    )


def documents_of(batch):
    """First tokens of the documents of a batch that train something."""
    if batch.cu_seq_lens is None:
        rows = batch.input_ids
        trained = (batch.labels != -100).any(dim=1)
        return [int(row[0]) for row, real in zip(rows, trained) if real]
    flat, labels = batch.input_ids.flatten(), batch.labels.flatten()
    bounds = batch.cu_seq_lens.tolist()
    return [
        int(flat[start])
        for start, end in itertools.pairwise(bounds)
        if (labels[start:end] != -100).any()
    ]


LENGTHS = st.lists(st.integers(min_value=3, max_value=40), min_size=1, max_size=60)
SPLITS = [(1, 1, 12), (1, 12, 1), (2, 3, 2), (3, 2, 2), (4, 3, 1), (6, 1, 2)]


@given(lengths=LENGTHS, seed=st.integers(0, 5), packed=st.booleans(), split=st.sampled_from(SPLITS))
def test_all_ranks_together_see_every_row_of_an_epoch_exactly_once(lengths, seed, packed, split):
    world, accumulation, micro = split
    examples = examples_of(lengths)
    rows = pack(examples.lengths, 64, seed) if packed else unpacked(len(examples))
    plan = BatchPlan(examples, rows, global_batch=12, seed=seed, packed=packed)
    seen = []
    trained = 0
    for step in range(plan.steps_per_epoch):
        stepped = 0
        for rank in range(world):
            batches = plan.rank_batches(
                1, step, rank=rank, world_size=world, micro_batch=micro, accumulation=accumulation
            )
            assert accumulation == len(batches.micro_batches)
            for batch in batches.micro_batches:
                assert micro == len(batch.input_ids)
                seen += documents_of(batch)
                stepped += batch.trained_tokens
        assert stepped == batches.trained_tokens
        trained += stepped
    assert [1 + 1000 * number for number in range(len(lengths))] == sorted(seen)
    assert trained == int(examples.trained_counts.sum())


@given(lengths=LENGTHS, seed=st.integers(0, 5))
def test_a_steps_rows_do_not_depend_on_ranks_micro_batches_or_accumulation(lengths, seed):
    examples = examples_of(lengths)
    plan = BatchPlan(examples, unpacked(len(examples)), global_batch=12, seed=seed)
    for step in range(plan.steps_per_epoch):
        sets = []
        for world, accumulation, micro in SPLITS:
            found = []
            for rank in range(world):
                part = plan.rank_batches(
                    0, step, rank=rank, world_size=world, micro_batch=micro,
                    accumulation=accumulation,
                )  # fmt: skip
                found += [first for batch in part.micro_batches for first in documents_of(batch)]
            sets.append(sorted(found))
        assert all(found == sets[0] for found in sets)


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    examples = examples_of(range(3, 53))
    rows = unpacked(50)

    def orders(seed):
        plan = BatchPlan(examples, rows, global_batch=8, seed=seed)
        return [[plan.step_rows(epoch, step) for step in range(7)] for epoch in (1, 0, 1)]

    first = orders(3)
    assert first == orders(3)
    assert first[0] == first[2]
    assert first[0] != first[1]
    assert first != orders(4)
    assert [len(step) for step in first[0]] == [8, 8, 8, 8, 8, 8, 2]


def test_grouped_order_covers_the_epoch_once_and_wastes_less():
    random = np.random.default_rng(0)
    examples = examples_of(random.integers(3, 400, size=333))
    rows = unpacked(333)
    waste = {}
    for order in ("shuffled", "grouped"):
        plan = BatchPlan(examples, rows, global_batch=8, seed=1, order=order)
        steps = [plan.step_rows(2, step) for step in range(plan.steps_per_epoch)]
        assert list(range(333)) == sorted(row for step in steps for row in step)
        widths = [max(examples.lengths[row] for row in step) * len(step) for step in steps]
        waste[order] = sum(widths) - int(examples.lengths.sum())
    assert waste["grouped"] < 0.2 * waste["shuffled"]


def test_ranks_carry_about_the_same_tokens_within_a_step():
    random = np.random.default_rng(0)
    examples = examples_of(random.integers(100, 1000, size=64))
    plan = BatchPlan(examples, unpacked(64), global_batch=64, seed=0, packed=True)
    loads = [
        sum(
            batch.tokens
            for batch in plan.rank_batches(
                0, 0, rank=rank, world_size=4, micro_batch=8, accumulation=2
            ).micro_batches
        )
        for rank in range(4)
    ]
    assert max(loads) - min(loads) < 0.01 * sum(loads) / 4


def test_padded_slots_hold_neighbours_in_length():
    assert deal([5, 40, 2, 20, 50, 1], slots=3, capacity=2, by_length=True) == [
        [4, 1],
        [3, 0],
        [2, 5],
    ]


def test_packed_positions_restart_and_boundaries_name_every_document():
    batch = collate([[example(4), example(3, 100)], [example(5, 200)]], packed=True, pad_to=9)
    assert (batch.position_ids.tolist()) == [
        [0, 1, 2, 3, 0, 1, 2, 0, 1],
        [0, 1, 2, 3, 4, 0, 1, 2, 3],
    ]
    assert batch.cu_seq_lens.tolist() == [0, 4, 7, 9, 14, 18]
    assert batch.cu_seq_lens.dtype == torch.int32
    assert batch.max_length == 5
    assert batch.tokens == 12
    assert {"input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k",
            "max_length_q", "max_length_k"} == set(batch.model_inputs())  # fmt: skip


@given(lengths=LENGTHS)
def test_the_first_label_of_every_document_is_untrained(lengths):
    examples = examples_of(lengths)
    rows = [[examples[i] for i in row] for row in pack(examples.lengths, 64, 0)]
    batch = collate(rows, packed=True)
    labels = batch.labels.flatten()
    assert all(labels[start] == -100 for start in batch.cu_seq_lens[:-1].tolist())


def test_padding_whose_id_is_a_real_token_leaves_labels_alone(shared):
    """Case L02: pad and stop share an id; labels are masked by place, not by value."""
    import json

    case = json.loads((shared / "cases/L02/batch.json").read_text(encoding="utf-8"))
    rows = [
        [Example(input_ids=np.int32(s["input_ids"]), labels=np.int32(s["labels"]), source="")]
        for s in case["samples"]
    ]
    batch = collate(rows, packed=False, pad_id=case["pad_id"], pad_to=7)
    assert batch.input_ids[0].tolist() == [1, 2, 5, 6, 9, 9, 9]
    assert batch.labels[0].tolist() == [-100, -100, -100, 6, 9, -100, -100]
    assert case["samples"][1]["labels"] == batch.labels[1].tolist()
    assert int((batch.labels == case["eos_id"]).sum()) == 2
    assert batch.trained_tokens == 6


def test_row_length_is_rounded_up_to_the_multiple_asked_for():
    assert tuple(collate([[example(9)]], packed=False, pad_to_multiple_of=8).input_ids.shape) == (
        1,
        16,
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_sees_every_row_once_in_equally_many_batches(packed, world):
    examples = examples_of([5, 9, 3, 30, 12, 7, 8])
    rows = pack(examples.lengths, 32, 0) if packed else unpacked(7)
    batches = [
        eval_batches(examples, rows, rank=rank, world_size=world, micro_batch=2, packed=packed)
        for rank in range(world)
    ]
    assert len({len(part) for part in batches}) == 1
    seen = [first for part in batches for batch in part for first in documents_of(batch)]
    assert [1 + 1000 * number for number in range(7)] == sorted(seen)


def test_a_filler_micro_batch_trains_nothing_and_counts_nothing():
    examples = examples_of([5, 6, 7])
    plan = BatchPlan(examples, unpacked(3), global_batch=8, seed=0)
    parts = [
        plan.rank_batches(0, 0, rank=rank, world_size=4, micro_batch=1, accumulation=2)
        for rank in range(4)
    ]
    batches = [batch for part in parts for batch in part.micro_batches]
    assert sorted(batch.tokens for batch in batches) == [0, 0, 0, 0, 0, 5, 6, 7]
    assert all(part.tokens == 18 for part in parts)
    assert all((b.labels == -100).all() for b in batches if b.tokens == 0)
