"""The Slurm job: what the script says, and what happens with and without sbatch."""

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.launch.slurm import SlurmJob, refuse_changed, submit, write_job


def job(tmp_path: Path, *arguments: str) -> SlurmJob:
    return SlurmJob(
        nodes=2,
        tasks_per_node=8,
        arguments=("run config.yaml", *arguments),
        directory=tmp_path,
        run_dir=tmp_path / "runs" / "first",
    )


def test_the_script_asks_for_machines_a_warning_and_another_turn(tmp_path: Path) -> None:
    """One task a GPU, SIGUSR1 two minutes before the end, requeue at status 75."""
    script = write_job(job(tmp_path), ["glmforge"])
    text = script.read_text()
    assert script == tmp_path / "runs" / "first.sbatch"
    for line in (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --requeue",
        "#SBATCH --signal=USR1@120",
        "srun --kill-on-bad-exit=0 --wait=60 glmforge train 'run config.yaml' --resume auto",
    ):
        assert line in text.splitlines()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_a_resume_that_was_written_stays(tmp_path: Path) -> None:
    """--resume is given once."""
    text = write_job(job(tmp_path, "--resume", "runs/first"), ["glmforge"]).read_text()
    assert "--resume runs/first\n" in text
    assert "--resume auto" not in text


def test_the_program_is_named_with_its_path(tmp_path: Path) -> None:
    """A job may have another PATH; a path may have a space."""
    text = write_job(job(tmp_path), ["/my venv/bin/python", "-m", "glmforge"]).read_text()
    assert "--wait=60 '/my venv/bin/python' -m glmforge train 'run config.yaml'" in text


def test_a_preflight_takes_one_turn(tmp_path: Path) -> None:
    """It writes nothing to go on from."""
    script = write_job(job(tmp_path, "--preflight"), ["glmforge"])
    text = script.read_text()
    assert "glmforge train 'run config.yaml' --preflight\n" in text
    for word in ("--requeue", "scontrol", "--signal", "--resume"):
        assert word not in text
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("#SBATCH --requeue", "#SBATCH --requeue\n#SBATCH -p gpu"),
        lambda text: text + "echo done\n",
        lambda text: "#!/bin/bash\nmy own\n",
        lambda text: "",
    ],
)
def test_a_changed_script_is_not_written_over(tmp_path: Path, change: Callable[[str], str]) -> None:
    """Partition and account are the user's to add there."""
    script = write_job(job(tmp_path), ["glmforge"])
    script.write_text(change(script.read_text()))
    theirs = script.read_text()
    with pytest.raises(LaunchError, match=r"was changed since glmforge wrote it.*`sbatch /"):
        write_job(job(tmp_path, "training.seed=4"), ["glmforge"])
    assert script.read_text() == theirs


def test_a_script_as_it_was_written_is_written_anew(tmp_path: Path) -> None:
    """With the arguments of now."""
    refuse_changed(tmp_path / "none.sbatch")
    write_job(job(tmp_path), ["glmforge"])
    script = write_job(job(tmp_path, "training.seed=4"), ["glmforge"])
    assert "training.seed=4" in script.read_text()


def test_a_run_directory_with_a_space_makes_one_word_of_the_job_name(tmp_path: Path) -> None:
    """Slurm reads its lines word by word."""
    spaced = dataclasses.replace(job(tmp_path), run_dir=tmp_path / "my runs" / "my run")
    lines = write_job(spaced, ["glmforge"]).read_text().splitlines()
    assert "#SBATCH --job-name=glmforge-my-run" in lines
    assert f"#SBATCH --output='{tmp_path}/my runs'/%j.log" in lines


@pytest.mark.parametrize("code", [0, 75, 4, 1, 3, 130, 138, 143])
def test_only_a_stop_by_the_warning_is_requeued(tmp_path: Path, code: int) -> None:
    """With a checkpoint (75) or while loading (130, 138), but not by scancel (143).

    The script is run with stand-ins for srun and scontrol.
    """
    script = write_job(job(tmp_path), ["glmforge"])
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text(f"#!/bin/sh\nexit {code}\n")
    (tools / "scontrol").write_text(f"#!/bin/sh\necho $@ > {tmp_path}/asked\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    variables = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    assert subprocess.run(["bash", str(script)], env=variables, check=False).returncode == code
    asked = tmp_path / "asked"
    assert asked.exists() == (code in (75, 130, 138))
    if asked.exists():
        assert asked.read_text() == "requeue 17\n"


def test_without_sbatch_nothing_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is there to be taken to the cluster."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path / "x.sbatch") is None


def test_sbatch_is_asked_and_its_refusal_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in accepts, then refuses."""
    sbatch = tmp_path / "sbatch"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sbatch.write_text("#!/bin/sh\necho Submitted batch job 17\n")
    sbatch.chmod(0o755)
    assert submit(tmp_path / "x.sbatch") == "Submitted batch job 17"
    sbatch.write_text("#!/bin/sh\necho invalid partition >&2\nexit 1\n")
    with pytest.raises(LaunchError, match="invalid partition"):
        submit(tmp_path / "x.sbatch")
