"""Runs that go on, or start from others' weights, on several ranks; returned as plain values."""

import hashlib
import json
import random
import shutil
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from cases import _same, outcome, run

from glmforge.errors import GlmForgeError
from glmforge.train import loop, saving
from glmforge.train.checkpoint import check

OFTEN = {"save_steps": 2, "save_total_limit": 9}


def _refusal(scratch: Path, name: str, **kwargs: object) -> str:
    """The words with which a run is refused."""
    try:
        run(scratch, name, **kwargs)
    except GlmForgeError as error:
        return str(error)
    return ""


def _fingerprint(directory: Path) -> str:
    """Names, contents and times of change of all files."""
    digest = hashlib.sha256()
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        digest.update(f"{path} {path.stat().st_mtime_ns}".encode() + path.read_bytes())
    return digest.hexdigest()


def finished_and_lengthened(scratch: Path) -> object:
    """A finished run is left alone; with more steps it goes on only where that is allowed."""
    run(scratch, "run", method="lora", lr_scheduler_type="cosine", **OFTEN)
    before = _fingerprint(scratch / "run")
    same = {"method": "lora", "lr_scheduler_type": "cosine", "resume": "auto", **OFTEN}
    run(scratch, "run", **same)
    dist.barrier()
    untouched = _fingerprint(scratch / "run") == before
    refused = _refusal(scratch, "run", max_steps=8, **same)
    shorter = _refusal(scratch, "run", max_steps=4, allow_changes=True, **same)
    still = _fingerprint(scratch / "run") == before
    again_written = _weights_lost(scratch / "run", same)
    longer = run(scratch, "run", max_steps=8, allow_changes=True, **same)
    again = run(scratch, "run", max_steps=8, **same)
    noted = (scratch / "run" / "changes.jsonl").read_text().splitlines()
    return {
        "untouched": untouched and still,
        "again_written": again_written,
        "refused": refused,
        "shorter": shorter,
        "longer": longer,
        "again": again,
        "noted": [json.loads(line) for line in noted],
        "final": json.loads((scratch / "run" / "final.json").read_text()),
    }


def _weights_lost(directory: Path, same: dict[str, object]) -> object:
    """A finished run lost its adapter, and a kill left other names than the newest and the best."""
    kept = {
        path: path.read_bytes()
        for path in (
            directory / "adapter/adapter_model.safetensors",
            directory / "metrics.jsonl",
            directory / "checkpoints/best",
            directory / "checkpoints/latest",
        )
    }
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(directory / "adapter")
        for name in ("best", "latest"):
            (directory / "checkpoints" / name).write_text("step-000001\n")
    dist.barrier()
    run(directory.parent, directory.name, logging_steps=3, **same)
    dist.barrier()
    assert "logging_steps: 3" in (directory / "config.yaml").read_text()
    return {path.name: path.read_bytes() == before for path, before in kept.items()}


def damaged_weights(scratch: Path) -> object:
    """A finished run whose last weights are not what it wrote."""
    same = {"method": "full", "max_steps": 2}
    run(scratch, "run", **same)
    (weights,) = (scratch / "run/model").glob("*.safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = _fingerprint(scratch / "run")
    refused = _refusal(scratch, "run", resume="auto", **same)
    started = _refusal(scratch, "other", init_from=str(scratch / "run"), **same)
    untouched = _fingerprint(scratch / "run") == before
    shutil.move(scratch / "run/model", scratch / "away")
    run(scratch, "run", resume="auto", **same)
    again = weights.read_bytes() == content
    return {"refused": refused, "started": started, "untouched": untouched, "again": again}


def changed_data(scratch: Path) -> object:
    """Other rows are refused, then allowed: the run goes on with them."""
    run(scratch, "run", max_steps=4, **OFTEN)
    other = scratch / "other.jsonl"
    if dist.get_rank() == 0:
        lines = (scratch / "train.jsonl").read_text().splitlines(keepends=True)
        other.write_text("".join(lines[:20]))
        (scratch / "run" / "final.json").unlink()
        shutil.rmtree(scratch / "run" / "checkpoints" / "step-000004")
    dist.barrier()
    same = {"max_steps": 4, "resume": "auto", "data": str(other), **OFTEN}
    written = scratch / "run" / "config.yaml"
    if dist.get_rank() == 0:
        text = written.read_text()
        assert "learning_rate: 0.005" in text
        written.write_text(text.replace("learning_rate: 0.005", "learning_rate: 0.5"))
    dist.barrier()
    edited = {"max_steps": 4, "resume": "auto", "learning_rate": 0.5, **OFTEN}
    return {
        "edited": _refusal(scratch, "run", **edited),
        "refused": _refusal(scratch, "run", **same),
        "allowed": run(scratch, "run", allow_changes=True, **same),
    }


def _started_from(scratch: Path, stage: int, method: str) -> object:
    """A run, and new ones from its end and from a checkpoint on the way."""
    kwargs = {"stage": stage, "method": method, "eval_steps": 2, **OFTEN}
    first = run(scratch, "first", max_steps=4, **kwargs)
    found: dict[str, object] = {"first": first["eval"]}
    sources = {"end": "first", "middle": "first/checkpoints/step-000002"}
    for name, source in sources.items():
        given = str(scratch / source)
        found[name] = run(scratch, name, max_steps=2, init_from=given, **kwargs)["eval"]
    note = json.loads((scratch / "middle" / "init_from.json").read_text())
    found["given"] = note["given"]
    if dist.get_rank() == 0:  # as if it had died before its first checkpoint
        for directory in ("checkpoints", "adapter", "model"):
            shutil.rmtree(scratch / "middle" / directory, ignore_errors=True)
        (scratch / "middle" / "checkpoints").mkdir()
        (scratch / "middle" / "final.json").unlink()
    dist.barrier()
    found["again"] = run(scratch, "middle", max_steps=2, resume="auto", **kwargs)["eval"]
    return found


def init_refusals(scratch: Path) -> object:
    """Weights that do not fit, each named."""
    run(scratch, "lora", method="lora", max_steps=2, **OFTEN)
    run(scratch, "full", method="full", max_steps=2, **OFTEN)
    adapter, whole = str(scratch / "lora"), str(scratch / "full")
    lora = {"method": "lora", "max_steps": 2}
    return {
        "rank": _refusal(scratch, "a", init_from=adapter, lora={"r": 4}, **lora),
        "targets": _refusal(
            scratch, "a", init_from=adapter, lora={"target_modules": ["dense"]}, **lora
        ),
        "whole_for_lora": _refusal(scratch, "a", init_from=whole, **lora),
        "adapter_for_full": _refusal(scratch, "a", init_from=adapter, max_steps=2),
        "absent": _refusal(scratch, "a", init_from=str(scratch / "none"), max_steps=2),
        "with_resume": _refusal(scratch, "full", init_from=adapter, resume="auto", max_steps=2),
        "made": [name for name in ("a",) if (scratch / name).exists()],
    }


def _damage(path: Path, way: str, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if way == "delete":
        path.unlink()
        return
    if way == "flip":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif way == "truncate":
        del content[draw.randrange(len(content)) :]
    elif way == "tear":  # the last pages never reached the disk
        half = draw.randrange(len(content))
        content[half:] = bytes(len(content) - half)
        if bytes(content) == path.read_bytes():
            content[-1] ^= 1
    path.write_bytes(content)


def damaged_files(scratch: Path) -> object:
    """Every kind of checkpoint file, damaged in every way, one after the other; then all of them.

    Each time the newest checkpoint is damaged, and the run goes on from the one before it.
    """
    kwargs = {"method": "lora", "save_steps": 2, "save_total_limit": 9}
    straight = run(scratch, "straight", **kwargs)
    kinds = sorted(
        p.relative_to(scratch / "straight/checkpoints/step-000004").as_posix()
        for p in (scratch / "straight/checkpoints/step-000004").rglob("*")
        if p.is_file()
    )
    shard = next((scratch / "straight/checkpoints/step-000004").glob("*/*model_states.pt"))
    module = torch.load(shard, weights_only=False)["module"]
    optimizer = [
        torch.load(path, weights_only=False)["optimizer_state_dict"]
        for path in sorted(shard.parent.glob("*optim_states.pt"))
    ]
    inside = {
        "files": kinds,
        "base_tensors": [name for name in module if "lora_" not in name],
        "optimizer": [sorted(state) for state in optimizer],
        "progress": sorted(json.loads((shard.parent.parent / "state/progress.json").read_text())),
        "data_hash": json.loads((shard.parent.parent / "state/data.json").read_text())["hash"],
    }
    draw, cut, found = random.Random(5), scratch / "cut", []
    for number, kind in enumerate(kinds):
        way = ("flip", "truncate", "delete", "tear")[number % 4]
        if dist.get_rank() == 0:
            _cut_back(scratch, cut)
            _damage(cut / "checkpoints/step-000004" / kind, way, draw)
        dist.barrier()
        resumed = run(scratch, "cut", resume="auto", **kwargs)
        aside = (cut / "checkpoints" / "damaged-step-000004").exists()
        equal = resumed == straight and _same(scratch)
        found.append({"kind": kind, "way": way, "equal": equal, "aside": aside})
        dist.barrier()
    if dist.get_rank() == 0:
        _cut_back(scratch, cut)
        for path in sorted((cut / "checkpoints").glob("step-*")):
            _damage(next(path.glob("*/*optim_states.pt")), "flip", draw)
    dist.barrier()
    before = _fingerprint(cut)
    refused = _refusal(scratch, "cut", resume="auto", **kwargs)
    return {
        "inside": inside,
        "found": found,
        "refused": refused,
        "untouched": _fingerprint(cut) == before,
    }


def _cut_back(scratch: Path, cut: Path) -> None:
    """A copy of the straight run as it was after step 4."""
    if cut.exists():
        shutil.rmtree(cut)
    shutil.copytree(scratch / "straight", cut)
    shutil.rmtree(cut / "checkpoints" / "step-000005")
    shutil.rmtree(cut / "adapter")
    (cut / "final.json").unlink()
    config = cut / "config.yaml"
    config.write_text(config.read_text().replace("straight", "cut"))


def named_states(scratch: Path) -> object:
    """What --resume says to things that are no run to go on with."""
    run(scratch, "run", max_steps=4, **OFTEN)
    checkpoints = scratch / "run" / "checkpoints"
    if dist.get_rank() == 0:
        (scratch / "run" / "final.json").unlink()
        shard = next((checkpoints / "step-000004").glob("*/*optim_states.pt"))
        shard.write_bytes(b"")
    dist.barrier()
    newest = str(checkpoints / "step-000004")
    whole = str(checkpoints / "step-000002")
    return {
        "damaged": _refusal(scratch, "run", resume=newest, max_steps=4, **OFTEN),
        "whole": _refusal(scratch, "run", resume=whole, max_steps=4, **OFTEN),
        "stage": _refusal(scratch, "run", resume="auto", stage=3, max_steps=4, **OFTEN),
        "outcome": outcome(scratch / "run")["steps"],
    }


def _background(scratch: Path, **kwargs: object) -> object:
    """The same run with its checkpoints written at once and in the background."""
    straight = run(scratch, "straight", **kwargs, **OFTEN)
    moved = run(scratch, "cut", async_save=True, **kwargs, **OFTEN)
    found = {"equal": moved == straight and _same(scratch)}
    first, second = (scratch / name / "checkpoints" for name in ("straight", "cut"))
    found["names_equal"] = {p.name for p in first.iterdir()} == {p.name for p in second.iterdir()}
    if dist.get_rank() == 0:
        for name in ("step-000004", "step-000005"):
            shutil.rmtree(scratch / "cut/checkpoints" / name)
        (scratch / "cut/final.json").unlink()
    dist.barrier()
    kwargs |= {"async_save": True, "resume": "auto"}
    found["resumed_equal"] = run(scratch, "cut", **kwargs, **OFTEN) == straight and _same(scratch)
    found["left"] = [p.name for p in second.glob(".*")]
    return found


def background_and_failure(scratch: Path) -> object:
    """A bug in the step after a save whose files are still being written, on all ranks."""
    seen, step, seal = [], loop.train_step, saving.seal

    def failing_step(*args: object) -> object:
        seen.append(len(seen))
        if len(seen) == 3:
            raise ZeroDivisionError("a bug")
        return step(*args)

    def slow_seal(place: Path, names: list[str]) -> object:
        time.sleep(0.5)
        return seal(place, names)

    kwargs = {"method": "lora", "async_save": True, **OFTEN}
    with (
        patch.object(loop, "train_step", failing_step),
        patch.object(saving, "seal", slow_seal),
    ):
        try:
            run(scratch, "run", **kwargs)
            raised = ""
        except ZeroDivisionError as error:
            raised = str(error)
    dist.barrier()
    checkpoints = scratch / "run" / "checkpoints"
    found = {
        "raised": raised,
        "latest": (checkpoints / "latest").read_text().strip(),
        "step": check(checkpoints / "step-000002")["step"],
        "hidden": [path.name for path in checkpoints.glob(".*")],
    }
    dist.barrier()
    found["resumed"] = run(scratch, "run", resume="auto", **kwargs)["steps"]
    return found


CASES = {
    **{
        f"init_{method}_{stage}": partial(_started_from, stage=stage, method=method)
        for method in ("lora", "full")
        for stage in (2, 3)
    },
    "background_full_3": partial(_background, stage=3),
    "background_lora_2": partial(_background, stage=2, method="lora"),
}
"""Cases that differ by their arguments; the others are the functions without an underscore."""
