"""The same training written again without DeepSpeed: plain torch, DDP and FSDP2.

An oracle for the trainer. Shared with it are the model's weights and the encoded dialogues; the
rows of a step, their layout (one dialogue a row, padded), the loss (from whole logits), clipping,
schedule and optimizer are written out here, in the most direct way.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from cases import GLOBAL_BATCH, STEPS, dialogues, tiny_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from glmforge.data import build_examples, read_conversations
from glmforge.models import load_model, load_tokenizer

PEAK, WARMUP, SEED, DECAY = 5e-3, 1, 42, 0.01


def step_rows(step: int, count: int) -> list[int]:
    """Rows of a step: a permutation of an epoch, drawn from (seed, epoch), cut into batches."""
    per_epoch = -(-count // GLOBAL_BATCH)
    epoch, at = divmod(step, per_epoch)
    order = np.random.default_rng([SEED, epoch]).permutation(count)
    return order[at * GLOBAL_BATCH : (at + 1) * GLOBAL_BATCH].tolist()


def rate(step: int) -> float:
    if step < WARMUP:
        return PEAK * step / WARMUP
    return PEAK * (STEPS - step) / (STEPS - WARMUP)


def nll_sum(model: torch.nn.Module, rows: list) -> torch.Tensor:
    """Sum of -log p of every trained token of some rows, from logits over the whole vocabulary."""
    width = max(len(row.input_ids) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    labels = torch.full((len(rows), width), -100)
    for number, row in enumerate(rows):
        ids[number, : len(row.input_ids)] = torch.from_numpy(row.input_ids.astype(np.int64))
        labels[number, : len(row.labels)] = torch.from_numpy(row.labels.astype(np.int64))
    logits = model(input_ids=ids).logits[:, :-1]
    chances = torch.log_softmax(logits.float(), dim=-1)
    wanted = labels[:, 1:]
    picked = chances.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
    return -(picked * (wanted != -100)).sum()


def _train(scratch: Path, kind: str) -> dict[str, list[float]]:
    directory = tiny_model(scratch)
    tokenizer = load_tokenizer(directory)
    conversations = read_conversations(dialogues(scratch))
    examples = build_examples(conversations, tokenizer, max_length=128).examples
    trained = [int((example.labels != -100).sum()) for example in examples]
    world, rank = dist.get_world_size(), dist.get_rank()
    model = load_model(directory, attention="eager").train()
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (world,))
        for layer in model.transformer.encoder.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert isinstance(model, FSDPModule)
    else:
        model = DistributedDataParallel(model)
    named = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in named if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in named if p.dim() == 1], "weight_decay": 0.0},
        ],
        lr=PEAK,
    )
    losses, norms = [], []
    for step in range(STEPS):
        rows = step_rows(step, len(examples))
        total = sum(trained[row] for row in rows)
        mine = [examples[row] for row in rows[rank::world]]
        loss = nll_sum(model, mine) / total
        (loss * world).backward()  # both wrappers take the mean over ranks
        norm = torch.nn.utils.clip_grad_norm_(named, 1.0)
        norms.append(float(norm.full_tensor() if kind == "fsdp2" else norm))
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.detach().double()
        dist.all_reduce(whole)
        losses.append(float(whole))
    return {"loss": losses, "grad_norm": norms}


CASES = {f"oracle_{kind}": partial(_train, kind=kind) for kind in ("ddp", "fsdp2")}
