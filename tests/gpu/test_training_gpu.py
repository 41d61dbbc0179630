"""The main job on one GPU: variable-length attention, compiled layers, samples in between."""

import json
import math

import pytest
import torch

import glmforge
from glmforge.adapters import LoraSettings, add_lora
from glmforge.assets import asset_path
from glmforge.data import BatchPlan, build_examples, pack, read_conversations, unpacked
from glmforge.distributed.collectives import process_group
from glmforge.distributed.env import read_world
from glmforge.distributed.zero import deepspeed_running
from glmforge.models import load_config, load_model, load_tokenizer, new_model
from glmforge.models.layers import checkpoint_layers, compile_layers
from glmforge.plan.batch import BatchSizes
from glmforge.plan.deepspeed_config import EngineSettings, write_config
from glmforge.train.engine import OptimizerSettings, build_engine
from glmforge.train.loop import train_step
from small_models import TINY_MODEL

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A random ChatGLM3-layout model wide enough for the GPU's kernels (head size 64)."""
    directory = tmp_path_factory.mktemp("gpu") / "model"
    source = TINY_MODEL
    config = load_config(source)
    config.update({"hidden_size": 256, "num_attention_heads": 4, "kv_channels": 64})
    torch.manual_seed(0)
    new_model(config).save_pretrained(directory)
    load_tokenizer(source).save_pretrained(directory)
    return directory


def config_of(model_dir, out, **training):
    data = str(asset_path("demo/validation.jsonl"))
    held_out = str(asset_path("demo/facts_validation.jsonl"))
    return {
        "model": {"model_name_or_path": str(model_dir)},
        "data": {"train": data, "validation": held_out, "max_length": 512},
        "training": {
            "output_dir": str(out),
            "max_steps": 8,
            "learning_rate": 5e-3,
            "eval_steps": 4,
            "save_steps": 4,
            **training,
        },
        "lora": {"target_modules": ["all-linear"]},
        "generation": {"max_new_tokens": 24, "num_prompts": 2},
    }


def losses(out):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


@pytest.mark.parametrize("checkpointing", [True, False])
def test_lora_in_bf16_learns_and_answers_on_the_way(model_dir, tmp_path, checkpointing):
    """Samples between steps leave the compiled layers compiled (no recompilation limit)."""
    torch._dynamo.utils.counters.clear()
    glmforge.train(config_of(model_dir, tmp_path / "run", gradient_checkpointing=checkpointing))
    found = losses(tmp_path / "run")
    assert len(found) == 8
    assert found[-1] < found[0] - 0.1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_packed_rows_give_the_losses_of_single_rows(model_dir):
    """The variable-length kernel against one dense row a document, bf16, summed nll."""
    tokenizer = load_tokenizer(model_dir)
    conversations = read_conversations(asset_path("demo/validation.jsonl"))
    examples = build_examples(conversations, tokenizer, max_length=512).examples
    model = load_model(model_dir, dtype=torch.bfloat16, device="cuda")
    found = []
    for packed in (True, False):
        lengths = [len(example.input_ids) for example in examples]
        rows = pack(lengths, 512, 0) if packed else unpacked(len(lengths))
        plan = BatchPlan(examples, rows, global_batch=len(rows), seed=0, packed=packed)
        step = plan.rank_batches(
            0, 0, rank=0, world_size=1, micro_batch=len(rows), accumulation=1, pad_to=512
        )
        inputs = step.micro_batches[0].to("cuda").model_inputs()
        with torch.no_grad():
            found.append(float(model(**inputs, num_items_in_batch=step.trained_tokens).loss))
    assert math.isclose(found[0], found[1], rel_tol=2e-3)  # bf16 holds three digits


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_layers_computed_again_have_the_gradients_of_layers_kept(model_dir, dropout, stage):
    """Compiled layers, with LoRA's dropout: the recomputation draws the same numbers."""
    tokenizer = load_tokenizer(model_dir)
    conversations = read_conversations(asset_path("demo/validation.jsonl"))
    examples = build_examples(conversations, tokenizer, max_length=512).examples
    plan = BatchPlan(examples, unpacked(len(examples)), global_batch=8, seed=0)
    step = plan.rank_batches(0, 0, rank=0, world_size=1, micro_batch=8, accumulation=1, pad_to=512)
    found = {}
    with process_group(read_world()) as ranks, deepspeed_running():
        for kept in (True, False):
            engine = lora_engine(model_dir, dropout, stage, checkpointing=not kept)
            torch.manual_seed(0)
            found[kept] = train_step(engine, step, 0.0, ranks)
    (loss, norm), (loss_again, norm_again) = found[True], found[False]
    assert loss == pytest.approx(loss_again, rel=1e-5)
    assert norm == pytest.approx(norm_again, rel=1e-4)


def lora_engine(model_dir, dropout, stage, *, checkpointing):
    """LoRA on every linear layer in fp32, compiled, lora_B not zero, on a DeepSpeed engine."""
    model = load_model(model_dir, dtype=torch.float32, device="cuda")
    torch.manual_seed(0)
    targets = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    lora = LoraSettings(r=4, lora_alpha=8, lora_dropout=dropout, target_modules=targets)
    model = add_lora(model, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    if checkpointing:
        checkpoint_layers(model)
    compile_layers(model)
    sizes = BatchSizes(micro_batch=8, accumulation=1, world_size=1)
    config = write_config(
        EngineSettings(sizes=sizes, precision="fp32", max_grad_norm=0.0),
        {"zero_optimization": {"stage": stage}},
    )
    adam = {"learning_rate": 0.0, "betas": (0.9, 0.999), "epsilon": 1e-8, "weight_decay": 0.0}
    return build_engine(model, config, OptimizerSettings(**adam))


def test_resume_is_bitwise_on_the_gpu_too(model_dir, tmp_path):
    """Dropout included: the CUDA random state is part of a checkpoint."""
    import shutil

    straight, cut = tmp_path / "straight", tmp_path / "cut"
    glmforge.train(config_of(model_dir, straight))
    shutil.copytree(straight, cut)
    shutil.rmtree(cut / "checkpoints" / "step-000008")
    (cut / "final.json").unlink()
    text = (cut / "config.yaml").read_text().replace("straight", "cut")
    (cut / "config.yaml").write_text(text)
    glmforge.train(config_of(model_dir, cut), resume="auto")
    assert losses(cut) == losses(straight)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_checkpoint_written_beside_the_training_is_that_of_its_step(model_dir, tmp_path, method):
    """Pinned copies: every tensor that resuming reads is the same, bit by bit."""
    found = {}
    for name, in_background in (("at-once", False), ("later", True)):
        settings = {"save_steps": 2, "save_total_limit": 4, "deterministic": True}
        config = config_of(model_dir, tmp_path / name, async_save=in_background, **settings)
        if method == "full":
            config = {**config, "method": "full"}
            del config["lora"]
        glmforge.train(config)
        found[name] = tensors_of(tmp_path / name / "checkpoints")
    assert found["at-once"].keys() == found["later"].keys()
    for place, tensor in found["at-once"].items():
        assert torch.equal(tensor, found["later"][place]), place


def tensors_of(checkpoints):
    """Every tensor of DeepSpeed's files, by file and by its place in it."""
    found = {}

    def walk(value, place):
        if isinstance(value, torch.Tensor):
            found[place] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, (*place, str(key)))
        elif isinstance(value, list | tuple):
            for number, inner in enumerate(value):
                walk(inner, (*place, number))

    for path in sorted(checkpoints.glob("step-*/global_step*/*.pt")):
        state = torch.load(path, weights_only=False, map_location="cpu")
        walk(state, (str(path.relative_to(checkpoints)),))
    assert found
    return found
