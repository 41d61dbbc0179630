"""DeepSpeed maps that users wrote: collected cases, nested keys, ignored options, large buckets."""

import json
from pathlib import Path

import pytest

from glmforge.errors import ConfigError
from glmforge.plan.batch import BatchSizes
from glmforge.plan.deepspeed_config import EngineSettings, bucket_warnings, write_config

ACCEPTED = {2, 4, 5, 8}  # 8: neither total nor micro-batch is written, the run config has both


def settings(micro: int = 2, accumulation: int = 8, world: int = 2) -> EngineSettings:
    sizes = BatchSizes(micro_batch=micro, accumulation=accumulation, world_size=world)
    return EngineSettings(sizes=sizes, precision="bf16", max_grad_norm=1.0)


def problems_of(user: dict, **sizes: int) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        write_config(settings(**sizes), user)
    return list(caught.value.problems)


def whole(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and value > 0 else otherwise


def test_the_batch_equation_of_the_collected_cases(shared: Path) -> None:
    """S01: what fits is taken, each refusal shows the equation or the wrong value."""
    for case in json.loads((shared / "cases" / "S01" / "cases.json").read_text()):
        user, world = case["ds_config"], case["world_size"]
        sizes = {
            "micro": whole(user.get("train_micro_batch_size_per_gpu"), 2),
            "accumulation": whole(user.get("gradient_accumulation_steps"), 8),
            "world": world,
        }
        if case["n"] in ACCEPTED:
            written = write_config(settings(**sizes), user)
            assert "auto" not in json.dumps(written)
            continue
        said = "\n".join(problems_of(user, **sizes))
        assert f"{world} process(es) = {sizes['micro'] * sizes['accumulation'] * world}" in said
        if case["n"] == 1:
            assert "= 2." in said
            assert "start 4 process(es) (one was started: --nproc 4, or a launcher)" in said
        if case["n"] == 3:
            assert "60 (5 steps) or 72 (6 steps)" in said
        if case["n"] == 6:
            assert "'8' (str)" in said
        if case["n"] == 7:
            assert "above 0" in said


def test_the_batch_of_a_guide_passes_and_without_accumulation_is_refused() -> None:
    """2 GPUs, micro-batch 2, accumulation 8, total 32; with accumulation 1 it is 4."""
    assert write_config(settings(), {"train_batch_size": 32})["train_batch_size"] == 32
    assert "= 4" in problems_of({"train_batch_size": 32}, accumulation=1)[0]
    assert write_config(settings(), {})["gradient_accumulation_steps"] == 8


def test_device_map_is_refused_with_the_reason(shared: Path) -> None:
    """S05: every process would spread the model over all cards."""
    plan = json.loads((shared / "cases" / "S05" / "plan.json").read_text())
    said = problems_of({"device_map": plan["device_map"]})
    assert "spreads one model over all cards" in said[0]


def test_buckets_of_a_billion_elements_are_named_on_a_24_gib_card(shared: Path) -> None:
    """S05: 2 GB each for reduction and prefetching."""
    plan = json.loads((shared / "cases" / "S05" / "plan.json").read_text())
    zero = {
        "stage": plan["zero_stage"],
        "reduce_bucket_size": plan["reduce_bucket_size"],
        "stage3_prefetch_bucket_size": plan["stage3_prefetch_bucket_size"],
    }
    written = write_config(settings(), {"zero_optimization": zero})
    said = bucket_warnings(written, plan["gpu_memory_gb"])
    assert len(said) == 2
    assert all("1.9 GiB on a card of 24 GiB" in line for line in said)
    assert bucket_warnings(write_config(settings(), {}), 24) == []


def test_nested_faults_are_all_reported_at_once() -> None:
    """Unknown key, text for a number, option of another stage, old spelling, unknown device."""
    said = "\n".join(
        problems_of(
            {
                "zero_optimization": {
                    "stage": 2,
                    "overlap_com": True,
                    "reduce_bucket_size": "2e8",
                    "stage3_max_live_parameters": 1e9,
                    "cpu_offload": True,
                    "offload_optimizer": {"device": "gpu", "pinned": True},
                },
                "bf16": {"enable": True},
            }
        )
    )
    assert "did you mean overlap_comm?" in said
    assert "'2e8' (str)" in said
    assert "stage3_max_live_parameters does nothing at stage 2" in said
    assert "offload_optimizer: {device: cpu}" in said
    assert "one of none, cpu, nvme is needed" in said
    assert "offload_optimizer.pinned is not a key" in said
    assert "did you mean enabled?" in said


def test_an_offload_that_is_no_map_and_a_bucket_of_zero_are_refused() -> None:
    """Both would fail inside DeepSpeed with an error that names neither."""
    said = "\n".join(
        problems_of(
            {"zero_optimization": {"stage": 3, "offload_param": "cpu", "reduce_bucket_size": 0}}
        )
    )
    assert "a map is needed, such as device: cpu" in said
    assert "at least one element" in said


def test_sizes_written_as_floats_become_whole_numbers() -> None:
    """YAML's 2e8 is a float, DeepSpeed's buffers take integers."""
    written = write_config(settings(), {"zero_optimization": {"reduce_bucket_size": 2e8}})
    assert repr(written["zero_optimization"]["reduce_bucket_size"]) == "200000000"


def test_nvme_needs_a_path_and_a_path_needs_nvme() -> None:
    """Each alone is a mistake."""
    zero = {"stage": 3, "offload_param": {"device": "nvme"}}
    assert "nvme_path (a directory" in problems_of({"zero_optimization": zero})[0]
    zero = {"stage": 3, "offload_param": {"device": "cpu", "nvme_path": "/x"}}
    assert "nvme_path does nothing" in problems_of({"zero_optimization": zero})[0]
