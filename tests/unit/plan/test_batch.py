"""The batch equation: derived where left open, refused in words where it does not hold."""

from glmforge.plan.batch import BatchSizes, batch_sizes, check_total


def test_accumulation_is_one_for_packed_rows_and_eight_for_dialogues():
    """A packed row holds several dialogues already."""
    assert batch_sizes(2, "auto", 2, packing=True).global_batch == 4
    assert batch_sizes(2, "auto", 2, packing=False).global_batch == 32


def test_a_written_accumulation_is_kept():
    """What the user writes is never overridden."""
    assert batch_sizes(2, 4, 1, packing=True).accumulation == 4


def test_the_guides_example_holds():
    """2 GPUs, micro 2, accumulation 8 is a global batch of 32."""
    sizes = BatchSizes(micro_batch=2, accumulation=8, world_size=2)
    assert check_total(32, sizes) is None


def test_an_open_accumulation_is_derived_from_the_map_and_said():
    """The guides' file with accumulation left out: 32 / (2 x 2) = 8."""
    sizes = batch_sizes(2, "auto", 2, packing=True, user_map={"train_batch_size": 32})
    assert sizes.accumulation == 8
    assert "8 gradient_accumulation_steps (derived: 32 / 4) x 2 process(es) = 32" in (
        sizes.sentence()
    )
    theirs = {"train_batch_size": 32, "gradient_accumulation_steps": 8}
    assert "8 gradient_accumulation_steps (from deepspeed)" in (
        batch_sizes(2, "auto", 2, packing=True, user_map=theirs).sentence()
    )
    autos = {"train_batch_size": "auto", "gradient_accumulation_steps": "auto"}
    assert batch_sizes(2, "auto", 2, packing=True, user_map=autos).accumulation == 1
    assert batch_sizes(2, 1, 2, packing=True, user_map=theirs).accumulation == 1


def test_a_total_that_leaves_no_whole_accumulation_is_refused():
    """S01 3: 64 over 4 x 3."""
    sizes = batch_sizes(4, "auto", 3, packing=True, user_map={"train_batch_size": 64})
    assert sizes.accumulation == 1
    assert "60 (5 steps) or 72 (6 steps)" in (check_total(64, sizes) or "")


def test_a_wrong_total_is_refused_with_the_equation_and_three_ways_out():
    """The guides' example with accumulation 1 gives 4, not 32."""
    text = check_total(32, BatchSizes(micro_batch=2, accumulation=1, world_size=2))
    assert text is not None
    assert "x 2 process(es) = 4" in text
    assert "train_batch_size: 4" in text
    assert "gradient_accumulation_steps: 8" in text
    assert "16 process(es)" in text


def test_a_total_that_does_not_divide_names_the_nearest_that_do():
    """64 rows over 4 x 3: 60 and 72 would work."""
    text = check_total(64, BatchSizes(micro_batch=4, accumulation=5, world_size=3))
    assert text is not None
    assert "60 (5 steps)" in text
    assert "72 (6 steps)" in text


def test_a_way_out_is_named_once() -> None:
    """3 rows of 2 x 2: the nearest total is the run's own, 4."""
    text = check_total(3, BatchSizes(micro_batch=2, accumulation=1, world_size=2)) or ""
    assert "train_batch_size: 4 (or leave it out), or start a number of processes" in text
    assert "(1 step" not in text
    assert "4 (1 step) or 8 (2 steps)" in (
        check_total(5, BatchSizes(micro_batch=2, accumulation=4, world_size=2)) or ""
    )
