"""A whole plan: what it refuses, warns of, and says in words and in JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from plan_shapes import chatglm3
from planned import FACTS, config, plan
from transformers import GlmConfig

from glmforge.errors import ConfigError
from glmforge.models import load_config
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.advisor import Machine
from glmforge.plan.data_facts import DataFacts
from glmforge.plan.report import Plan, make_plan
from glmforge.plan.request import Card, precision_verdict
from glmforge.plan.summary import peak_line, plan_for_run, refusal, summary_lines
from glmforge.plan.text import duration, plan_json, plan_lines


def test_json_has_exactly_the_promised_keys() -> None:
    """Programs read it."""
    found = plan_json(plan(config()))
    assert set(found) == {
        "fits",
        "peak_gib",
        "host_gib",
        "zero_stage",
        "offload",
        "micro_batch",
        "gradient_accumulation_steps",
        "world_size",
        "terms",
        "alternatives",
        "problems",
    }
    assert found["fits"] is True
    assert found["problems"] == []
    inside = {
        k: v for k, v in found["terms"].items() if k not in ("allocator_slack", "cuda_context")
    }
    assert sum(inside.values()) == pytest.approx(found["peak_gib"], abs=0.02)
    json.dumps(found)


def test_a_step_is_told_in_rows_dialogues_and_trained_tokens() -> None:
    """2 rows on each of 2 cards; 1500 rows make 375 steps an epoch."""
    length = plan(config()).length
    assert length is not None
    assert (length.rows_per_step, length.steps_per_epoch, length.total_steps) == (4, 375, 1125)
    assert length.dialogues_per_step == pytest.approx(10_000 * 4 / 1500)
    assert length.trained_tokens_per_step == pytest.approx(3200)


def test_few_steps_are_warned_of_with_the_setting_that_gives_the_unpacked_count() -> None:
    """8 cards with 16 rows each: 36 updates instead of 30 x 8 unpacked ones."""
    run = config("training.per_device_train_batch_size=16")
    said = "\n".join(plan(run, world_size=8).warnings)
    assert "36 optimizer steps in all are few" in said
    assert "Without packing there would be 30" not in said
    one_row = dataclasses.replace(FACTS, rows=80, dialogues=10_000)
    found = make_plan(config(), ChatGLM2Config(), Machine(), world_size=8, facts=one_row)
    said = "\n".join(found.warnings)
    assert "15 optimizer steps in all are few" in said
    assert "Without packing there would be 237: training.max_steps=237" in said


def test_save_steps_beyond_the_last_step_are_named() -> None:
    """1125 steps: a checkpoint every 5000 never comes."""
    said = plan(config("training.save_steps=5000")).warnings
    assert any("training.save_steps is 5000, but the run ends at step 1125" in w for w in said)


def test_what_does_not_fit_is_a_problem_with_the_ways_out() -> None:
    """4 cards of 12 GiB."""
    run = config("training.gradient_accumulation_steps=8")
    found = plan(run, world_size=4, gib=12)
    assert not found.fits
    said = "\n".join(found.problems)
    assert "does not fit: lora, ZeRO-2" in said
    assert "the frozen weights alone are 11.6 GiB on every card" in said
    assert "ZeRO-3, micro-batch 1, accumulation 16, checkpointing: fits" in said
    assert found.advice.best is not None


def test_offloading_more_than_the_host_has_is_refused(shared: Path) -> None:
    """S05: 9.4 B parameters x 12 bytes = 112.8 GB on a host of 64 GB."""
    case = json.loads((shared / "cases" / "S05" / "plan.json").read_text())
    zero = {
        "stage": case["zero_stage"],
        "offload_optimizer": {"device": case["offload_optimizer"]},
    }
    run = config("method=full", deepspeed={"zero_optimization": zero})
    nine = ChatGLM2Config(num_layers=40, padded_vocab_size=151552, seq_length=131072)
    found = plan(run, model=nine, gib=case["gpu_memory_gb"], host=case["host_ram_gb"])
    said = "\n".join(found.problems)
    assert "112.8 GB are fp32 masters and two moments" in said
    assert "signal 9" in said


def test_background_checkpoints_count_as_memory_of_the_host() -> None:
    """6.24 B full parameters: 14 bytes each are 81.4 GiB, on two ranks of one machine."""
    run = config("method=full", "training.async_save=true")
    found = plan(run, gib=140, host=64)
    said = "\n".join(found.problems)
    assert "host memory: 89.4 GiB are needed on a machine" in said, said
    assert "checkpoint's copy 40.7" in said
    assert "use training.async_save: false or more machines" in said
    assert not any("host memory" in text for text in plan(run, gib=140, host=128).problems)


def test_zero_3_says_what_it_does_with_adapters_and_generation(shared: Path) -> None:
    """S05: gathered on saving; 7 rows on 2 ranks get a filler that is not counted."""
    data = {"train": "a.jsonl", "validation": "b.jsonl"}
    run = config(deepspeed={"zero_optimization": {"stage": 3}}, data=data)
    notes = "\n".join(plan(run).notes)
    assert "would write empty tensors: this program gathers it itself" in notes
    assert "do not divide by 2, filler rows are run and not counted" in notes


@pytest.mark.parametrize("world_size", [2, 8])
def test_lora_on_several_cards_answers_the_most_repeated_question(world_size: int) -> None:
    """Why memory does not fall."""
    notes = "\n".join(plan(config(), world_size=world_size).notes)
    assert "More cards do not lower the memory of LoRA under ZeRO-2" in notes


def test_precision_is_judged_by_the_card(shared: Path) -> None:
    """S03 1 to 4: bf16 before 8.0 is refused, fp16 on GLM-4 is warned of."""
    cases = json.loads((shared / "cases" / "S03" / "cases.json").read_text())
    by_number = {case["n"]: case for case in cases}

    def card(number: int) -> Card:
        return Card(name="a card", capability=tuple(by_number[number]["compute_capability"]))

    problem, _ = precision_verdict("bf16", card(1))
    assert problem is not None
    assert "7.0 and bf16 needs 8.0 or newer: write training.precision=fp16" in problem
    assert precision_verdict("bf16", card(2)) == (None, None)
    _, warning = precision_verdict("fp16", card(4), by_number[4]["model_family"])
    assert warning is not None
    assert "overflows to NaN" in warning
    assert "fp16" in plan(config(), card=card(1)).written.workload.precision


def test_unknown_lora_targets_are_refused_with_those_that_exist() -> None:
    """M01: names follow the model."""
    said = "\n".join(plan(config("lora.target_modules=[q_proj, v_proj]")).problems)
    assert "'q_proj', 'v_proj' matches no linear module" in said
    assert "query_key_value, dense, dense_h_to_4h, dense_4h_to_h" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lora", "'q_proj', 'v_proj' matches no linear module"),
        ("lora_typo", "'dense_h_to_4hh' matches no linear module"),
        ("lora_number", "8"),
    ],
)
def test_the_collected_target_lists_are_refused(shared: Path, name: str, words: str) -> None:
    """M01: before any weight is read; a partial match does not pass in silence."""
    case = json.loads((shared / "cases" / "M01" / f"{name}.json").read_text())
    written = f"lora.target_modules={json.dumps(case['target_modules'])}"
    try:
        said = "\n".join(plan(config(written)).problems)
    except ConfigError as error:
        said = str(error)
    assert words in said
    assert said


def test_targets_follow_the_model_and_not_the_brand(shared: Path) -> None:
    """M01: GLM-4's port to transformers has q_proj and v_proj."""
    case = json.loads((shared / "cases" / "M01" / "lora.json").read_text())
    written = f"lora.target_modules={json.dumps(case['target_modules'])}"
    assert plan(config(written), model=GlmConfig()).problems == ()


def test_a_method_that_a_stage_cannot_take_is_refused() -> None:
    """4-bit weights cannot be divided."""
    run = config("method=qlora", deepspeed={"zero_optimization": {"stage": 3}})
    assert any("4-bit weights cannot be divided" in text for text in plan(run).problems)


def test_what_contradicts_the_deepspeed_map_is_listed_beside_the_rest() -> None:
    """Batch equation, unknown key and targets in one list; a plan comes all the same."""
    run = config(
        "lora.target_modules=[q_proj]",
        deepspeed={"train_batch_size": 7, "zero_optimizaton": {"stage": 3}},
    )
    found = plan(run)
    said = "\n".join(found.problems)
    assert "train_batch_size is 7, but" in said
    assert "did you mean zero_optimization?" in said
    assert "'q_proj' matches no linear module" in said
    assert found.written.account.peak_gib > 0


def test_unusual_settings_get_a_line_and_no_refusal() -> None:
    """alpha / r, r, learning rate and dropout."""
    found = plan(
        config(
            "lora.r=256",
            "lora.lora_alpha=2560",
            "training.learning_rate=0.01",
            "lora.lora_dropout=0.5",
        )
    )
    notes = "\n".join(found.notes)
    for word in (
        "lora.lora_alpha / lora.r is 10",
        "lora.r is 256",
        "0.01 is high",
        "dropout is 0.5",
    ):
        assert word in notes
    assert found.fits


def test_a_run_begins_with_five_lines() -> None:
    """Configuration, peak, length, speed, and what to look at."""
    lines = summary_lines(plan(config()))
    assert len(lines) == 5
    assert all(line.startswith("plan: ") for line in lines)
    assert "1,125 in all" in lines[2]


def test_a_run_on_the_cpu_is_told_no_card_and_no_speed() -> None:
    """The demo's kind of run."""
    found = plan_for_run(config("training.precision=fp32"), ChatGLM2Config(), world_size=2)
    lines = summary_lines(found)
    assert len(lines) == 5
    assert "no card: about" in lines[1]
    assert "on the CPU: no speed is predicted" in lines[3]


def test_bf16_without_a_card_is_said_to_be_for_trying_out() -> None:
    """S03 6."""
    lines = summary_lines(plan_for_run(config(), ChatGLM2Config(), world_size=1))
    assert "bf16 is for trying out only" in lines[3]


def test_what_is_faster_is_named_with_its_settings() -> None:
    """Checkpointing that is not needed on a large card."""
    found = plan_for_run(
        config(), ChatGLM2Config(), world_size=2, card_gib=139.8, host_gib=512, facts=FACTS
    )
    assert "times as fast and fits: training.per_device" in summary_lines(found)[4]


def start_plan(gib: float, *overrides: str, **options: Any) -> Plan:
    return plan_for_run(
        config(*overrides), ChatGLM2Config(), world_size=1, card_gib=gib, facts=FACTS, **options
    )


def test_a_run_that_cannot_fit_is_refused_with_what_would() -> None:
    """12 GiB for 6B LoRA: the frozen weights alone are 11.6."""
    reasons = refusal(start_plan(12.0))
    assert "does not fit" in reasons[0]
    assert any("QLoRA" in reason and "fits" in reason for reason in reasons)


def test_a_tight_run_may_start_and_says_so() -> None:
    """Only the allocator's usual slack is missing."""
    needed = start_plan(139.8).written.account
    tight = start_plan(needed.peak_gib + needed.context.gib + 0.05)
    assert not tight.fits
    assert refusal(tight) == []
    assert "does not fit" in summary_lines(tight)[4]
    assert refusal(start_plan(139.8)) == []


def test_a_card_that_another_process_fills_is_named() -> None:
    """The driver says how much is free."""
    (reason,) = refusal(start_plan(139.8), free_gib=8.0)
    assert "8.0 of its 139.8 GiB are free: another process uses it" in reason


def test_offloading_more_than_the_host_has_is_refused_at_the_start() -> None:
    """The system would kill it in the middle."""
    zero = "deepspeed={zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}"
    reasons = refusal(start_plan(139.8, "method=full", zero, host_gib=64.0))
    assert any("host memory" in reason for reason in reasons)


def test_the_longest_example_counts_where_rows_are_not_packed() -> None:
    """1,900 tokens and not max_length, unless the counts are estimates."""
    single = dataclasses.replace(FACTS, packed=False)
    run, model = config("data.packing=false"), ChatGLM2Config()

    def row_tokens(facts: DataFacts) -> int:
        found = make_plan(run, model, Machine(), world_size=1, facts=facts)
        return found.written.workload.row_tokens

    assert row_tokens(single) == -(-1900 // run.data.pad_to_multiple_of) * (
        run.data.pad_to_multiple_of
    )
    assert row_tokens(dataclasses.replace(single, estimated=True)) == 2048
    assert row_tokens(FACTS) == 2048


def test_processes_that_overfill_a_machine_without_cards_are_named() -> None:
    """Each is a full copy of the model in fp32."""
    found = plan_for_run(
        config("training.precision=fp32"),
        ChatGLM2Config(),
        world_size=4,
        local_world_size=4,
        host_gib=64.0,
        facts=FACTS,
    )
    assert "the system may kill one (signal 9)" in summary_lines(found)[4]


def test_the_measured_peak_stands_beside_the_planned() -> None:
    """After the second step."""
    assert peak_line(60.42, 60.32) == "peak 60.32 GiB measured, 60.42 planned (+0.2%)"
    assert "more than planned" in peak_line(50.0, 60.0)


def test_the_whole_plan_names_terms_choice_and_deepspeed_config() -> None:
    """For people."""
    text = "\n".join(plan_lines(plan(config())))
    assert "a layer keeps, bytes a token (computed again in backward): norm inputs 16,384" in text
    for word in ("planned max_memory_allocated", "choice: ", "runner-up: ", "deepspeed.json:"):
        assert word in text
    assert "auto" not in text.partition("deepspeed.json:")[2]


def test_short_runs_are_told_in_minutes() -> None:
    """An hour and more in hours."""
    assert (duration(0.05), duration(2.25)) == ("3.0 minutes", "2.2 h")


def test_an_int4_export_is_refused_before_anything_is_planned(shared: Path) -> None:
    """M03."""
    from glmforge.errors import ModelError

    with pytest.raises(ModelError, match="int4 export"):
        load_config(shared / "cases" / "M03")


def test_own_arithmetic_takes_less_than_a_fifth_of_a_second() -> None:
    """Account, advisor and all; importing torch is the rest of the command."""
    import time

    run = config("training.gradient_accumulation_steps=16")
    model = ChatGLM2Config()
    begin = time.process_time()
    make_plan(run, model, Machine(card_gib=80), world_size=8, facts=FACTS)
    assert time.process_time() - begin < 0.2
    assert chatglm3().parameters == 6_243_584_000


def test_a_short_run_needs_the_disk_of_the_checkpoints_that_it_writes() -> None:
    """6 steps write one checkpoint and the weights; a longer run keeps two and writes a third."""
    full = ("method=full", "training.save_steps=2")
    size = plan(config(*full, "training.max_steps=2")).disk_gib
    assert plan(config("method=full", "training.max_steps=6")).disk_gib == size
    one = 14 * 6_243_584_000 / 2**30
    assert size == pytest.approx(one * 8 / 7, rel=0.001)
    assert plan(config(*full, "training.max_steps=4")).disk_gib == pytest.approx(size + one)
    assert plan(config(*full)).disk_gib == pytest.approx(size + 2 * one)
    with_best = plan(config(*full, "data.validation=v.jsonl")).disk_gib
    assert with_best == pytest.approx(size + 3 * one)


def test_a_warm_up_longer_than_the_run_is_named_and_a_default_is_not() -> None:
    """All 1125 steps would be warm-up; nobody wrote save_steps 500."""
    said = "\n".join(plan(config("training.warmup_steps=1125")).warnings)
    assert "training.warmup_steps is 1125, but the run ends at step 1125" in said
    assert "save_steps" not in said


def test_json_says_that_it_fits_where_something_else_is_wrong() -> None:
    """`fits` is about memory; `problems` about everything."""
    found = plan_json(plan(config(deepspeed={"typo": 1})))
    assert found["fits"] is True
    assert len(found["problems"]) == 1
