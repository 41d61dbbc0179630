"""The same run under every launcher, word for word, and what happens when it is disturbed."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_project import Project

Wait = Callable[[Callable[[], bool], float], None]


def losses(project: Project) -> list[float]:
    return [round(float(row["loss"]), 5) for row in project.steps()]


@pytest.fixture(scope="session")
def reference() -> dict[str, list[float]]:
    """The losses of the first run of a session; the others must give the same."""
    return {}


def check(
    project: Project, done: "subprocess.CompletedProcess[str]", reference: dict[str, list[float]]
) -> None:
    """A whole run on two processes, equal to the runs under other launchers."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (project.directory / "run" / "final.json").exists()
    found = losses(project)
    assert len(found) == 4
    assert found == reference.setdefault("two processes", found)


def test_our_own_launcher(project: Project, reference: dict[str, list[float]]) -> None:
    done = project.run("glmforge", "train", "c.yaml", "--nproc", "2")
    check(project, done, reference)
    assert done.stderr.startswith("launch: 2 process(es), meeting at 127.0.0.1:")
    assert done.stdout == ""


@pytest.mark.slow
def test_torchrun(project: Project, reference: dict[str, list[float]]) -> None:
    command = "torchrun --nproc_per_node 2 -m glmforge train c.yaml"
    check(project, project.run(*command.split()), reference)


@pytest.mark.slow
def test_deepspeed(project: Project, reference: dict[str, list[float]]) -> None:
    command = "deepspeed --num_gpus 2 --master_port 29500 --module glmforge train c.yaml"
    check(project, project.run(*command.split()), reference)


@pytest.mark.slow
def test_srun(project: Project, reference: dict[str, list[float]]) -> None:
    """`srun -n 2 python -m glmforge train c.yaml`, by the variables that it sets."""
    job = {
        "SLURM_JOB_ID": str(int(time.time())),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_NODEID": "0",
        "SLURM_JOB_NODELIST": "localhost",
    }
    command = ["python", "-m", "glmforge", "train", "c.yaml"]
    ranks = [
        project.start(*command, **job, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    done = subprocess.CompletedProcess(command, 0, *printed[0])
    check(project, done, reference)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def rank_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v.decode() for v in variables if v.startswith(b"RANK=")).removeprefix("RANK=")


def start_long_run(project: Project, wait_for: Wait) -> "subprocess.Popen[str]":
    """Start a run of many steps on two processes and wait until it trains."""
    project.settings["training"]["max_steps"] = 100_000
    project.write()
    process = project.start("glmforge", "train", "c.yaml", "--nproc", "2")
    metrics = project.directory / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 120)
    return process


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_run_ends_soon(project: Project, wait_for: Wait) -> None:
    process = start_long_run(project, wait_for)
    ranks = {rank_of(pid): pid for pid in children(process.pid)}
    begin = time.monotonic()
    subprocess.run(["kill", "-KILL", str(ranks["1"])], check=True)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    assert process.returncode == 4
    assert "error: rank 1 of 2 died of signal 9 (SIGKILL)" in err
    assert "Traceback" not in err
    assert not Path(f"/proc/{ranks['0']}").exists()


@pytest.mark.slow
def test_sigterm_stops_with_a_checkpoint_and_the_run_goes_on_from_it(
    project: Project, wait_for: Wait
) -> None:
    process = start_long_run(project, wait_for)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "Traceback" not in err
    assert list((project.directory / "run" / "checkpoints").glob("step-*/manifest.json"))
    final = json.loads((project.directory / "run" / "final.json").read_text(encoding="utf-8"))
    assert final["status"] == "stopped"
    assert "SIGTERM" in final["why"]
    before = len(project.steps())
    again = project.start("glmforge", "train", "c.yaml", "--nproc", "2", "--resume", "auto")
    wait_for(lambda: len(project.steps()) > before, 120)
    again.send_signal(signal.SIGUSR1)  # a scheduler's warning of preemption
    _, err = again.communicate(timeout=120)
    assert again.returncode == 75, err
    final = json.loads((project.directory / "run" / "final.json").read_text(encoding="utf-8"))
    assert "SIGUSR1" in final["why"]
    assert [row["step"] for row in project.steps()] == list(range(1, len(project.steps()) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["the process", "torchrun"])
def test_a_second_sigterm_ends_a_process_under_torchrun(
    project: Project, wait_for: Wait, to: str
) -> None:
    """In the middle of a very long step; torchrun passes both of its own on."""
    project.settings["training"]["gradient_accumulation_steps"] = 1_000_000
    project.write()
    process = project.start(*"torchrun --nproc_per_node 1 -m glmforge train c.yaml".split())
    wait_for((project.directory / "run" / "heartbeats").is_dir, 120)
    (rank,) = children(process.pid)
    target = rank if to == "the process" else process.pid
    os.kill(target, signal.SIGTERM)
    time.sleep(2.5)
    assert Path(f"/proc/{rank}").exists()
    begin = time.monotonic()
    os.kill(target, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - begin < 20
    assert process.returncode != 0
    assert "ended at once, at the second SIGTERM" in err
    assert not Path(f"/proc/{rank}").exists()
