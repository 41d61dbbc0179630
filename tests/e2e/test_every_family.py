"""Every generation through the main job: LoRA, a merged export, an answer from it.

Tiny random models with the original tokenizers, one process; what is learned does not matter.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_project import CONFIG_JSON, Project
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.models import load_config, new_model

DECODER: dict[str, Any] = CONFIG_JSON | {"ffn_hidden_size": 96}
FAMILIES: dict[str, dict[str, Any]] = {
    "chatglm-6b": {
        "model_type": "chatglm",
        "hidden_size": 32,
        "inner_hidden_size": 64,
        "num_attention_heads": 2,
        "num_layers": 2,
        "max_sequence_length": 512,
        "position_encoding_2d": True,
        "layernorm_epsilon": 1e-05,
        "vocab_size": 130528,
        "bos_token_id": 130004,
        "eos_token_id": 130005,
        "mask_token_id": 130000,
        "gmask_token_id": 130001,
        "pad_token_id": 3,
        "torch_dtype": "float32",
    },
    "chatglm2-6b": DECODER | {"_name_or_path": "THUDM/chatglm2-6b", "padded_vocab_size": 65024},
    "glm-4-9b-chat": DECODER
    | {
        "_name_or_path": "THUDM/glm-4-9b-chat",
        "padded_vocab_size": 151552,
        "rope_ratio": 500,
        "eos_token_id": [151329, 151336, 151338],
        "pad_token_id": 151329,
    },
}


def answered(*words: str) -> Any:
    """What a command prints with --json; here in this process, to start fewer of them."""
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_family_is_trained_exported_and_answers(
    name: str,
    shared: Path,
    tmp_path: Path,
    warm_proofs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three steps on real service dialogues; the exported model opens in a fresh process."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(FAMILIES[name]))
    for path in (shared / "tokenizers" / name).iterdir():
        if path.name.startswith(("tokenizer", "ice_text")):
            shutil.copy(path, model / path.name)
    torch.manual_seed(0)
    new_model(load_config(model)).save_pretrained(model)
    data = shared / "data" / "crosswoz" / "crosswoz_val_chat.jsonl"
    lines = data.read_text(encoding="utf-8").splitlines(keepends=True)[:12]
    (tmp_path / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    settings: dict[str, dict[str, object]] = {
        "model": {"model_name_or_path": "model"},
        "data": {"train": "train.jsonl", "max_length": 512},
        "training": {"output_dir": "run", "max_steps": 3, "learning_rate": 1e-2},
        "generation": {"prompts": ["你好"], "max_new_tokens": 4},
    }
    work = Project(tmp_path, settings)
    done = work.run("glmforge", "train", "c.yaml")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(work.steps()) == 3
    monkeypatch.chdir(tmp_path)
    report = answered("export", "run", "merged", "--merge", "--json")
    assert report["reopened"]["greedy_agreement"] == 1.0
    assert answered("chat", "merged", "--prompt", "你好", "--json")["prompt"] == "你好"
