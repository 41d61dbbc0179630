"""`glmforge compare` as a user runs it: after a run, on one process and on two."""

import json
from pathlib import Path
from typing import Any

from e2e_project import Project

QUESTIONS = ["question 3 about parcel 21", "question 40 about parcel 8", "parcel?"]


def compared(project: Project, out: str, *options: str, command: tuple[str, ...] = ()) -> Any:
    base = str(project.settings["model"]["model_name_or_path"])
    done = project.run(
        *(command or ("glmforge",)), "compare", "--base", base, "--tuned", "run",
        "--prompts", "q.txt", "--out", out, "--max-new-tokens", "5", "--seeds", "2",
        "--batch-size", "2", "--validation", "train.jsonl", "--no-general", *options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    path = project.directory / out
    return done, json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def test_a_run_is_compared_with_the_weights_it_began_from(
    project: Project, tiny_model: Path
) -> None:
    (project.directory / "q.txt").write_text("\n".join(QUESTIONS), encoding="utf-8")
    assert project.run("glmforge", "train", "c.yaml").returncode == 0
    done, one = compared(project, "one.html")
    assert "random weights, as the run began (seed 42)" in one["models"][0]["about"]
    assert [prompt["seen"] for prompt in one["prompts"]] == [True, False, False]
    assert {len(rows) for rows in one["models"][1]["answers"].values()} == {3}
    assert one["models"][1]["loss"] < one["models"][0]["loss"]
    last = done.stdout.splitlines()
    assert last[-1] == "report: one.html (also one.md, one.json)"
    assert last[-2].startswith("run: validation loss ")
    page = (project.directory / "one.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("question 40 about parcel 8") == 1
    assert "cut by length in" in (project.directory / "one.md").read_text(encoding="utf-8")

    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "glmforge")
    _, two = compared(project, "two.html", command=torchrun)
    assert (project.directory / "two.answers" / "rank-1.jsonl").exists(), "work was shared"
    assert [m["answers"] for m in two["models"]] == [m["answers"] for m in one["models"]]
    for mine, theirs in zip(two["models"], one["models"], strict=True):
        assert abs(mine["loss"] - theirs["loss"]) < 1e-6

    losses = project.directory / "two.answers" / "losses.jsonl"
    kept = losses.read_text(encoding="utf-8")
    again, resumed = compared(project, "two.html", "--nproc", "2")
    assert "batches" not in again.stderr, "nothing is generated twice"
    assert losses.read_text(encoding="utf-8") == kept, "nor is a loss found twice"
    assert resumed == two


def test_what_cannot_be_compared_is_said_before_anything_is_loaded(project: Project) -> None:
    cases = {
        ("compare",): (2, "compare what? Models: --base DIR"),
        ("compare", "--base", "b", "--tuned", "run", "--prompts", "q.txt"): (1, "--base b: no"),
        ("compare", "--base", "b", "--tuned", "r", "--prompts", "q", "--out", "r.txt"): (
            2,
            "ends with .html",
        ),
        ("compare", "--base", "b", "--tuned", "r", "--prompts", "q", "--judge-url", "http://h"): (
            2,
            "a judge needs both",
        ),
    }
    for arguments, (status, words) in cases.items():
        done = project.run("glmforge", *arguments)
        assert (done.returncode, words in done.stderr) == (status, True), done.stderr
        assert "Traceback" not in done.stderr
