"""The embedded base through the whole program: LoRA, stop, resume, consolidate, export, chat."""

import json
import signal

import pytest
import yaml

from glmforge.assets import asset_path


@pytest.fixture(scope="module")
def base():
    directory = asset_path("base")
    assert (directory / "model.safetensors").is_file()
    return directory


def test_the_base_is_small_and_says_what_it_is(base):
    """At most 20 MB of fp16 weights, and a card with data, licences, curves and limits."""
    assert (base / "model.safetensors").stat().st_size <= 20_000_000
    card = (base / "README.md").read_text(encoding="utf-8")
    for word in ("licen", "perplexity", "tokens", "cannot"):
        assert word in card.lower()


def test_a_stopped_lora_run_goes_on_and_comes_out_in_both_layouts(base, project):
    """What is exported answers in a fresh process, the same in both layouts."""
    config = yaml.safe_load((asset_path("demo") / "demo.yaml").read_text(encoding="utf-8"))
    config["model"]["model_name_or_path"] = str(base)
    names = {"train": "validation", "validation": "facts_validation"}
    files = {part: str(asset_path(f"demo/{name}.jsonl")) for part, name in names.items()}
    config["data"] = {**files, "max_length": 256}
    config["training"] |= {"output_dir": "run", "max_steps": 12, "save_steps": 4}
    del config["training"]["num_train_epochs"]
    project.settings.clear()
    project.settings.update(config)
    project.write()
    process = project.start("glmforge", "train", "c.yaml")
    said = [""]
    while "step 1/12" not in said[-1] and (line := process.stderr.readline()):
        said.append(line)
    process.send_signal(signal.SIGTERM)
    said.append(process.communicate(timeout=240)[1])
    assert process.returncode == 75, "".join(said)
    stopped_at = len(project.steps())
    assert 1 <= stopped_at < 12
    done = project.run("glmforge", "train", "c.yaml", "--resume", "auto")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [row["step"] for row in project.steps()] == list(range(1, 13))

    done = project.run("glmforge", "consolidate", "run/checkpoints/step-000012", "adapter")
    assert done.returncode == 0, done.stderr[-3000:]
    answers = []
    for layout in ("chatglm", "transformers"):
        command = ("glmforge", "export", "adapter", layout, "--merge", "--base", str(base))
        done = project.run(*command, "--layout", layout)
        assert done.returncode == 0, done.stderr[-3000:]
        done = project.run("glmforge", "chat", layout, "--json", "--prompt", "你好")
        assert done.returncode == 0, done.stderr[-3000:]
        answers.append(json.loads(done.stdout)["answer"])
    assert answers[0] == answers[1] != ""
