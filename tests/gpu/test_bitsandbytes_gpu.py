"""QLoRA and 8-bit AdamW on one GPU, where bitsandbytes is there: they learn, and stay four-bit."""

import json

import pytest
import torch

import glmforge
from glmforge.assets import asset_path
from glmforge.models import load_config, load_model, load_tokenizer, new_model
from glmforge.train.methods import four_bit
from small_models import TINY_MODEL

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _needs_bitsandbytes():
    pytest.importorskip("bitsandbytes")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A random ChatGLM3-layout model, wide enough for blocks of 64 weights."""
    directory = tmp_path_factory.mktemp("gpu") / "model"
    source = TINY_MODEL
    config = load_config(source)
    config.update({"hidden_size": 256, "num_attention_heads": 4, "kv_channels": 64})
    torch.manual_seed(0)
    new_model(config).save_pretrained(directory)
    load_tokenizer(source).save_pretrained(directory)
    return directory


def run(model_dir, out, *, stage=2, method="lora", resume=None, dora=False, **training):
    data = str(asset_path("demo/validation.jsonl"))
    held_out = str(asset_path("demo/facts_validation.jsonl"))
    config = {
        "model": {"model_name_or_path": str(model_dir)},
        "method": method,
        "data": {"train": data, "validation": held_out, "max_length": 512},
        "training": {
            "output_dir": str(out),
            "max_steps": 8,
            "learning_rate": 5e-3,
            "save_steps": 4,
            **training,
        },
        "generation": {"max_new_tokens": 8, "num_prompts": 1},
        "deepspeed": {"zero_optimization": {"stage": stage}},
    }
    if method in ("lora", "qlora"):
        config["lora"] = {"target_modules": ["all-linear"], "use_dora": dora}
    glmforge.train(config, resume=resume)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


@pytest.mark.parametrize(("stage", "dora"), [(0, False), (1, False), (2, False), (2, True)])
def test_qlora_learns_at_every_stage_that_is_allowed(model_dir, tmp_path, stage, dora):
    """And writes an adapter that opens on the base in 16 bit; with DoRA's magnitudes too."""
    losses = run(model_dir, tmp_path / "run", method="qlora", stage=stage, dora=dora)
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.1
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()


def test_only_the_layers_are_four_bit(model_dir):
    """Head and embeddings keep the compute type; the linear modules of the layers do not."""
    dtype = torch.bfloat16
    model = load_model(model_dir, dtype=dtype, device="cuda", quantization=four_bit(dtype))
    packed = [name for name, p in model.named_parameters() if p.dtype == torch.uint8]
    assert len(packed) == 4 * model.config.num_layers
    assert model.get_output_embeddings().weight.dtype == dtype


@pytest.mark.parametrize("dora", [False, True])
def test_a_resumed_qlora_run_is_the_straight_one(model_dir, tmp_path, dora):
    """The base is loaded and packed again; only the adapter is in the checkpoint."""
    import shutil

    straight, cut = tmp_path / "straight", tmp_path / "cut"
    expected = run(model_dir, straight, method="qlora", dora=dora)
    shutil.copytree(straight, cut)
    shutil.rmtree(cut / "checkpoints" / "step-000008")
    (cut / "final.json").unlink()
    text = (cut / "config.yaml").read_text().replace("straight", "cut")
    (cut / "config.yaml").write_text(text)
    assert run(model_dir, cut, method="qlora", resume="auto", dora=dora) == expected


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_eight_bit_adamw_learns_as_the_usual_one_does(model_dir, tmp_path, stage, method):
    """Within a few percent after eight steps."""
    usual = run(model_dir, tmp_path / "usual", method=method, stage=stage)
    small = run(model_dir, tmp_path / "small", method=method, stage=stage, optim="adamw_bnb_8bit")
    assert small[-1] < small[0] - 0.1
    assert small[-1] == pytest.approx(usual[-1], rel=0.05)
