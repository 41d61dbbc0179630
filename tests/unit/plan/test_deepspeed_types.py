"""Every key of a DeepSpeed map has its kind of value; nothing reaches DeepSpeed that it refuses."""

import json
from typing import Any

import pytest

from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes
from glmforge.plan.deepspeed_config import EngineSettings, write_config, write_sound_part
from glmforge.plan.deepspeed_types import TOP, Kind, Table

SETTINGS = EngineSettings(
    sizes=BatchSizes(micro_batch=2, accumulation=8, world_size=2),
    precision="bf16",
    max_grad_norm=1.0,
)


def problems_of(user: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        write_config(SETTINGS, user)
    return "\n".join(caught.value.problems)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"steps_per_print": "10"}, "deepspeed.steps_per_print is '10' (str): a whole number"),
    ({"communication_data_type": "fp64"}, "one of fp32, fp16, bf16"),
    ({"gradient_predivide_factor": "2"}, "gradient_predivide_factor is '2' (str): a number"),
    ({"gradient_predivide_factor": 2.0}, "which ZeRO-2 refuses"),
    ({"prescale_gradients": True}, "which ZeRO-2 refuses"),
    ({"wall_clock_breakdown": "true"}, "true or false is needed, unquoted"),
    ({"optimizer": {"type": "Lion", "params": {"lr": "auto"}}}, "second optimizer"),
    ({"scheduler": {"type": "OneCycle", "params": {}}}, "second scheduler"),
    ({"activation_checkpointing": {}}, "write training.gradient_checkpointing"),
    ({"comms_logger": {"foo": 1}}, "comms_logger.foo is not a key of deepspeed.comms_logger"),
    ({"comms_logger": True}, "a map is needed, such as enabled: true"),
    (
        {"bf16": {"enabled": False}},
        "deepspeed.bf16.enabled is false, but this run computes in bf16",
    ),
    ({"bf16": {"enabled": "yes"}}, "true or false"),
    ({"bf16": {"bf16_master_weights_and_grads": True}}, "masters and moments are fp32"),
    ({"fp16": {"loss_scale": "0"}}, "fp16.loss_scale is '0' (str)"),
    ({"fp16": {"hysteresis": True}}, "fp16.hysteresis is True"),
    ({"zero_optimization": {"stage": 2.0}}, "stage is 2.0: 0, 1, 2 or 3"),
    ({"zero_optimization": {"stage": 3, "sub_group_size": 0}}, "sub_group_size is 0: a whole"),
    ({"zero_optimization": {"reduce_scatter": 1}}, "reduce_scatter is 1: true or false"),
    ({"zero_optimization": {"leaf_module": {"names": "mlp"}}}, "a list of texts"),
    ({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.3}}}, "for stage 3"),
    ({"data_types": {"grad_accum_dtype": "fp8"}}, "one of fp32"),
    ({"data_types": {"param_dtype": "fp32"}}, "training.precision decides"),
    ({"flops_profiler": {"profile_step": "1"}}, "profile_step is '1' (str)"),
    ({"aio": {"block_size": 1.5}}, "aio.block_size is 1.5"),
    ({"gradient_clipping": "1.0"}, "a number is needed, without quotes"),
    ({"checkpoint": {"parallel_write": {"pipeline_stage": 1}}}, "pipeline_stage is 1: true"),
]


@pytest.mark.parametrize(("user", "said"), WRONG, ids=[json.dumps(user) for user, _ in WRONG])
def test_a_value_that_deepspeed_would_refuse_or_ignore_is_named(
    user: dict[str, Any], said: str
) -> None:
    """Each alone is one problem, with the key and the value."""
    found = problems_of(user)
    assert said in found
    assert "\n" not in found


def test_a_clipping_in_quotes_has_nothing_to_do_with_the_batch() -> None:
    """No equation behind it."""
    assert "process(es)" not in problems_of({"gradient_clipping": "1.0"})


def leaves(table: Table, inside: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Kind]]:
    found = []
    for key, kind in table.items():
        if isinstance(kind, Kind):
            found.append(((*inside, key), kind))
        else:
            found += leaves(kind, (*inside, key))
    return found


@pytest.mark.parametrize(("path", "kind"), leaves(TOP), ids=[".".join(p) for p, _ in leaves(TOP)])
def test_every_key_refuses_a_value_of_another_kind(path: tuple[str, ...], kind: Kind) -> None:
    """A map in place of a value; and "auto" never reaches the engine."""
    user: Any = {"nothing": 0}
    for key in reversed(path):
        user = {key: user}
    assert ".".join(path) in problems_of(user)
    left: Any = "auto"
    for key in reversed(path):
        left = {key: left}
    if "zero_optimization" in path:
        left["zero_optimization"].setdefault("stage", 3)
    assert "auto" not in json.dumps(write_config(SETTINGS, left))


def test_what_is_right_is_passed_on_at_every_level() -> None:
    """Nothing of it is lost."""
    user = {
        "steps_per_print": 10,
        "bf16": {"enabled": True, "immediate_grad_update": True},
        "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]},
        "gradient_predivide_factor": 2.0,
        "zero_optimization": {"stage": 3, "reduce_scatter": False, "offload_param": None},
    }
    written = write_config(SETTINGS, user)
    assert written["bf16"] == user["bf16"]
    assert written["comms_logger"] == user["comms_logger"]
    assert written["steps_per_print"] == 10


def test_a_faulty_map_is_planned_with_its_right_parts() -> None:
    """A typo elsewhere does not turn ZeRO-3 with offloading into ZeRO-2."""
    zero = {"stage": 3, "offload_param": {"device": "cpu", "typo": 1}, "reduce_bucket_size": "1"}
    engine, words = write_sound_part(SETTINGS, {"zero_optimization": zero, "typo": 1})
    assert engine["zero_optimization"]["stage"] == 3
    assert engine["zero_optimization"]["offload_param"] == {"device": "cpu"}
    assert engine["zero_optimization"]["reduce_bucket_size"] == 200_000_000
    assert "ZeRO-3 with what is right" in words
    crossed = {"stage": 1, "offload_param": {"device": "cpu"}}
    engine, _ = write_sound_part(SETTINGS, {"zero_optimization": crossed})
    assert engine["zero_optimization"]["stage"] == 1
    assert write_sound_part(SETTINGS, None)[0]["zero_optimization"]["stage"] == 2
    assert (
        write_sound_part(SETTINGS, {"zero_optimization": 3})[0]["zero_optimization"]["stage"] == 2
    )
