"""The doctor: each check's verdict and fix, without a GPU."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from glmforge.assets import asset_path
from glmforge.cli.main import main
from glmforge.launch import devices, doctor, preflight, selftest
from glmforge.launch.doctor import examine
from glmforge.launch.preflight import (
    compiler_check,
    environment_checks,
    lock_checks,
    machine_checks,
    version_checks,
)
from small_models import TINY_MODEL


def verdicts(checks: object) -> dict[str, str]:
    return {check.name: check.verdict for check in checks}  # type: ignore[attr-defined]


def test_installed_versions_are_in_the_tested_ranges() -> None:
    """Those that the tests run with."""
    assert set(verdicts(version_checks()).values()) <= {"pass", "warn"}


def test_a_version_that_is_too_old_fails_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 2.4."""
    monkeypatch.setattr(preflight.importlib.metadata, "version", lambda name: "2.4.1")
    torch = next(check for check in version_checks() if check.name == "torch")
    assert torch.verdict == "fail"
    assert torch.fix == "pip install --upgrade 'torch>=2.11'"


def test_the_machine_is_judged_for_so_many_ranks(tmp_path: Path) -> None:
    """A thousand ranks do not fit any test machine's memory."""
    found = verdicts(machine_checks(tmp_path / "not" / "yet", 1))
    assert set(found) == {"host memory", "/dev/shm", "disk", "open files"}
    assert verdicts(machine_checks(tmp_path, 10_000))["host memory"] == "warn"


@pytest.mark.parametrize(
    ("hard", "fix"),
    [
        (256, "the hard limit is 256 too: as root write '* hard nofile 65536'"),
        (8192, "ulimit -n 8192"),
        (1 << 20, "ulimit -n 65536"),
        (preflight.resource.RLIM_INFINITY, "ulimit -n 65536"),
    ],
)
def test_the_fix_of_few_open_files_is_one_that_can_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: int, fix: str
) -> None:
    """ulimit raises the soft limit up to the hard one, no further."""
    monkeypatch.setattr(preflight.resource, "getrlimit", lambda what: (256, hard))
    found = next(each for each in machine_checks(tmp_path, 1) if each.name == "open files")
    assert found.verdict == "warn"
    assert found.fix.startswith(fix)


def test_a_lock_that_a_dead_compilation_left_is_named(tmp_path: Path) -> None:
    """Later runs would wait for it in silence."""
    lock = tmp_path / "py312_cpu" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    place = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert verdicts(lock_checks(place)) == {"compilation locks": "pass"}
    old = time.time() - 3600
    os.utime(lock, (old, old))
    (check,) = lock_checks(place)
    assert check.verdict == "warn"
    assert check.fix.endswith(f"rm {lock}")


def test_offloading_without_a_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """S05: DeepSpeed's CPU Adam is compiled on first use."""
    monkeypatch.setattr(preflight.shutil, "which", lambda name: None)
    assert compiler_check(offload=True).verdict == "fail"
    assert compiler_check(offload=False).verdict == "warn"


@pytest.mark.parametrize(
    ("built", "nvcc", "offload", "verdict"),
    [
        (None, None, True, "pass"),
        ("13.0", None, False, "pass"),
        ("13.0", None, True, "warn"),
        ("13.0", "12.4", True, "fail"),
        ("13.0", "13.1", True, "pass"),
    ],
)
def test_the_toolkit_matters_where_something_is_compiled_with_it(
    monkeypatch: pytest.MonkeyPatch,
    built: str | None,
    nvcc: str | None,
    offload: bool,
    verdict: str,
) -> None:
    """Offloading compiles DeepSpeed's CPU Adam, which wants the toolkit that torch is built for."""
    monkeypatch.setattr("torch.version.cuda", built)
    monkeypatch.setattr(doctor, "toolkit_version", lambda _: nvcc)
    check = doctor._toolkit_check(offload=offload)
    assert check.verdict == verdict
    assert bool(check.fix) == (verdict != "pass")


def test_the_toolkit_is_the_one_that_cuda_home_names(tmp_path: Path) -> None:
    """As DeepSpeed and torch look for it."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    nvcc.chmod(0o755)
    assert preflight.toolkit_version({"CUDA_HOME": str(tmp_path)}) == "12.4"
    assert preflight.toolkit_version({"CUDA_HOME": str(tmp_path / "none")}) is None


@pytest.mark.parametrize(
    ("kinds", "verdict", "words"),
    [
        ({"-", "NV"}, "pass", "NVLink between all"),
        ({"-", "NV", "P2P"}, "warn", "not all pairs have NVLink"),
        ({"-", "host"}, "warn", "cannot read each other's memory"),
    ],
)
def test_links_are_judged_by_the_slowest_pair(kinds: set[str], verdict: str, words: str) -> None:
    """NVLink, peer access over PCIe, or the host's memory."""
    check = doctor._link_check(kinds, "0: - NV")
    assert (check.verdict, words in check.found) == (verdict, True)


def test_the_matrix_names_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards with NVLink, a third that only reads over PCIe, a fourth behind another bridge."""

    class Driver:
        def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
            handle._obj.value = index.value + 1
            return 0

        def nvmlDeviceGetP2PStatus(self, one: Any, other: Any, kind: Any, state: Any) -> int:
            pair = {one.value, other.value}
            joined = pair == {1, 2} if kind.value == 2 else 4 not in pair
            state._obj.value = 0 if joined else 1
            return 0

        def nvmlShutdown(self) -> int:
            return 0

    monkeypatch.setattr(devices, "_nvml", Driver)
    cards = [
        devices.Device(
            index=index,
            name="card",
            total_bytes=1,
            free_bytes=1,
            capability=(9, 0),
            uuid=f"GPU-{index}",
        )
        for index in range(4)
    ]
    assert devices.link_matrix(cards) == [
        ["-", "NV", "P2P", "host"],
        ["NV", "-", "P2P", "host"],
        ["P2P", "P2P", "-", "host"],
        ["host", "host", "host", "-"],
    ]


def test_a_slurm_job_is_named_with_how_to_start_in_it() -> None:
    """An sbatch script or a salloc shell is no step of tasks."""
    found = {c.name: c for c in environment_checks({"SLURM_JOB_ID": "7"})}
    assert "start with srun" in found["Slurm"].found


def test_half_of_a_launchers_variables_fail() -> None:
    """RANK alone."""
    found = verdicts(environment_checks({"RANK": "0"}))
    assert found["launcher's variables"] == "fail"
    assert verdicts(environment_checks({}))["launcher's variables"] == "pass"
    assert verdicts(environment_checks({"OMPI_COMM_WORLD_SIZE": "2"}))["MPI variables"] == "warn"


@pytest.mark.slow
def test_the_all_reduce_is_right_between_two_processes() -> None:
    """gloo, on the CPU."""
    check = selftest.all_reduce_check(2, limit=120)
    assert check.verdict == "pass", check
    assert "gloo, 2 ranks" in check.found


def test_an_all_reduce_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are not ready in time stand for a broken link."""
    monkeypatch.setattr(selftest, "IMPORT_SECONDS", 0.2)
    begin = time.monotonic()
    check = selftest.all_reduce_check(2, limit=1)
    assert check.verdict == "fail"
    assert "no answer from 2 ranks" in check.found
    assert time.monotonic() - begin < 20


def demo_config(tmp_path: Path, train: Path) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps(
            {
                "model": {
                    "model_name_or_path": str(TINY_MODEL),
                    "from_scratch": True,
                },
                "method": "full",
                "data": {"train": str(train), "max_length": 512},
                "training": {"output_dir": str(tmp_path / "run")},
            }
        )
    )
    return file


def test_a_config_is_checked_with_its_model_and_data(tmp_path: Path) -> None:
    """The demo's own files are fine."""
    config = demo_config(tmp_path, asset_path("demo") / "train.jsonl")
    found = verdicts(examine(config, self_test=False))
    assert (found["config"], found["model"], found["data"]) == ("pass", "pass", "pass")


def test_rows_longer_than_the_positions_fail_here_as_in_training(tmp_path: Path) -> None:
    """Not only once the run is started."""
    config = demo_config(tmp_path, asset_path("demo") / "train.jsonl")
    checks = examine(config, ["data.max_length=99999"], self_test=False)
    (fault,) = (check for check in checks if check.name == "model" and check.verdict == "fail")
    assert "data.max_length is 99999 tokens, and the model has" in fault.found
    assert fault.fix.startswith("write data.max_length=")


def test_a_used_output_dir_does_not_end_the_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Model and data are looked at all the same; what the config's fault names is not repeated."""
    from glmforge.config.paths import RUN_FILES

    config = demo_config(tmp_path, asset_path("demo") / "train.jsonl")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_FILES[0]).touch()
    found = verdicts(examine(config, self_test=False))
    assert (found["config"], found["model"], found["data"]) == ("fail", "pass", "pass")
    found = verdicts(examine(config, ["data.train=none.jsonl"], self_test=False))
    assert found["model"] == "pass"
    assert "data" not in found
    argv = ["glmforge", "doctor", str(config), "--no-self-test"]
    monkeypatch.setattr(sys, "argv", argv)
    assert main() == 1
    assert "1 warnings" not in capsys.readouterr().out


def test_exit_status_1_where_something_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A data file that is not there; --json names it."""
    config = demo_config(tmp_path, tmp_path / "none.jsonl")
    argv = ["glmforge", "doctor", str(config), "--no-self-test", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    assert main() == 1
    found = json.loads(capsys.readouterr().out)
    failed = [check for check in found if check["verdict"] == "fail"]
    assert any("none.jsonl" in check["found"] for check in failed)
    assert all(check["fix"] for check in failed)


def test_settings_of_the_command_line_count_as_in_plan_and_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's data is there, the command line's is not."""
    config = demo_config(tmp_path, asset_path("demo") / "train.jsonl")
    missing = f"data.train={tmp_path / 'none.jsonl'}"
    argv = ["glmforge", "doctor", str(config), missing, "--no-self-test", "--json"]
    monkeypatch.setattr(sys, "argv", argv)
    assert main() == 1
    found = json.loads(capsys.readouterr().out)
    (said,) = [check for check in found if check["name"] == "config"]
    assert said["verdict"] == "fail"
    assert "command line: data.train" in said["found"]
    assert said["fix"] == "correct it"


def test_a_config_that_offloads_to_a_disk_fails_where_async_io_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that does not is not asked."""
    monkeypatch.setattr("glmforge.distributed.zero.async_io_problem", lambda: "no libaio")
    text = (
        f"model: {{model_name_or_path: {TINY_MODEL}, from_scratch: true}}\n"
        f"method: full\ndata: {{train: {asset_path('demo/train.jsonl')}}}\n"
        f"training: {{output_dir: {tmp_path / 'run'}}}\n"
    )
    config = tmp_path / "c.yaml"
    config.write_text(text, encoding="utf-8")
    assert "async_io" not in verdicts(examine(config, self_test=False))
    offload = "{device: nvme, nvme_path: /disk}"
    config.write_text(
        f"{text}deepspeed: {{zero_optimization: {{stage: 3, offload_param: {offload}}}}}\n",
        encoding="utf-8",
    )
    assert verdicts(examine(config, self_test=False))["async_io"] == "fail"
