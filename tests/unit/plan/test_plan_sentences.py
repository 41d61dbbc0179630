"""What a plan says of a run: each sentence is true of the numbers beside it."""

import dataclasses
import re

from planned import FACTS, config, plan

from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.summary import summary_lines
from glmforge.plan.text import plan_json, plan_lines
from glmforge.plan.workload import beside


def test_a_trainers_block_of_autos_is_said_not_to_count() -> None:
    """A scheduler of the map is never dropped in silence."""
    block = {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}
    notes = "\n".join(plan(config(deepspeed={"scheduler": block})).notes)
    assert "deepspeed.scheduler leaves every value to the program" in notes
    assert "training.lr_scheduler_type=" in notes


def saved(*overrides: str) -> tuple[str, int]:
    found = plan(config(*overrides, "training.save_steps=5000"))
    (said,) = (text for text in found.warnings if "save_steps" in text)
    return said, found.checkpoints


def test_evaluations_that_write_checkpoints_are_said_and_counted() -> None:
    """1125 steps of 3 epochs: the epochs' ends, and every 100 steps, may be the best so far."""
    assert saved() == (
        "training.save_steps is 5000, but the run ends at step 1125: only the last checkpoint is "
        "written",
        1,
    )
    said, most = saved("data.validation=v.jsonl")
    assert "at the last step, and before it only where one of 2 evaluations (epochs' ends)" in said
    assert f"at most {most} lie on the disk" in said
    assert most == 3
    said, most = saved("data.validation=v.jsonl", "training.eval_steps=100")
    assert "one of 13 evaluations (epochs' ends, eval_steps 100) is the best so far" in said
    assert most == 4
    assert saved("data.validation=v.jsonl", "training.num_train_epochs=1")[1] == 1


OFFLOADED = "deepspeed={zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}"


def test_shorter_rows_are_advised_from_the_config_as_it_is_written() -> None:
    """What is needed before is what the plan says of the config, and the verdict is the plan's."""
    rows = "training.per_device_train_batch_size=4"
    found, half = (
        plan(config(rows, f"data.max_length={length}"), world_size=1, gib=16)
        for length in (2048, 1024)
    )
    needed = [one.written.account.needed_gib for one in (half, found)]
    (said,) = (text for text in found.ways_out if "max_length" in text)
    assert said == (
        f"data.max_length=1024 instead of 2048, all else as written: {needed[0]:.1f} instead of "
        f"{needed[1]:.1f} GiB a card, fits"
    )
    assert half.fits
    tight = plan(config(rows), world_size=1, gib=15)
    assert tight.ways_out[-1].endswith("does not fit")


def test_the_choice_and_the_runner_up_are_explained_with_what_they_save_and_cost() -> None:
    """Full parameters: ZeRO-2 against ZeRO-3, and the choice against the second."""
    said = plan(config("method=full")).advice.sentences
    assert re.fullmatch(
        r"ZeRO-2 because ZeRO-3, all else the same, takes \S+ GiB less a card and is \S+% slower "
        r"\(\S+ tokens/s\)",
        said[1],
    )
    low_rank = plan(config("training.per_device_train_batch_size=4"), world_size=1, gib=16)
    first, second = low_rank.advice.ranked[:2]
    less = first.account.needed_gib - second.account.needed_gib
    slower = first.speed.tokens_per_second - second.speed.tokens_per_second
    last = low_rank.advice.sentences[-1]
    assert f"against the choice it takes {less:.1f} GiB less a card and is " in last
    assert last.endswith(f"slower ({slower:,.0f} tokens/s)")


def test_host_memory_is_named_where_it_is_what_does_not_fit() -> None:
    """17.7 of 139 GiB: the card is not the reason."""
    found = plan(config("method=full", OFFLOADED), world_size=1, gib=139, host=64)
    assert (
        "of 139 GiB with slack and context: does not fit because of host memory: 131.0 GiB "
        in (summary_lines(found)[1])
    )
    assert any(
        "needed of 139 GiB: does not fit because of host memory" in x for x in plan_lines(found)
    )


def test_rounding_never_hides_which_side_of_the_limit_a_number_is_on() -> None:
    """24.04 of 24 GiB is not 24.0."""
    found = [beside(value, 24) for value in (24.04, 24.004, 24.4, 23.97, 24.0)]
    assert found == ["24.04", "24.004", "24.4", "24.0", "24.0"]


def test_ways_out_are_no_problems() -> None:
    """One thing is wrong; the rest is what may be done."""
    found = plan(config("training.per_device_train_batch_size=4"), world_size=1, gib=16)
    lines = plan_lines(found)
    at = lines.index("1 problem:")
    assert lines[at + 1].startswith("1. does not fit")
    assert lines[at + 2] == "what else was tried:"
    assert lines[at + 3] == f"- {found.ways_out[0]}"


def test_alternatives_carry_the_host_memory_and_the_order_is_said() -> None:
    """Offloading takes it, and stands last however fast it is."""
    found = plan(config("method=full"), world_size=1, gib=80)
    (first, *_) = plan_json(found)["alternatives"]
    assert first["offload"] == "optimizer"
    assert first["host_gib"] == round(found.advice.ranked[0].account.host_gib, 2)
    assert any("offloading last; among equals the fastest first" in x for x in plan_lines(found))


SMALL = ChatGLM2Config(
    num_layers=2, hidden_size=64, num_attention_heads=4, ffn_hidden_size=128, kv_channels=16
)


def test_buckets_are_named_only_where_the_user_made_them_large() -> None:
    """A small card is no reason to blame a default, written or not."""
    written = {"stage": 2, "reduce_bucket_size": 5e8}
    found = plan(config(deepspeed={"zero_optimization": written}), gib=4)
    (said,) = (text for text in found.warnings if "bucket" in text)
    assert "reduce_bucket_size is 5e8 elements" in said
    assert "2e8 (or auto) is enough" in said
    for zero in ({"stage": 2}, {"stage": 3, "reduce_bucket_size": 2e8}):
        found = plan(config(deepspeed={"zero_optimization": zero}), gib=4)
        assert "bucket" not in "\n".join(found.warnings)


def test_a_model_is_called_by_a_published_size_only_where_it_has_it() -> None:
    """Two layers of 64 are no ChatGLM3-6B."""
    assert plan_lines(plan(config()))[0].startswith("ChatGLM3-6B, 6,243,584,000 parameters")
    first = plan_lines(plan(config(), model=SMALL))[0]
    assert re.match(r"ChatGLM3 layout, 8,\d+,\d+ parameters", first)


def test_more_ranks_than_rows_are_named() -> None:
    """8 ranks and 3 packed rows: 5 of them train nothing."""
    few = dataclasses.replace(FACTS, rows=3)
    said = "\n".join(plan(config(), world_size=8, facts=few).warnings)
    assert "8 ranks outnumber the 3 row(s) of the data: 5 of them get filler rows" in said
    assert "use 3 card(s) or fewer, or data.packing=false" in said
    assert "outnumber" not in "\n".join(plan(config(), world_size=8).warnings)


def test_wrong_targets_are_said_not_to_be_counted() -> None:
    """The account goes on without their adapters."""
    every = plan(config("lora.target_modules=[q_proj]")).problems[0]
    assert every.endswith("The account counts no adapters")
    some = plan(config("lora.target_modules=[q_proj, dense]")).problems[0]
    assert some.endswith("The account counts those of the others")


def test_few_steps_are_put_down_to_max_steps_where_it_is_written() -> None:
    """Neither cards nor packing are the reason then."""
    said = plan(config("training.max_steps=10")).warnings[0]
    assert said == (
        "10 optimizer steps in all are few: training.max_steps is 10; without it "
        "training.num_train_epochs=3 gives 1,125"
    )
    few = dataclasses.replace(FACTS, rows=4)
    said = "\n".join(plan(config("training.max_steps=10"), facts=few).warnings)
    assert "training.max_steps=100 or more goes over the data more often" in said
