"""What changes memory is in the account, or is said not to be."""

from typing import Any

import pytest
from plan_shapes import chatglm3, lora

from glmforge.config import RunConfig, config_from_mapping
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.advisor import Machine
from glmforge.plan.memory import account
from glmforge.plan.report import make_plan
from glmforge.plan.weights import persistent_elements


def warnings_of(zero: dict[str, Any], *overrides: str, **more: Any) -> str:
    values = {
        "model": {"model_name_or_path": "chatglm3-6b"},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run"},
        "deepspeed": {"zero_optimization": zero, **more},
    }
    run: RunConfig = config_from_mapping(values, overrides)
    found = make_plan(run, ChatGLM2Config(), Machine(card_gib=139.8), world_size=4)
    assert not found.contradictions
    return "\n".join(found.warnings)


@pytest.mark.parametrize(
    ("zero", "more", "said"),
    [
        ({"stage": 3, "zero_quantized_weights": True}, {}, "zero_quantized_weights"),
        (
            {"stage": 1, "offload_optimizer": {"device": "cpu"}},
            {"data_types": {"grad_accum_dtype": "fp32"}},
            "data_types.grad_accum_dtype: DeepSpeed keeps gradients in both formats",
        ),
        (
            {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}},
            {},
            "super_offload",
        ),
        (
            {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/x"}},
            {},
            "offload_param.device nvme",
        ),
    ],
)
def test_what_is_left_out_is_said(zero: dict[str, Any], more: dict[str, Any], said: str) -> None:
    """As a warning, which the five lines of a run show too."""
    found = warnings_of(zero, **more)
    assert "not in the account: " in found
    assert said in found


def test_what_is_counted_is_not_said_to_be_left_out() -> None:
    """DoRA, hpZ, fp32 sums and a part of the optimizer on the host have terms."""
    offload = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}
    wide = {"data_types": {"grad_accum_dtype": "fp32"}}
    assert "not in the account" not in warnings_of({"stage": 2}, "lora.use_dora=true")
    assert "not in the account" not in warnings_of({"stage": 3, "zero_hpz_partition_size": 2})
    assert "not in the account" not in warnings_of(offload, **wide)


def test_weights_that_stage_3_leaves_whole_are_counted_whole() -> None:
    """A threshold of 1e12 leaves nothing to divide, or to gather."""
    shape = chatglm3()
    usual = lora(zero_stage=3, world_size=4)
    whole = usual.but(persistence=10**12)
    assert persistent_elements(shape, usual) == 0
    assert persistent_elements(shape, whole) > 0.99 * shape.parameters
    two = account(shape, usual.but(zero_stage=2)).term("weights").bytes
    assert account(shape, whole).term("weights").bytes == pytest.approx(two, rel=0.01)
    capped = whole.but(all_persistent=0)
    assert account(shape, capped).peak_bytes == account(shape, usual).peak_bytes
