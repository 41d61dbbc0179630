"""Runs with each training method and option, on several ranks: small and in fp32.

`train` is a run with any section of the config changed; the cases say what is changed.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import GLOBAL_BATCH, STEPS, _interrupted, dialogues, held_out, outcome, tiny_model
from safetensors.torch import load_file

import glmforge

SMALL_SHARDS = {"stage3_param_persistence_threshold": 0}
"""At stage 3 DeepSpeed keeps small tensors whole; these models have no others."""


def train(
    scratch: Path, name: str = "run", *, stage: int = 2, **sections: Any
) -> dict[str, object]:
    """Run with `sections` (such as training={...}) over the usual ones; a None takes a key out."""
    data = str(dialogues(scratch))
    zero: dict[str, Any] = {"stage": stage, **(SMALL_SHARDS if stage == 3 else {})}
    config: dict[str, Any] = {
        "model": {"model_name_or_path": str(tiny_model(scratch))},
        "method": "lora",
        "lora": {"lora_dropout": 0.0},
        "data": {"train": data, "validation": held_out(data), "max_length": 128},
        "training": {
            "output_dir": str(scratch / name),
            "per_device_train_batch_size": 1,
            "per_device_eval_batch_size": 3,
            "gradient_accumulation_steps": GLOBAL_BATCH // dist.get_world_size(),
            "learning_rate": 5e-3,
            "max_steps": STEPS,
            "precision": "fp32",
        },
        "generation": {"prompts": ["你好"], "max_new_tokens": 4},
        "deepspeed": {"zero_optimization": zero},
    }
    for section, values in sections.items():
        if isinstance(values, dict):
            merged = config.get(section, {}) | values
            config[section] = {key: value for key, value in merged.items() if value is not None}
        else:
            config[section] = values
    if config["method"] not in ("lora", "qlora"):
        del config["lora"]
    glmforge.train(config)
    dist.barrier()
    return outcome(scratch / name)


DORA = {"use_dora": True, "use_rslora": True, "loraplus_lr_ratio": 8.0}
LAST_LAYER = {"num_trainable_layers": 1}


def freeze_stage_3(scratch: Path) -> object:
    """Also: which weights of the finished model differ from the base's."""
    found = train(scratch, stage=3, method="freeze", freeze=LAST_LAYER)
    before, after = (
        load_file(scratch / place / "model.safetensors") for place in ("tiny", "run/model")
    )
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    return {**found, "changed": sorted(changed), "names": sorted(before)}


def _offloaded(scratch: Path, stage: int, **zero: dict[str, str]) -> object:
    small = SMALL_SHARDS if stage == 3 else {}
    sections = {"deepspeed": {"zero_optimization": {"stage": stage, **small, **zero}}}
    return train(scratch, method="full", **sections)


def stable_then_down(scratch: Path) -> object:
    """Noise on the embeddings too: it must not reach the evaluations before the first update."""
    training = {
        "lr_scheduler_type": "warmup_stable_decay",
        "warmup_steps": 1,
        "decay_steps": 2,
        "neftune_noise_alpha": 5.0,
    }
    return train(scratch, method="full", training=training)


def _single_rows(scratch: Path, stage: int) -> object:
    """What the oracle trains too: one dialogue a row, full parameters."""
    return train(scratch, stage=stage, method="full", data={"packing": False})


def _whole_set(scratch: Path, *, packing: bool, stage: int) -> object:
    """Every step trains all dialogues, so that both layouts see the same ones."""
    sections = {"data": {"packing": packing}, "training": {"gradient_accumulation_steps": 12}}
    return train(scratch, method="full", stage=stage, **sections)


def shortened(scratch: Path, name: str, count: int) -> str:
    """The first dialogues of the usual file, in a file of their own."""
    path = scratch / name
    if dist.get_rank() == 0:
        lines = dialogues_text(scratch).splitlines(keepends=True)
        path.write_text("".join(lines[:count]), encoding="utf-8")
    else:
        dialogues_text(scratch)
    dist.barrier()
    return str(path)


def dialogues_text(scratch: Path) -> str:
    return dialogues(scratch).read_text(encoding="utf-8")


def _one_dialogue(scratch: Path, stage: int) -> object:
    """Three of four places of a step, and all of one rank's, are filled with untrained rows."""
    data = {"train": shortened(scratch, "one.jsonl", 1)}
    return train(scratch, method="full", stage=stage, data=data)


_CPU = {"device": "cpu"}
CASES = {
    "plain_lora": train,
    **{f"dora_stage_{stage}": partial(train, stage=stage, lora=DORA) for stage in (0, 2, 3)},
    **{
        f"loraplus_stage_{stage}": partial(train, stage=stage, lora={"loraplus_lr_ratio": 8.0})
        for stage in (2, 3)
    },
    **{
        f"freeze_stage_{stage}": partial(train, stage=stage, method="freeze", freeze=LAST_LAYER)
        for stage in (0, 2)
    },
    "resume_freeze_3": partial(_interrupted, stage=3, method="freeze"),
    "resume_noisy": partial(_interrupted, stage=2, neftune_noise_alpha=5.0),
    "offload_optimizer_2": partial(_offloaded, stage=2, offload_optimizer=_CPU),
    "offload_optimizer_3": partial(_offloaded, stage=3, offload_optimizer=_CPU),
    "offload_both_3": partial(_offloaded, stage=3, offload_optimizer=_CPU, offload_param=_CPU),
    "offload_param_3": partial(_offloaded, stage=3, offload_param=_CPU),
    "full_stage_2": partial(train, stage=2, method="full"),
    "every_second_layer": partial(train, method="full", training={"gradient_checkpointing": 2}),
    **{f"single_rows_{stage}": partial(_single_rows, stage=stage) for stage in range(4)},
    "whole_set_packed": partial(_whole_set, packing=True, stage=2),
    "whole_set_packed_3": partial(_whole_set, packing=True, stage=3),
    "whole_set_single": partial(_whole_set, packing=False, stage=2),
    **{f"one_dialogue_{stage}": partial(_one_dialogue, stage=stage) for stage in (0, 2, 3)},
}
"""Cases that differ by their arguments; the others are the functions without an underscore."""
