"""The DeepSpeed config: whole, from one source, every contradiction reported at once."""

import json

import pytest

from glmforge.config.from_deepspeed import read_map
from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes
from glmforge.plan.deepspeed_config import EngineSettings, write_config


def settings(precision="bf16", micro=2, accumulation=8, world=2):
    sizes = BatchSizes(micro_batch=micro, accumulation=accumulation, world_size=world)
    return EngineSettings(sizes=sizes, precision=precision, max_grad_norm=1.0)


def problems_of(user_map, **kwargs):
    with pytest.raises(ConfigError) as caught:
        write_config(settings(**kwargs), user_map)
    return caught.value.problems


def test_the_default_is_zero_2_with_the_runs_own_sizes():
    """Nothing is left to "auto" and the batch equation holds."""
    config = write_config(settings(), None)
    assert config["zero_optimization"]["stage"] == 2
    assert config["train_batch_size"] == 32
    assert config["bf16"] == {"enabled": True}
    assert config["fp16"] == {"enabled": False}
    assert "auto" not in json.dumps(config)


def test_the_guides_config_is_accepted_in_fp16():
    """The LoRA config of the guides, with its batch sizes and buckets."""
    guide = {
        "zero_optimization": {
            "stage": 2,
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "overlap_comm": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "contiguous_gradients": True,
        },
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 1.0,
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12},
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
    }
    config = write_config(settings("fp16"), guide)
    assert config["fp16"]["initial_scale_power"] == 12
    assert config["fp16"]["loss_scale_window"] == 1000
    assert config["zero_optimization"]["overlap_comm"] is True


def test_auto_values_are_filled_in():
    """A config made for the Trainer works: its "auto" becomes the run's own value."""
    config = write_config(
        settings(),
        {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        },
    )
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert "auto" not in json.dumps(config)


def test_every_contradiction_is_reported_at_once():
    """Unknown key, wrong batch equation, text for a number, two precisions, ignored offload."""
    found = "\n".join(
        problems_of(
            {
                "train_batch_size": 32,
                "train_micro_batch_size_per_gpu": "2",
                "gradient_acumulation_steps": 8,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                "bf16": {"enabled": True},
                "fp16": {"enabled": True},
                "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
            },
            accumulation=1,
        )
    )
    assert "did you mean gradient_accumulation_steps?" in found
    assert "= 4" in found
    assert "'2' (str)" in found
    assert "second optimizer" in found
    assert "both enabled" in found
    assert "offload_param does nothing at stage 2" in found


def test_a_fraction_is_no_batch_size():
    """DeepSpeed itself takes 2.5 rows."""
    assert "whole number" in problems_of({"train_micro_batch_size_per_gpu": 2.5})[0]


@pytest.mark.parametrize("stage", [4, "2", True, None])
def test_only_stages_0_to_3_exist(stage):
    """Anything else is named."""
    assert "0, 1, 2 or 3" in problems_of({"zero_optimization": {"stage": stage}})[0]


def test_a_precision_that_the_run_does_not_use_is_refused():
    """The run computes in bf16, the map says fp16."""
    assert "training.precision=fp16" in problems_of({"fp16": {"enabled": True}})[0]


def test_a_file_is_read_and_named_when_it_is_not_json(tmp_path):
    """`deepspeed: file.json` is the same as the map in it."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('{"zero_optimization": {"stage": 1}}')
    bad.write_text("{stage: 1}")
    assert read_map(str(good)) == {"zero_optimization": {"stage": 1}}
    with pytest.raises(ConfigError, match=r"bad\.json is not JSON"):
        read_map(str(bad))
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        read_map(str(tmp_path / "none.json"))


def test_a_trainers_optimizer_and_scheduler_of_autos_are_the_runs_own():
    """They say what happens anyway; one written value makes a second optimizer."""
    block = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}}
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}
    config = write_config(settings(), {"optimizer": block, "scheduler": warmup})
    assert "optimizer" not in config
    assert "scheduler" not in config
    written = {"type": "AdamW", "params": {"lr": 1e-4, "betas": "auto"}}
    assert "second optimizer" in problems_of({"optimizer": written})[0]


@pytest.mark.parametrize(
    ("key", "block"),
    [
        ("optimizer", {"type": "Adam"}),
        ("optimizer", {"type": "AdamW", "params": {}}),
        ("scheduler", {"type": "WarmupLR"}),
        ("scheduler", {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}),
    ],
)
def test_an_optimizer_or_scheduler_of_the_users_own_is_refused(key, block):
    """With values or without: DeepSpeed's defaults are not this run's, and none is dropped."""
    assert f"deepspeed.{key} would be a second {key}" in problems_of({key: block})[0]
