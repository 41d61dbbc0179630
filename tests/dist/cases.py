"""What runs on several ranks: small real runs of `glmforge.train`, returned as plain values."""

import json
import os
import random
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

import glmforge
from glmforge.models import load_config, load_tokenizer, new_model

GLOBAL_BATCH = 4
STEPS = 5


def tiny_model(directory: Path) -> Path:
    """A random ChatGLM3-layout model with the embedded tokenizer, made once, on rank 0."""
    target = directory / "tiny"
    if dist.get_rank() == 0 and not target.exists():
        source = Path(__file__).resolve().parents[1] / "tiny_model"
        config = load_config(source)
        config.update(
            {
                "num_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "kv_channels": 16,
                "ffn_hidden_size": 112,
            }
        )
        torch.manual_seed(0)
        model = new_model(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.02)
        model.save_pretrained(target)
        load_tokenizer(source).save_pretrained(target)
    dist.barrier()
    return target


def dialogues(directory: Path, count: int = 24) -> Path:
    """Dialogues of uneven length, the same on every call."""
    path = directory / "train.jsonl"
    if dist.get_rank() == 0:
        draw = random.Random(3)
        words = (
            "你好 请问 订单 在哪里 可以 退货 吗 谢谢 今天 发货 明天 送到 hello world 12 元".split()
        )
        with open(path, "w", encoding="utf-8") as file:
            for _ in range(count):
                messages = []
                for turn in range(2 * draw.randint(1, 3)):
                    text = "".join(draw.choices(words, k=draw.randint(2, 12)))
                    role = "user" if turn % 2 == 0 else "assistant"
                    messages.append({"role": role, "content": text})
                file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    dist.barrier()
    return path


def held_out(path: str | Path) -> str:
    """The same dialogues in a file of their own: one that is trained on too would be refused."""
    copy = Path(path).with_suffix(".validation.jsonl")
    if dist.get_rank() == 0:
        copy.write_bytes(Path(path).read_bytes() + b"\n")
    dist.barrier()
    return str(copy)


def run(
    scratch: Path,
    name: str,
    *,
    resume: str | None = None,
    stage: int = 2,
    method: str = "full",
    packing: bool = True,
    allow_changes: bool = False,
    init_from: str | None = None,
    offload: bool = False,
    lora: dict[str, object] | None = None,
    **training: object,
) -> dict[str, object]:
    """One run at the global batch of all cases; returns its losses, norms and final weights."""
    world = dist.get_world_size()
    micro = int(training.pop("micro", 1))
    data = training.pop("data", None) or str(dialogues(scratch))
    generation = training.pop("generation", {"prompts": ["你好", "请问订单在哪里呢谢谢"]})
    model = training.pop("model", None) or {"model_name_or_path": str(tiny_model(scratch))}
    config = {
        "model": model,
        "method": method,
        "data": {
            "train": data,
            "validation": held_out(data),
            "max_length": 128,
            "packing": packing,
        },
        "training": {
            "output_dir": str(scratch / name),
            "per_device_train_batch_size": micro,
            "per_device_eval_batch_size": 3,
            "gradient_accumulation_steps": GLOBAL_BATCH // (micro * world),
            "learning_rate": 5e-3,
            "max_steps": STEPS,
            "precision": "fp32",
            **training,
        },
        "generation": {"max_new_tokens": 6, **generation},
        "deepspeed": {"zero_optimization": {"stage": stage}},
    }
    if offload:
        config["deepspeed"]["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    if method == "lora":
        config["lora"] = {"lora_dropout": 0.0, **(lora or {})}
    glmforge.train(config, resume=resume, allow_changes=allow_changes, init_from=init_from)
    dist.barrier()
    return outcome(scratch / name)


def outcome(directory: Path) -> dict[str, object]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["kind"] == "train"]
    return {
        "loss": [row["loss"] for row in train],
        "grad_norm": [row["grad_norm"] for row in train],
        "steps": [row["step"] for row in train],
        "skipped": [row["skipped_steps"] for row in train],
        "eval": [row["eval_loss"] for row in rows if row["kind"] == "eval"],
        "samples": (directory / "samples.jsonl").read_text(),
        "ranks": sorted({row["rank"] for row in rows if row["kind"] == "rank"}),
    }


def _interrupted(scratch: Path, **kwargs: object) -> object:
    """A straight run, and a copy of it cut back to step 2 and resumed."""
    straight = run(scratch, "straight", save_steps=2, save_total_limit=9, **kwargs)
    cut = scratch / "cut"
    if dist.get_rank() == 0:
        shutil.copytree(scratch / "straight", cut)
        for checkpoint in (cut / "checkpoints").glob("step-*"):
            if checkpoint.name > "step-000002":
                shutil.rmtree(checkpoint)
        (cut / "final.json").unlink()
        text = (cut / "config.yaml").read_text().replace("straight", "cut")
        (cut / "config.yaml").write_text(text)
    dist.barrier()
    resumed = run(scratch, "cut", resume="auto", save_steps=2, save_total_limit=9, **kwargs)
    return {"straight": straight, "resumed": resumed, "weights_equal": _same(scratch)}


def _same(scratch: Path) -> bool:
    from safetensors.torch import load_file

    def weights(name: str) -> dict[str, torch.Tensor]:
        files = [*(scratch / name).glob("model/*.safetensors")]
        files += [*(scratch / name).glob("adapter/*.safetensors")]
        return {key: value for file in files for key, value in load_file(file).items()}

    a, b = weights("straight"), weights("cut")
    return bool(a) and a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def stopped_by_a_signal(scratch: Path) -> object:
    """A straight run; and one whose rank 1 gets SIGTERM after its first step, then resumed."""
    from glmforge.errors import Stopped

    often = {"eval_steps": 1, "max_steps": 8}
    straight = run(scratch, "straight", **often)
    metrics = scratch / "cut" / "metrics.jsonl"

    def terminate() -> None:
        while not metrics.exists() or '"train"' not in metrics.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    if dist.get_rank() == 1:
        threading.Thread(target=terminate).start()
    message = ""
    try:
        run(scratch, "cut", **often)
    except Stopped as stopped:
        message = str(stopped)
    resumed = run(scratch, "cut", resume="auto", **often)
    return {
        "straight": straight,
        "resumed": resumed,
        "weights_equal": _same(scratch),
        "message": message,
    }


def _elsewhere(scratch: Path, source: str, **kwargs: object) -> object:
    """Go on, on this number of ranks, from step 2 of a run that the other number made."""
    other = scratch.parent.parent / f"ranks{3 - dist.get_world_size()}" / source / "straight"
    cut = scratch / "cut"
    if dist.get_rank() == 0:
        shutil.copytree(other, cut)
        for step in (4, 5):
            shutil.rmtree(cut / "checkpoints" / f"step-{step:06d}", ignore_errors=True)
        (cut / "final.json").unlink()
        text = (cut / "config.yaml").read_text().replace(str(other), str(cut))
        text = text.replace(str(other.parent), str(scratch))
        (cut / "config.yaml").write_text(text)
    dist.barrier()
    resumed = run(scratch, "cut", resume="auto", save_steps=2, save_total_limit=9, **kwargs)
    left = [path.name for path in (cut / "checkpoints").glob(".*")]
    return {"straight": outcome(other), "resumed": resumed, "left": left}


def _poisoned(scratch: Path, share: float) -> dict[str, object]:
    """The tiny model with one embedding that is not a number, and dialogues that hold its token."""
    from safetensors.torch import load_file, save_file

    source, target = tiny_model(scratch), scratch / "poisoned"
    path = dialogues(scratch)
    if dist.get_rank() == 0:
        shutil.copytree(source, target)
        tokenizer = load_tokenizer(source)
        token = tokenizer.encode_text("9")[-1]
        assert token in tokenizer.encode_text("你好9")
        weights = load_file(target / "model.safetensors")
        embedding = weights["transformer.embedding.word_embeddings.weight"]
        weights["transformer.output_layer.weight"] = embedding.clone()  # the head stays clean
        embedding[token] = float("nan")
        keys = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(keys | {"tie_word_embeddings": False}))
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[: max(1, int(share * len(rows)))]:
            row["messages"][0]["content"] += "9"
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (scratch / "poisoned.jsonl").write_text("\n".join(lines) + "\n")
    dist.barrier()
    model = {"model_name_or_path": str(target)}
    return {"model": model, "data": str(scratch / "poisoned.jsonl")}


def lost_steps(scratch: Path) -> object:
    """One of 24 dialogues makes the loss of its step not a number; the others are clean."""
    inputs = _poisoned(scratch, 0.0)
    found = {}
    for stage in (1, 2, 3):
        found[stage] = run(scratch, f"stage{stage}", stage=stage, max_steps=8, **inputs)
    return found


def lost_gradients(scratch: Path) -> object:
    """The loss is finite, but one rank's gradient of the third step is not."""
    import glmforge.train.run as module
    from glmforge.errors import TrainingError

    build = module.build_engine

    def spoiling(*args: object) -> object:
        engine = build(*args)
        parameter = next(p for p in engine.module.parameters() if p.requires_grad)
        backwards = [0]

        def spoil(gradient: torch.Tensor) -> torch.Tensor:
            backwards[0] += 1
            lost = dist.get_rank() == 0 and backwards[0] == 2 * GLOBAL_BATCH // 2 + 1
            return gradient * float("inf") if lost else gradient

        parameter.register_hook(spoil)
        return engine

    module.build_engine = spoiling
    found = {}
    try:
        for stage in range(4):
            try:
                found[stage] = run(scratch, f"stage{stage}", stage=stage)
            except TrainingError as error:
                found[stage] = {"message": str(error)}
    finally:
        module.build_engine = build
    return found


def out_of_memory(scratch: Path) -> object:
    """No room for the update of the third step (says a stand-in: this is a CPU)."""
    import glmforge.train.run as module
    from glmforge.errors import TrainingError

    build = module.build_engine

    def small(*args: object) -> object:
        engine = build(*args)
        step = engine.step

        def full() -> None:
            if engine.micro_steps == 3 * GLOBAL_BATCH // 2 - 1:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")
            step()

        engine.step = full
        return engine

    module.build_engine = small
    try:
        run(scratch, "run")
    except TrainingError as error:
        dist.barrier()  # rank 0 has written how it ended
        final = json.loads((scratch / "run" / "final.json").read_text())
        return {"message": str(error), "final": final}
    finally:
        module.build_engine = build
    return {"message": ""}


def only_lost_steps(scratch: Path) -> object:
    """Every dialogue is bad: the run ends after ten steps, its weights untouched."""
    from glmforge.errors import TrainingError

    inputs = _poisoned(scratch, 1.0)
    try:
        run(scratch, "run", max_steps=30, save_steps=4, **inputs)
    except TrainingError as error:
        return {"message": str(error), **outcome(scratch / "run")}
    return {"message": ""}


_RESUMED = (("full", 1), ("full", 2), ("full", 3), ("lora", 2), ("lora", 3))
CASES = {
    **{f"stage_{stage}": partial(run, name="run", stage=stage) for stage in (0, 1, 3)},
    "stage_2": partial(run, name="run", stage=2, logging_steps=2),
    **{f"micro_{micro}": partial(run, name="run", micro=micro) for micro in (2, 4)},
    "unpacked_rows": partial(run, name="run", packing=False),
    **{
        f"lora_stage_{stage}": partial(run, name="run", method="lora", stage=stage)
        for stage in (0, 2, 3)
    },
    **{
        f"resume_{method}_{stage}": partial(_interrupted, method=method, stage=stage)
        for method, stage in _RESUMED
    },
    "resume_dora_3": partial(_interrupted, method="lora", stage=3, lora={"use_dora": True}),
    **{
        f"resume_offload_{stage}": partial(_interrupted, stage=stage, offload=True, max_steps=10)
        for stage in (2, 3)
    },
    **{
        f"elastic_{method}_{stage}": partial(
            _elsewhere, source=f"resume_{method}_{stage}", method=method, stage=stage
        )
        for method, stage in _RESUMED
    },
}
"""Cases that differ by their arguments; the others are the functions without an underscore."""
