"""What must be alike on all machines of a run, and how a difference is told."""

import json
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, config_from_mapping
from glmforge.launch.sameness import compared_settings, difference


def run(**sections: Any) -> RunConfig:
    return config_from_mapping(
        {"model": {"model_name_or_path": "model"}, "data": {"train": "train.jsonl"}}
        | {"training": {"output_dir": "run"}}
        | sections
    )


def told(one: RunConfig, other: RunConfig) -> str | None:
    mine, theirs = compared_settings(one, {}), compared_settings(other, {})
    return difference(theirs, "there", mine, "here")


def test_processes_cards_and_addresses_may_differ() -> None:
    """They are each machine's own."""
    launch = {"nproc": 3, "gpus": "0,2,3", "master_port": 29401, "master_addr": "127.0.0.1"}
    assert told(run(), run(launch=launch)) is None


def test_every_other_setting_is_compared() -> None:
    """Both values; the first three names, and how many more."""
    other = {"output_dir": "run", "learning_rate": 0.5}
    assert told(run(), run(training=other)) == (
        "training.learning_rate is 0.5 there and 5e-05 here: start the same command with the same "
        "config everywhere"
    )
    other |= {"seed": 1, "max_steps": 3, "weight_decay": 0.5}
    assert "; 1 more differ: start" in str(told(run(), run(training=other)))


def test_a_deepspeed_file_of_one_name_is_read_on_each_machine(tmp_path: Path) -> None:
    """The same path, another stage."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    one = compared_settings(run(deepspeed=str(file)), {})
    file.write_text(json.dumps({"zero_optimization": {"stage": 3, "overlap_comm": True}}))
    other = compared_settings(run(deepspeed=str(file)), {})
    found = str(difference(other, "there", one, "here"))
    assert "deepspeed.zero_optimization.stage is 3 there and 2 here" in found
    assert "deepspeed.zero_optimization.overlap_comm is true there and not set here" in found


def test_options_of_the_start_are_compared() -> None:
    """One machine goes on with a run, the other begins one."""
    one, other = (
        compared_settings(run(), {"--resume": None}),
        compared_settings(run(), {"--resume": "auto"}),
    )
    assert str(difference(other, "there", one, "here")).startswith(
        '--resume is "auto" there and null here'
    )
