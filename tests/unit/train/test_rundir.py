"""A run goes on only with its own settings; what is newer than the run has its default."""

import json

import pytest

from glmforge.config import config_from_mapping
from glmforge.errors import CheckpointError
from glmforge.train.rundir import check_same_run, write_run_files

MANIFEST = {"hash": "a", "examples": {"train": 3}}


def config(**training):
    return config_from_mapping(
        {
            "model": {"model_name_or_path": "m"},
            "data": {"train": "t.jsonl"},
            "training": {"output_dir": "r", **training},
        }
    )


@pytest.fixture
def run(tmp_path):
    write_run_files(
        tmp_path / "r",
        config_yaml=config().to_yaml(),
        deepspeed_config={"train_batch_size": 4},
        manifest=MANIFEST,
    )
    return tmp_path / "r"


def test_the_same_settings_pass_and_free_ones_may_differ(run):
    """How often it logs, saves and evaluates changes nothing that matters."""
    check_same_run(run, config(), MANIFEST)
    check_same_run(run, config(logging_steps=3, save_steps=7, save_total_limit=9), MANIFEST)


def test_every_difference_is_named_with_both_values(run):
    """Settings and data at once."""
    with pytest.raises(CheckpointError) as caught:
        check_same_run(run, config(learning_rate=1e-3, seed=7), {**MANIFEST, "hash": "b"})
    text = str(caught.value)
    assert "training.learning_rate was 5e-05 when the run began and is 0.001 now" in text
    assert "training.seed was 42" in text
    assert "data, tokenizer or template changed" in text


def test_a_run_older_than_a_setting_can_go_on(run):
    """A key that its config.yaml does not have counts as the default."""
    path = run / "config.yaml"
    lines = [line for line in path.read_text().splitlines() if "adam_beta2" not in line]
    path.write_text("\n".join(lines))
    check_same_run(run, config(), MANIFEST)
    with pytest.raises(CheckpointError, match=r"adam_beta2 was 0\.999"):
        check_same_run(run, config(adam_beta2=0.95), MANIFEST)


def test_the_files_say_what_the_run_is(run):
    """Versions, data and the engine's config lie beside config.yaml."""
    assert json.loads((run / "deepspeed.json").read_text())["train_batch_size"] == 4
    assert json.loads((run / "data.json").read_text())["hash"] == "a"
    assert "torch" in json.loads((run / "versions.json").read_text())
