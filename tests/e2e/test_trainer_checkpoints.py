"""Checkpoints of transformers' Trainer with DeepSpeed, on two ranks, consolidated as they lie."""

import shutil
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from e2e_project import Project
from safetensors.torch import load_file

TRAIN = """
    import sys
    import torch
    import deepspeed.ops
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # not compiled for a test
    kind, stage = sys.argv[1], int(sys.argv[2])
    settings = {
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": False},
        "train_micro_batch_size_per_gpu": 1,
        "zero_allow_untested_optimizer": True,
    }
    arguments = TrainingArguments(
        output_dir="out", max_steps=2, save_steps=2, per_device_train_batch_size=1, use_cpu=True,
        report_to=[], learning_rate=1e-2, deepspeed=settings, optim="adamw_torch",
    )
    model = AutoModelForCausalLM.from_pretrained("base")
    if kind == "lora":
        targets = ["q_proj", "v_proj"]
        model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=targets))
    rows = [torch.randint(3, 100, (9,)) for _ in range(8)]
    Trainer(model, arguments, train_dataset=[{"input_ids": r, "labels": r} for r in rows]).train()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "stage"), [("full", 3), ("lora", 2)])
def test_the_trainers_shards_become_a_model_or_an_adapter(
    kind: str, stage: int, tmp_path: Path
) -> None:
    """Whole weights need no --base (config.json lies beside them); equal to the stock script."""
    from transformers import GlmConfig, GlmForCausalLM

    config = GlmConfig(
        vocab_size=101, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=2,
    )  # fmt: skip
    GlmForCausalLM(config).save_pretrained(tmp_path / "base")
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN), encoding="utf-8")
    work = Project(tmp_path, {})
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    done = work.run(*launch, "train.py", kind, str(stage))
    assert done.returncode == 0, done.stderr[-3000:]
    checkpoint = tmp_path / "out" / "checkpoint-2"
    base = () if kind == "full" else ("--base", "base")
    done = work.run("glmforge", "consolidate", str(checkpoint), "joined", *base)
    assert done.returncode == 0, done.stderr[-3000:]
    script = str(checkpoint / "zero_to_fp32.py")
    stock = (str(checkpoint), "stock", "-t", "global_step2", "--safe_serialization")
    done = work.run(sys.executable, script, *stock)
    assert done.returncode == 0, done.stderr[-3000:]
    name = "model" if kind == "full" else "adapter_model"
    ours = load_file(tmp_path / "joined" / f"{name}.safetensors")
    theirs = load_file(tmp_path / "stock" / "model.safetensors")
    theirs = {key.replace(".default", ""): tensor for key, tensor in theirs.items()}
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    shutil.rmtree(checkpoint)
