"""States that DeepSpeed's rarer settings make, on card and host, against counts made by hand."""

from typing import Any

import pytest
from plan_shapes import chatglm3, lora

from glmforge.config import config_from_mapping
from glmforge.models.glm.configuration import ChatGLM2Config
from glmforge.plan.advisor import Machine
from glmforge.plan.memory import account
from glmforge.plan.report import Plan, make_plan
from glmforge.plan.states import state_bytes
from glmforge.plan.weights import sub_groups
from glmforge.plan.workload import Workload

P = 6_243_584_000  # ChatGLM3-6B
MATRICES = (4608 * 4096, 4096 * 4096, 27392 * 4096, 4096 * 13696)  # of one of 28 layers
ROWS = 65024 * 4096  # embedding, and head
VECTORS = P - 2 * ROWS - 28 * sum(MATRICES)


def full(**changes: Any) -> Workload:
    """Full parameters on two ranks, fp32 sums of 16-bit gradients."""
    return lora(**{"method": "full", "world_size": 2, "gradient_bytes": 4, **changes})


def planned(*overrides: str, world_size: int = 4, **deepspeed: Any) -> Plan:
    values = {
        "model": {"model_name_or_path": "chatglm3-6b"},
        "data": {"train": "train.jsonl"},
        "training": {"output_dir": "run"},
        "deepspeed": deepspeed,
    }
    run = config_from_mapping(values, overrides)
    return make_plan(run, ChatGLM2Config(), Machine(card_gib=139.8), world_size=world_size)


def test_fp32_sums_at_stage_2_take_4_bytes_and_are_what_the_update_starts_from() -> None:
    """A flat buffer of this rank's share; 16-bit sums take 2, and 6 more to make them fp32."""
    wide, usual = (state_bytes(chatglm3(), full(gradient_bytes=g)) for g in (4, 2))
    assert (wide.gradients.bytes, wide.update.bytes) == (4 * P // 2, 0)
    assert (usual.gradients.bytes, usual.update.bytes) == (2 * P // 2, 6 * P // 2)
    assert wide.resting_gradients == 0
    accumulated = state_bytes(chatglm3(), full(accumulation=2))
    assert accumulated.resting_gradients == 4 * P // 2


def test_fp32_sums_at_stage_2_stay_on_the_card_where_the_optimizer_is_offloaded() -> None:
    """So that no sums of gradients lie on the host."""
    work = full(offload_optimizer=True, accumulation=2)
    found = state_bytes(chatglm3(), work)
    assert found.gradients.bytes == found.own_gradients.bytes == 4 * P // 2
    assert "accumulated gradients" not in found.host
    usual = state_bytes(chatglm3(), work.but(gradient_bytes=2))
    assert usual.gradients.bytes == 0
    assert usual.host["accumulated gradients"].bytes == 2 * P


def test_fp32_sums_at_stage_1_are_whole_on_every_card() -> None:
    """bf16: DeepSpeed's BF16_Optimizer, beside 16-bit gradients that it never frees; fp16: sums."""
    bf16 = state_bytes(chatglm3(), full(zero_stage=1))
    assert bf16.gradients.bytes == bf16.resting_gradients == 6 * P
    assert (bf16.update.bytes, bf16.backward_buffers.bytes) == (0, 0)
    fp16 = state_bytes(chatglm3(), full(zero_stage=1, precision="fp16"))
    assert (fp16.gradients.bytes, fp16.own_gradients.bytes) == (4 * P, 4 * P // 2)


def test_fp32_sums_at_stage_3_are_a_flat_buffer_of_4_bytes() -> None:
    """Flat gradients of a sub-group are fp32 already; a bucket's own part is converted."""
    wide, usual = (state_bytes(chatglm3(), full(zero_stage=3, gradient_bytes=g)) for g in (4, 2))
    assert wide.gradients.bytes == 2 * usual.gradients.bytes == 4 * P // 2
    assert wide.update.bytes * 6 == usual.update.bytes * 4
    assert wide.backward_buffers.bytes == 4 * 200_000_000 // 2


def test_sums_in_another_format_need_zero() -> None:
    """DeepSpeed raises NotImplementedError at stage 0."""
    wide = {"data_types": {"grad_accum_dtype": "fp32"}}
    assert not planned(zero_optimization={"stage": 2}, **wide).contradictions
    (said,) = planned(zero_optimization={"stage": 0}, **wide).contradictions
    assert "grad_accum_dtype is fp32, but the run computes in bf16" in said
    assert not planned(
        "training.precision=fp32", zero_optimization={"stage": 0}, **wide
    ).contradictions


def test_hpz_holds_a_second_copy_divided_by_its_own_cards() -> None:
    """All weights and adapters, from the forward pass to the update; 4 of 8 ranks share it."""
    plan = planned(world_size=8, zero_optimization={"stage": 3, "zero_hpz_partition_size": 4})
    found = plan.written.account.term("zero_secondary_weights")
    adapters = 28 * 8 * (4096 + 4608)
    assert found.bytes == 2 * (P + adapters) // 4
    work = plan.written.workload
    moments = account(chatglm3(), work).moments
    plain = account(chatglm3(), work.but(secondary=1)).moments
    assert {name: moments[name] - plain[name] for name in plain} == {
        "loss": found.bytes,
        "backward of the last layer": found.bytes,
        "end of backward": found.bytes,
        "update": 0,
    }


def test_hpz_must_divide_the_ranks() -> None:
    """As DeepSpeed asserts when it makes the groups."""
    plan = planned(zero_optimization={"stage": 3, "zero_hpz_partition_size": 3})
    (said,) = plan.contradictions
    assert "zero_hpz_partition_size is 3, which does not divide 4 ranks" in said


def test_sub_groups_are_of_whole_weights_and_the_vectors_come_last() -> None:
    """One rank, a group for each weight: sub_group_size 1."""
    work = full(zero_stage=3, world_size=1, sub_group=1)
    assert sub_groups(chatglm3(), work) == [ROWS, *MATRICES * 28, ROWS, VECTORS]
    assert sum(sub_groups(chatglm3(), work.but(sub_group=10**9))) == P


def test_a_part_of_the_optimizer_on_the_host_is_of_whole_sub_groups() -> None:
    """Ratio 0.6 of 115 sub-groups: the first 46 stay, 16 bytes of an element on the card."""
    work = full(
        zero_stage=3,
        world_size=1,
        sub_group=1,
        offload_optimizer=True,
        on_host=0.6,
        gradient_bytes=2,
    )
    groups = [ROWS, *MATRICES * 28, ROWS, VECTORS]
    assert len(groups) == 115
    stay = sum(groups[:46])
    found = state_bytes(chatglm3(), work)
    assert found.masters.bytes == found.gradients.bytes == 4 * stay
    assert found.optimizer.bytes == 8 * stay
    assert found.host["optimizer states"].bytes == 16 * (P - stay)


def test_a_single_sub_group_is_offloaded_whatever_the_ratio() -> None:
    """int(0.7 x 1) is 0: LoRA's states are one sub-group."""
    work = lora(zero_stage=3, offload_optimizer=True, on_host=0.3)
    assert state_bytes(chatglm3(), work).masters.bytes == 0


def test_stages_1_and_2_pin_each_buffer_on_its_own() -> None:
    """torch rounds each up to a power of two: masters, fp32 gradients, the copy, each sum."""
    work = full(offload_optimizer=True, pin_memory=True, accumulation=2, gradient_bytes=2)
    host = state_bytes(chatglm3(), work).host
    assert host["optimizer states"].bytes == 2 * 2**34 + 8 * P // 2  # 12.5e9 bytes each
    assert host["gradients and staging"].bytes == 2**33 + 2**29  # 6.2e9, and 533e6 bytes
    layer = 2**26 + 2**25 + 2**28 + 2**27  # 37.7e6, 33.6e6 (2^25 itself), 224e6, 112e6 bytes
    sums = 28 * layer + 2 * 2**29 + 2 * VECTORS
    assert host["accumulated gradients"].bytes == sums
    assert "accumulated gradients" not in state_bytes(chatglm3(), work.but(accumulation=1)).host


def test_stage_3_pins_gradients_by_sub_group_and_no_masters() -> None:
    """stage3.py clones masters, which are not pinned then."""
    work = full(zero_stage=3, offload_optimizer=True, pin_memory=True, gradient_bytes=2)
    groups = sub_groups(chatglm3(), work)
    host = state_bytes(chatglm3(), work).host
    rounded = sum(1 << (4 * size - 1).bit_length() for size in groups)
    assert host["optimizer states"].bytes == 12 * sum(groups) + rounded
    assert host["gradients and staging"].bytes == 2**33


def test_offloaded_weights_are_pinned_one_by_one_and_trained_ones_once_more() -> None:
    """Halves of ChatGLM3-6B's weights, each rounded up; LoRA's own buffer is small."""
    work = lora(zero_stage=3, world_size=2, offload_param=True, pin_memory=True)
    share = 28 * 8 * (4096 + 4608) // 2
    rest = VECTORS + 2 * share
    own = 1 << (2 * share - 1).bit_length()
    layer = 2**25 + 2**24 + 2**27 + 2**26  # 18.9e6, 16.8e6 (2^24 itself), 112e6, 56e6 bytes
    expected = 28 * layer + 2 * 2**28 + rest + own
    assert state_bytes(chatglm3(), work).host["weights"].bytes == pytest.approx(expected, abs=2)
