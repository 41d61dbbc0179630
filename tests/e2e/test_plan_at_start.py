"""What training does with the plan: prints it, keeps to it, tries it, and measures beside it."""

import json

PLAN_LINES = 5


def test_a_run_prints_the_plan_in_five_lines_and_the_peak_after_step_2(project):
    """Before any weight is read; on the CPU memory is that of the process."""
    done = project.run("glmforge", "train", "c.yaml")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stderr.splitlines()
    planned = [number for number, line in enumerate(lines) if line.startswith("plan: ")]
    assert len(planned) == PLAN_LINES
    assert planned[-1] - planned[0] == PLAN_LINES - 1
    assert "16 steps an epoch, 4 in all" in lines[planned[2]]
    assert "no speed is predicted" in lines[planned[3]]
    weights = next(number for number, line in enumerate(lines) if "model: random weights" in line)
    assert planned[-1] < weights
    measured = [line for line in lines if "GiB resident in the largest process" in line]
    assert len(measured) == 1


def test_preflight_tries_the_longest_batch_on_every_rank_and_writes_nothing(project):
    """Two ranks; the result names the batch, and the peaks of both."""
    done = project.run("glmforge", "train", "c.yaml", "--preflight", "--nproc", "2", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found["measured_gib"]) == 2
    assert found["row_tokens"] > 0
    assert "preflight: rank 0: peak" in done.stderr
    assert "preflight: rank 1: peak" in done.stderr
    assert not (project.directory / "run").exists()


def test_a_map_that_contradicts_the_config_is_refused_before_any_rank_starts(project):
    """The equation for the processes that were asked for."""
    done = project.run(
        "glmforge",
        "train",
        "c.yaml",
        "--nproc",
        "2",
        "training.precision=fp32",
        "deepspeed={train_batch_size: 3, fp16: {enabled: true}, zero_optimisation: {stage: 2}}",
    )
    assert done.returncode == 1
    assert "launch:" not in done.stderr
    for word in ("train_batch_size is 3", "fp16 is enabled, but this run computes in fp32"):
        assert word in done.stderr
    assert "did you mean zero_optimization?" in done.stderr
