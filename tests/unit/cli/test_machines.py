"""`glmforge train --slurm` and the options about machines: what is written, started and refused."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from glmforge.cli import machines
from glmforge.cli.machines import MachineOptions, leave_for_machines
from glmforge.config import config_from_mapping
from glmforge.distributed.env import World
from glmforge.errors import ConfigError, LaunchError, UsageError


def run(tmp_path: Path, deepspeed: dict[str, Any] | None = None, **launch: Any) -> Any:
    return config_from_mapping(
        {
            "deepspeed": deepspeed,
            "model": {"model_name_or_path": "model"},
            "data": {"train": "train.jsonl"},
            "training": {"output_dir": str(tmp_path / "runs" / "one")},
            "launch": launch,
        }
    )


def options(**values: Any) -> MachineOptions:
    names = ("nnodes", "node_rank", "rdzv", "hostfile")
    return MachineOptions(*(values.get(name) for name in names), values.get("slurm", False))


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would prepare the data; it succeeds."""
    seen: list[list[str]] = []
    monkeypatch.setattr(machines, "run_without_gpus", lambda words: seen.append(words) or 0)
    return seen


def test_slurm_writes_a_script_with_the_runs_own_arguments(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prepared: list[list[str]],
) -> None:
    """Processes become tasks; srun decides about them, so the config's are taken back."""
    monkeypatch.setenv("PATH", str(tmp_path))
    argv = ["train", "c.yaml", "training.seed=3", "launch.nproc=8", "--ignore-plan"]
    chosen = options(slurm=True, nnodes=2)
    assert leave_for_machines(chosen, run(tmp_path, nproc=8), argv, World(), {}) == 0
    script = tmp_path / "runs" / "one.sbatch"
    text = script.read_text()
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n" in text
    words = "c.yaml training.seed=3 --ignore-plan launch.nproc=null --resume auto"
    assert f"-m glmforge train {words}\n" in text
    assert f" {shlex.quote(sys.executable)} " in text
    read = ["data", "prepare", "c.yaml", "training.seed=3", "--quiet", "--no-rebuild"]
    assert prepared == [read]
    assert f"{script}: written; sbatch is not here" in capsys.readouterr().out


def test_slurm_submits_no_job_whose_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that prepares it has said why."""
    monkeypatch.setattr(machines, "run_without_gpus", lambda words: 1)
    monkeypatch.setattr(machines, "submit", lambda script: pytest.fail("submitted"))
    argv = ["train", "c.yaml"]
    assert leave_for_machines(options(slurm=True), run(tmp_path), argv, World(), {}) == 1
    assert not (tmp_path / "runs").exists()


def test_slurm_keeps_a_changed_script_and_says_so_first(
    tmp_path: Path, prepared: list[list[str]]
) -> None:
    """Before the data is read."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.sbatch").write_text("#!/bin/bash\n")
    with pytest.raises(LaunchError, match=r"one\.sbatch is there and was changed"):
        leave_for_machines(options(slurm=True), run(tmp_path), ["train", "c"], World(), {})
    assert prepared == []


def test_slurm_refuses_what_it_could_not_follow(tmp_path: Path) -> None:
    """Two cards for eight processes; a meeting point of one's own."""
    config = run(tmp_path, gpus="0,1", nproc=8, master_port=5000, master_addr="10.0.0.1")
    with pytest.raises(UsageError) as caught:
        leave_for_machines(options(slurm=True), config, ["train", "c"], World(), {})
    first, second, third = caught.value.problems
    assert first.startswith("--nproc 8 with --gpus 0,1 (2 GPU(s))")
    assert second.startswith("--slurm with --master-addr 10.0.0.1")
    assert third.startswith("--slurm with --master-port 5000")
    assert "launch.master_port=null" in third


def test_slurm_chooses_the_machines(tmp_path: Path) -> None:
    """--rdzv beside --slurm is refused."""
    with pytest.raises(UsageError, match="--slurm with --rdzv"):
        leave_for_machines(options(slurm=True, rdzv="a"), run(tmp_path), ["train"], World(), {})


def test_nothing_about_machines_leaves_the_run_here(tmp_path: Path) -> None:
    """None: go on."""
    assert leave_for_machines(options(), run(tmp_path), ["train"], World(), {}) is None


def test_options_about_machines_start_this_machines_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 of 2 with two processes."""
    seen: list[Any] = []
    monkeypatch.setattr(machines, "launch_nodes", lambda *a, **k: seen.append((a, k)) or 0)
    chosen = options(nnodes=2, node_rank=1, rdzv="host-0:29401")
    assert (
        leave_for_machines(
            chosen, run(tmp_path, nproc=2), ["train", "c"], World(), {"--resume": "auto"}
        )
        == 0
    )
    ((argv, settings), rest) = seen[0]
    assert argv == ["train", "c"]
    assert (settings.node, settings.address, settings.port, settings.nproc) == (
        1,
        "host-0",
        29401,
        2,
    )
    assert rest["record"] == tmp_path / "runs" / "one"
    assert rest["alike"]["training.learning_rate"] == "5e-05"
    assert rest["alike"]["--resume"] == '"auto"'
    assert "launch.nproc" not in rest["alike"]


def test_a_map_that_fits_no_number_of_ranks_is_judged_before_and_after_the_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Machines may start unlike numbers: told before the wait, refused once all have met."""
    seen: list[Any] = []
    monkeypatch.setattr(machines, "launch_nodes", lambda *a, **k: seen.append(k) or 0)
    chosen = options(nnodes=2, node_rank=0, rdzv="127.0.0.1")
    deepspeed = {"train_batch_size": 9, "gradient_accumulation_steps": 1}
    config = run(tmp_path, deepspeed=deepspeed, nproc=4)
    assert leave_for_machines(chosen, config, ["train", "c"], World(), {}) == 0
    said = capsys.readouterr().err
    assert "launch: if each of the 2 machines starts 4 process(es): " in said
    assert "train_batch_size" in said
    with pytest.raises(ConfigError, match="train_batch_size"):
        seen[0]["judge"](8)


def test_incomplete_options_are_named(tmp_path: Path) -> None:
    """--nnodes alone."""
    with pytest.raises(LaunchError, match="--node-rank"):
        leave_for_machines(options(nnodes=2), run(tmp_path), ["train"], World(), {})


def test_a_launcher_that_has_decided_refuses_them(tmp_path: Path) -> None:
    """torchrun knows its machines."""
    world = World(world_size=2, local_world_size=2, launcher="torchrun")
    with pytest.raises(UsageError, match="torchrun has started this program"):
        leave_for_machines(options(nnodes=2), run(tmp_path), ["train"], world, {})
    ours = World(world_size=2, local_world_size=2, launcher="glmforge")
    assert leave_for_machines(options(), run(tmp_path), ["train"], ours, {}) is None


def test_the_options_are_in_the_help(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """glmforge train --help."""
    from glmforge.cli.main import main

    monkeypatch.setattr(sys, "argv", ["glmforge", "train", "--help"])
    monkeypatch.setitem(os.environ, "COLUMNS", "200")
    assert main() == 0
    said = capsys.readouterr().out
    for name in ("--nnodes", "--node-rank", "--rdzv", "--hostfile", "--slurm"):
        assert name in said
