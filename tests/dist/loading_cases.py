"""How a model comes into the ranks under ZeRO-3: in parts, tensor by tensor."""

from pathlib import Path

import torch
import torch.distributed as dist
from cases import tiny_model
from transformers import GlmConfig

from glmforge.config import config_from_mapping
from glmforge.distributed.collectives import process_group
from glmforge.distributed.env import read_world
from glmforge.distributed.zero import (
    assign_partitioned,
    deepspeed_running,
    full_shape,
    partitioned_construction,
    whole,
)
from glmforge.models import load_model, new_model
from glmforge.models.loading import load_model_in_parts
from glmforge.models.weights import stream_tensors
from glmforge.train import prepare


def loaded_in_parts(scratch: Path) -> dict[str, object]:
    """Prepare the model of a ZeRO-3 run; watch how much of it each rank holds on the way."""
    directory = tiny_model(scratch)
    stored = dict(stream_tensors(directory))
    data = scratch / "train.jsonl"
    row = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    data.write_text(row + "\n", encoding="utf-8")
    dist.barrier()
    config = config_from_mapping(
        {
            "model": {"model_name_or_path": str(directory)},
            "method": "full",
            "data": {"train": str(data), "max_length": 64},
            "training": {"output_dir": str(scratch / "run"), "precision": "fp32"},
            "deepspeed": {
                "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}
            },
        }
    )
    held: list[int] = []  # numbers held whole after each tensor
    made: list[torch.nn.Parameter] = []
    assign = prepare.assign_partitioned

    def watched(parameter: torch.nn.Parameter, tensor: torch.Tensor) -> None:
        made.append(parameter)
        assign(parameter, tensor)
        held.append(sum(known.numel() for known in made))

    with process_group(read_world()) as ranks, deepspeed_running():
        planned = prepare.plan_run(config, ranks, lambda text: None)
        prepare.assign_partitioned = watched
        try:
            model = prepare.prepare_model(
                config, planned.model, "fp32", ranks, lambda text: None, planned.engine_config
            )
        finally:
            prepare.assign_partitioned = assign
        parameters = dict(model.named_parameters())
        whole_after_loading = sum(p.numel() for p in parameters.values())
        kept = sum(p.ds_tensor.numel() for p in parameters.values())
        wrong = []
        for name, parameter in parameters.items():
            with whole([parameter]):
                if not torch.equal(parameter.detach(), stored[name]):
                    wrong.append(name)
    total = sum(full_shape(p).numel() for p in parameters.values())
    return {
        "tensors": len(held),
        "parameters": len(parameters),
        "whole_while_loading": max(held),
        "whole_after_loading": whole_after_loading,
        "share_kept": kept / total,
        "wrong": wrong,
        "dtypes": sorted({str(p.dtype) for p in parameters.values()}),
    }


def half_precision_in_parts(scratch: Path) -> dict[str, object]:
    """Load a model of transformers' own class in bfloat16, in parts and whole."""
    directory = scratch / "glm"
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        new_model(GlmConfig(vocab_size=256, pad_token_id=0, **sizes, **heads)).save_pretrained(
            directory
        )
    dist.barrier()
    engine_config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }
    with process_group(read_world()), deepspeed_running():
        parts = load_model_in_parts(
            directory,
            torch.bfloat16,
            construction=partitioned_construction(engine_config),
            assign=assign_partitioned,
        )
        expected = load_model(directory, dtype=torch.bfloat16)
        pairs = [*zip(parts.named_parameters(), expected.parameters(), strict=True)]
        pairs += zip(parts.named_buffers(), expected.buffers(), strict=True)
        wrong = []
        for (name, tensor), right in pairs:
            with whole([tensor]):
                if tensor.dtype != right.dtype or not torch.equal(tensor.detach(), right.detach()):
                    wrong.append(name)
    return {"compared": len(pairs), "wrong": wrong}
