"""A setting that the run config does not write takes its value from the DeepSpeed map."""

import json
from pathlib import Path
from typing import Any

import pytest

from glmforge.config import RunConfig, config_from_mapping
from glmforge.errors import ConfigError
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.advisor import Machine
from glmforge.plan.early import check_map_early
from glmforge.plan.report import make_plan
from glmforge.plan.settings import engine_settings, filled_notes, run_sizes

GUIDE = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.5,
    "fp16": {"enabled": True, "loss_scale": 0},
    "zero_optimization": {"stage": 2},
}


def silent(deepspeed: Any, *overrides: str) -> RunConfig:
    """Return a run config that writes nothing that a DeepSpeed map may say."""
    values = {
        "model": {"model_name_or_path": "no-such-model"},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run"},
        "deepspeed": deepspeed,
    }
    return config_from_mapping(values, overrides)


def sizes_of(config: RunConfig, world: int) -> Any:
    user_map = config.deepspeed if isinstance(config.deepspeed, dict) else None
    return run_sizes(config, world, packing=True, user_map=user_map)


def verdict(deepspeed: Any, world: int, *overrides: str) -> str:
    """Return what is said of a map beside a silent run config, nothing where it is accepted."""
    try:
        check_map_early(silent(deepspeed, *overrides), world_size=world, precision="bf16")
    except ConfigError as error:
        return "\n".join(error.problems)
    return ""


SAID = {
    1: ("train_batch_size is 8, but 2 ", "x 1 gradient_accumulation_steps", "--nproc 4"),
    3: (
        "train_batch_size is 64, but 4 ",
        "64 is not a multiple of 4 x 3 = 12",
        "60 (5 steps) or 72 (6 steps)",
    ),
    6: ("'8' (str)", "process(es) = "),
    7: ("above 0", "x 1 process(es) = 4"),
    8: ("neither train_batch_size nor train_micro_batch_size_per_gpu is given", "= 16"),
}


def test_the_batch_equation_of_the_collected_cases_literally(shared: Path, tmp_path: Path) -> None:
    """S01: 2, 4 and 5 are accepted, the rest is refused with the equation in numbers."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    model = f"model.model_name_or_path={tmp_path}"
    for case in json.loads((shared / "cases" / "S01" / "cases.json").read_text()):
        found = verdict(case["ds_config"], case["world_size"], model)
        parts = SAID.get(case["n"])
        assert bool(found) == (parts is not None), (case["n"], found)
        assert all(part in found for part in parts or ()), (case["n"], found)


def test_the_total_of_micro_batch_and_accumulation_is_derived() -> None:
    """S01 4: 4 x 8 x 4 = 128 beside a run config that says nothing."""
    user = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    sizes = sizes_of(silent(user), 4)
    assert sizes.global_batch == 128
    assert sizes.sentence().startswith("4 per_device_train_batch_size (from deepspeed) x 8 ")


def test_the_micro_batch_is_derived_from_total_and_accumulation() -> None:
    """64 rows, 8 forward passes, 2 cards: 4 rows each."""
    user = {"train_batch_size": 64, "gradient_accumulation_steps": 8}
    sizes = sizes_of(silent(user), 2)
    assert (sizes.micro_batch, sizes.micro_origin) == (4, "derived: 64 / 16")
    config = silent({"train_batch_size": 64}, "training.gradient_accumulation_steps=8")
    assert sizes_of(config, 2).micro_batch == 4


def test_a_guides_fp16_map_is_taken_by_a_silent_config() -> None:
    """Precision, clipping and micro-batch are the map's, and the plan says so."""
    config = silent(GUIDE)
    assert config.training.precision == "fp16"
    assert config.training.max_grad_norm == 0.5
    assert config.training.per_device_train_batch_size == 4
    assert filled_notes(config) == [
        "training.precision is fp16, from deepspeed",
        "training.max_grad_norm is 0.5, from deepspeed",
    ]
    settings = engine_settings(config, sizes_of(config, 2), config.training.precision)
    assert (settings.max_grad_norm, settings.sizes.global_batch) == (0.5, 32)
    check_map_early(config, world_size=2)


def test_a_map_in_a_file_fills_in_too(tmp_path: Path) -> None:
    """`deepspeed: guide.json` is the same as the map in it; a missing one is left to its reader."""
    file = tmp_path / "guide.json"
    file.write_text(json.dumps(GUIDE), encoding="utf-8")
    assert silent(str(file)).training.precision == "fp16"
    assert silent(str(tmp_path / "none.json")).training.precision == "auto"


def test_what_the_run_config_writes_is_never_replaced() -> None:
    """Even where it is the default's value: then the two contradict each other."""
    config = silent(GUIDE, "training.per_device_train_batch_size=2", "training.max_grad_norm=1.0")
    assert config.training.per_device_train_batch_size == 2
    assert config.training.max_grad_norm == 1.0
    with pytest.raises(ConfigError) as caught:
        check_map_early(config, world_size=2)
    said = "\n".join(caught.value.problems)
    assert "train_micro_batch_size_per_gpu is 4, but training.per_device_train_batch_size is 2" in (
        said
    )
    assert "gradient_clipping is 0.5, but training.max_grad_norm is 1.0" in said


def test_an_accumulation_alone_stands_beside_a_written_micro_batch() -> None:
    """S01 8 with the missing number in the run config."""
    config = silent({"gradient_accumulation_steps": 4}, "training.per_device_train_batch_size=2")
    check_map_early(config, world_size=2)


def test_a_filled_config_is_written_out_and_reads_back_the_same(tmp_path: Path) -> None:
    """The run's own config.yaml names what was used."""
    from glmforge.config import load_config_file

    file = tmp_path / "config.yaml"
    file.write_text(silent(GUIDE).to_yaml(), encoding="utf-8")
    again = load_config_file(file)
    assert again.training.precision == "fp16"
    assert again == silent(GUIDE)


def test_two_precisions_and_wrong_values_fill_nothing_in() -> None:
    """They are reported, not guessed from."""
    both = {"fp16": {"enabled": True}, "bf16": {"enabled": True}, "gradient_clipping": "1"}
    assert silent(both).training.precision == "auto"
    assert silent({"train_micro_batch_size_per_gpu": 2.5}).training.per_device_train_batch_size == 2


def test_a_typo_leaves_the_plan_with_the_stage_and_offload_that_were_asked_for() -> None:
    """The problem is reported; the account is of ZeRO-3 and not of a different run."""
    zero = {"stage": 3, "offload_param": {"device": "cpu"}}
    found = make_plan(
        silent({"zero_optimization": zero, "typo": 1}),
        ChatGLM2Config(),
        Machine(card_gib=139.8),
        world_size=4,
    )
    assert found.contradictions[0].startswith("deepspeed.typo is not a key")
    assert (found.written.workload.zero_stage, found.written.workload.offload) == (3, "parameters")
    assert "ZeRO-3 with what is right in the deepspeed map" in found.warnings[0]
