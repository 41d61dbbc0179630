"""The public Python API in one process: two runs after another, a dict as config."""

import json
import sys
import textwrap


def test_two_runs_in_one_process_are_the_same_run(project):
    """DeepSpeed keeps references to the process group: the second run must use the first's."""
    script = """
        import glmforge, json, pathlib, yaml
        config = yaml.safe_load(open("c.yaml"))
        for name in ("one", "two"):
            config["training"]["output_dir"] = name
            result = glmforge.train(config)
            assert result.step == result.total_steps
    """
    done = project.run(sys.executable, "-c", textwrap.dedent(script))
    assert done.returncode == 0, done.stderr[-3000:]

    def losses(name):
        text = (project.directory / name / "metrics.jsonl").read_text()
        rows = map(json.loads, text.splitlines())
        return [row["loss"] for row in rows if row["kind"] == "train"]

    assert losses("one") == losses("two")


def test_a_finished_run_is_left_alone(project):
    """Resuming it says so and changes nothing; with other settings it is refused."""
    command = ("glmforge", "train", "c.yaml")
    assert project.run(*command).returncode == 0
    final = project.directory / "run" / "final.json"
    before = (final.read_bytes(), final.stat().st_mtime_ns)
    again = project.run(*command, "--resume", "auto")
    assert again.returncode == 0
    assert "already complete: step 4 of 4" in again.stderr
    other = project.run(*command, "training.learning_rate=0.5", "--resume", "auto")
    assert other.returncode == 1
    assert "learning_rate was" in other.stderr
    assert (final.read_bytes(), final.stat().st_mtime_ns) == before
