"""Bad input, as a user meets it: one message, exit status 1, no traceback, nothing written."""

import socket
from pathlib import Path

import pytest
from e2e_project import Project

SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "localhost",
}


@pytest.mark.parametrize("processes", [[], ["--nproc", "2"]], ids=["alone", "launched"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train=none.jsonl", "data.train 'none.jsonl' does not exist"),
        ("training.leraning_rate=1", "leraning_rate, did you mean learning_rate?"),
        ("training.seed=many", "training.seed is 'many' (a text): expected a whole number"),
    ],
)
def test_bad_input_costs_one_message(
    project: Project, override: str, message: str, processes: list[str]
) -> None:
    before = project.files()
    done = project.run("glmforge", "train", "c.yaml", override, *processes)
    assert done.returncode == 1
    assert done.stderr.startswith("error: command line: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert project.files() == before


def test_a_model_directory_without_weights_is_named(project: Project) -> None:
    del project.settings["model"]["from_scratch"]
    project.write()
    before = project.files()
    done = project.run("glmforge", "train", "c.yaml", "--nproc", "2")
    assert done.returncode == 1
    assert done.stderr.startswith("error: c.yaml:2: model.model_name_or_path ")
    assert "has no weights (*.safetensors or *.bin)" in done.stderr
    assert project.files() == before


def test_two_faults_are_told_at_once_with_their_lines(project: Project) -> None:
    project.settings["training"]["leraning_rate"] = 1e-4
    project.settings["data"]["train"] = "none.jsonl"
    project.write()
    done = project.run("python", "-m", "glmforge", "train", "c.yaml", "--nproc", "2")
    assert done.returncode == 1
    first, second, third = done.stderr.splitlines()
    assert first == "error: 2 problems:"
    assert second == "1. c.yaml:13: unknown key training.leraning_rate, did you mean learning_rate?"
    assert third.startswith("2. c.yaml:6: data.train 'none.jsonl' does not exist")


def test_a_port_in_use_is_named(project: Project) -> None:
    before = project.files()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = project.run("glmforge", "train", "c.yaml", "--nproc", "2", "--master-port", port)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: port {port} is in use on this machine")
    assert "Traceback" not in done.stderr
    assert project.files() == before


def test_a_directory_that_holds_a_run_is_refused(project: Project) -> None:
    metrics = project.directory / "run" / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text("{}\n")
    before = project.files()
    done = project.run("glmforge", "train", "c.yaml", "--nproc", "2")
    assert done.returncode == 1
    assert "c.yaml:9: training.output_dir 'run' already holds a run" in done.stderr
    assert "--resume auto" in done.stderr
    assert project.files() == before


def test_ranks_of_a_foreign_launcher_say_it_once(project: Project, tmp_path: Path) -> None:
    """Two processes with srun's variables, as `srun -n 2 python -m glmforge train ...` makes."""
    command = ["python", "-m", "glmforge", "train", "c.yaml", "data.train=none.jsonl"]
    ranks = [
        project.start(
            *command,
            **SRUN,
            SLURM_PROCID=str(rank),
            SLURM_LOCALID=str(rank),
            TMPDIR=str(tmp_path),
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert sorted(map(bool, printed)) == [False, True]
    assert "data.train 'none.jsonl' does not exist" in "".join(printed)


def test_nproc_under_a_foreign_launcher_is_refused(project: Project, tmp_path: Path) -> None:
    variables = SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "TMPDIR": str(tmp_path)}
    done = project.run("glmforge", "train", "c.yaml", "--nproc", "2", **variables)
    assert done.returncode == 2
    assert "--nproc: slurm has started this program with 2 process(es)" in done.stderr
