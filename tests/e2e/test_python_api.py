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
