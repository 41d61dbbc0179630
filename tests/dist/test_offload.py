"""Optimizer states and parameters kept on the CPU change no loss; builds DeepSpeed's CPU Adam."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CASES = ("offload_optimizer_2", "offload_optimizer_3", "offload_both_3", "full_stage_2")
RESUMED = ("resume_offload_2", "resume_offload_3")
BUILD = "from deepspeed.ops.op_builder import CPUAdamBuilder; CPUAdamBuilder().load()"


@pytest.fixture(scope="module")
def two(launch, tmp_path_factory):
    """The optimizer is built once, in one process, in a folder that goes with the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))
        programs = str(Path(sys.executable).parent)  # where ninja is
        patch.setenv("PATH", programs + os.pathsep + os.environ["PATH"])
        subprocess.run([sys.executable, "-c", BUILD], check=True, timeout=1200, capture_output=True)
        return launch(2, *CASES, *RESUMED)


@pytest.mark.parametrize("case", CASES[:3])
def test_offloading_changes_no_loss(two, case):
    """Against torch's AdamW, five steps in fp32: another order of the same operations."""
    assert two[case]["loss"] == pytest.approx(two["full_stage_2"]["loss"], rel=1e-6)
    assert two[case]["eval"] == pytest.approx(two["full_stage_2"]["eval"], rel=1e-6)


@pytest.mark.parametrize("case", RESUMED)
def test_an_offloaded_run_that_is_resumed_is_bitwise_the_same(two, case):
    """DeepSpeed's native Adam would round its bias corrections otherwise after a load."""
    assert two[case]["resumed"] == two[case]["straight"]
    assert two[case]["weights_equal"]
