"""The optimizer: which parameters decay, which learn faster, and the rate of each update."""

from types import SimpleNamespace

import pytest
import torch
from peft.optimizers import create_loraplus_optimizer

from glmforge.adapters import LoraSettings, add_lora
from glmforge.errors import ConfigError
from glmforge.models import load_config, new_model
from glmforge.train.engine import (
    OptimizerSettings,
    build_optimizer,
    check_engine_config,
    parameter_groups,
    set_learning_rate,
)
from small_models import TINY_MODEL


def settings(**changes):
    usual = {"learning_rate": 1e-3, "betas": (0.9, 0.95), "epsilon": 1e-8, "weight_decay": 0.1}
    return OptimizerSettings(**{**usual, **changes})


def model(**lora):
    torch.manual_seed(0)
    plain = new_model(load_config(TINY_MODEL))
    if not lora:
        return plain
    wanted = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ("dense",), **lora}
    return add_lora(plain, LoraSettings(**wanted))


def test_norms_and_biases_are_not_decayed():
    """Everything else is; every trainable parameter is in one group."""
    whole = model()
    groups = parameter_groups(whole, settings())
    assert sum(len(group["params"]) for group in groups) == len(list(whole.parameters()))
    for group in groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] == 0.1}


@pytest.mark.parametrize("use_dora", [False, True])
def test_lora_plus_gives_each_parameter_the_rate_that_peft_gives(use_dora):
    """lora_B (and DoRA's magnitudes) learn 16 times as fast; PEFT's own groups are the measure."""
    wrapped = model(use_dora=use_dora)
    theirs = create_loraplus_optimizer(wrapped, torch.optim.AdamW, lr=1e-3, loraplus_lr_ratio=16.0)
    expected = {id(p): g["lr"] for g in theirs.param_groups for p in g["params"]}
    groups = parameter_groups(wrapped, settings(lora_b_ratio=16.0))
    assert {id(p): g["lr"] for g in groups for p in g["params"]} == expected
    assert sorted(set(expected.values())) == [1e-3, 16e-3]


def test_the_rate_of_an_update_keeps_the_ratio():
    """What the schedule says, times the group's ratio."""
    optimizer = build_optimizer(model(r=2), settings(lora_b_ratio=4.0), offload=False)
    set_learning_rate(SimpleNamespace(optimizer=optimizer), 0.5)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.5, 2.0]


def test_without_lora_plus_one_rate_holds_for_all():
    """Full parameters: both groups follow the schedule."""
    optimizer = build_optimizer(model(), settings(), offload=False)
    set_learning_rate(SimpleNamespace(optimizer=optimizer), 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]


def test_what_deepspeed_refuses_is_a_setting_and_no_crash() -> None:
    """Its own words, and the map to correct; what the plan checks does not come so far."""
    engine_config = {"train_batch_size": 2, "communication_data_type": "fp64"}
    with pytest.raises(ConfigError, match=r"DeepSpeed refuses this run's config .*fp64"):
        check_engine_config(engine_config)
    check_engine_config({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2})
