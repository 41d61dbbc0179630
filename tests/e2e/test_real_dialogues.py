"""The main job on real dialogues: 500 service conversations, the original ChatGLM3 tokenizer.

A tiny random ChatGLM3 is trained by the command on two processes, exported, and opened again.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from e2e_project import CONFIG_JSON, Project
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import glmforge
from glmforge.models import load_config, new_model

STEPS = 12
IDS = torch.tensor([[64790, 64792, 64795, 30910, 13, 36474, 54591, 64796]])


@pytest.fixture(scope="module")
def model_dir(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("real") / "chatglm3"
    directory.mkdir()
    (directory / "config.json").write_text(
        json.dumps(CONFIG_JSON | {"padded_vocab_size": 65024, "seq_length": 1024})
    )
    torch.manual_seed(0)
    model = new_model(load_config(directory))
    model.save_pretrained(directory)
    for name in ("tokenizer.model", "tokenizer_config.json"):
        shutil.copy(shared / "tokenizers" / "chatglm3-6b" / name, directory / name)
    return directory


def project(tmp_path: Path, shared: Path, model_dir: Path, **changes: object) -> Project:
    data = shared / "data" / "crosswoz" / "crosswoz_val_chat.jsonl"
    settings: dict[str, dict[str, object]] = {
        "model": {"model_name_or_path": str(model_dir)},
        "data": {"train": str(data), "max_length": 1024},
        "training": {
            "output_dir": "run",
            "max_steps": STEPS,
            "per_device_train_batch_size": 1,
            "learning_rate": 1e-2,
            "logging_steps": 4,
        },
        "generation": {"prompts": ["你好"], "max_new_tokens": 4},
        **changes,
    }
    return Project(tmp_path, settings)


def merged_logits(directory: Path) -> torch.Tensor:
    """Logits by a fresh process, through the public API only."""
    with torch.no_grad():
        return glmforge.load_model(directory)(IDS).logits


def check_run(work: Project, *options: str) -> None:
    done = work.run("glmforge", "train", "c.yaml", "--nproc", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [row["loss"] for row in work.steps()]
    assert len(losses) == STEPS
    assert sum(losses[-3:]) < sum(losses[:3]) - 0.15
    done = work.run("glmforge", "export", "run", "merged", *options, "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["reopened"]["greedy_agreement"] == 1.0


def test_lora_under_zero_2(tmp_path, shared, model_dir):
    """The merged model's logits equal base + adapter in stock PEFT."""
    lora = {"lora_dropout": 0.0, "target_modules": ["all-linear"]}
    work = project(tmp_path, shared, model_dir, lora=lora)
    check_run(work, "--merge")
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    tuned = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").eval()
    with torch.no_grad():
        expected = tuned(IDS).logits
    assert torch.allclose(merged_logits(tmp_path / "merged"), expected, atol=1e-4)
    assert not torch.allclose(merged_logits(model_dir), expected, atol=1e-2)


def test_full_parameters_under_zero_3(tmp_path, shared, model_dir):
    """The written model equals DeepSpeed's own consolidation of the last checkpoint."""
    zero_3 = {"zero_optimization": {"stage": 3}}
    work = project(tmp_path, shared, model_dir, method="full", deepspeed=zero_3)
    check_run(work)
    checkpoint = tmp_path / "run" / "checkpoints" / f"step-{STEPS:06d}"
    done = work.run(
        "python",
        str(checkpoint / "zero_to_fp32.py"),
        str(checkpoint),
        "whole",
        "--safe_serialization",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    consolidated = load_file(tmp_path / "whole" / "model.safetensors")
    exported = load_file(tmp_path / "merged" / "model.safetensors")
    del exported["transformer.rotary_pos_emb.inv_freq"]  # a buffer that the vendor's code expects
    assert consolidated.keys() == exported.keys()
    assert all(torch.equal(consolidated[name], exported[name]) for name in exported)
    done = work.run("glmforge", "export", str(checkpoint), "best")
    assert done.returncode == 0, done.stderr[-3000:]
    best = load_file(tmp_path / "best" / "model.safetensors")
    assert all(torch.equal(best[name], exported[name]) for name in exported)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["method"] == "full"
