"""The files that say what a run is."""

import json

from glmforge.config import config_from_mapping
from glmforge.train.rundir import model_files, write_run_files

MANIFEST = {"hash": "a", "examples": {"train": 3}}


def test_the_files_say_what_the_run_is(tmp_path):
    """Versions, data and the engine's config lie beside config.yaml."""
    config = config_from_mapping(
        {
            "model": {"model_name_or_path": "m"},
            "data": {"train": "t.jsonl"},
            "training": {"output_dir": "r"},
        }
    )
    run = tmp_path / "r"
    write_run_files(
        run,
        config_yaml=config.to_yaml(),
        deepspeed_config={"train_batch_size": 4},
        manifest=MANIFEST,
    )
    assert json.loads((run / "deepspeed.json").read_text())["train_batch_size"] == 4
    assert json.loads((run / "data.json").read_text())["hash"] == "a"
    assert "torch" in json.loads((run / "versions.json").read_text())


def test_a_models_files_are_known_by_size_and_ends(tmp_path):
    """A changed last byte of a large file shows; other files do not count."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("x")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 * 2**20))
    before = model_files(tmp_path)
    assert sorted(before) == ["config.json", "model.safetensors"]
    weights.write_bytes(bytes(3 * 2**20 - 1) + b"x")
    assert model_files(tmp_path)["config.json"] == before["config.json"]
    assert model_files(tmp_path)["model.safetensors"] != before["model.safetensors"]
