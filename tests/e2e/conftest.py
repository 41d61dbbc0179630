"""Fixtures of the tests of the whole program."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_project import CONFIG_JSON, Project, dialogues


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ChatGLM3 directory with a vocabulary of its own and no weights."""
    from glmforge.data import train_vocabulary

    directory = tmp_path_factory.mktemp("model") / "chatglm3-tiny"
    texts = [message["content"] for row in dialogues() for message in row["messages"]]
    train_vocabulary(texts, directory, 300)
    (directory / "config.json").write_text(json.dumps(CONFIG_JSON), encoding="utf-8")
    return directory


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Project:
    """Four steps of full training from random weights on 16 dialogues."""
    lines = [json.dumps(row) for row in dialogues()]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings: dict[str, dict[str, object]] = {
        "model": {"model_name_or_path": str(tiny_model), "from_scratch": True},
        "method": "full",
        "data": {"train": "train.jsonl", "max_length": 64},
        "training": {
            "output_dir": "run",
            "max_steps": 4,
            "per_device_train_batch_size": 1,
            "learning_rate": 1e-3,
        },
    }
    return Project(tmp_path, settings)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool], float], None]:
    """Wait until a condition holds, or fail after some seconds."""
    import time

    def wait(condition: Callable[[], bool], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} seconds"
            time.sleep(0.05)

    return wait
