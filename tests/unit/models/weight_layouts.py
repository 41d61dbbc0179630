"""Weights written in the layouts of files that are in circulation."""

import json

import torch
from safetensors.torch import save_file


def rewrite(directory, tensors, layout):
    """Write the weights in one of the layouts in circulation."""
    (directory / "model.safetensors").unlink()
    names = list(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    if layout == "bin":
        torch.save(tensors, directory / "pytorch_model.bin")
    elif layout == "legacy bin":
        torch.save(tensors, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    else:
        suffix = "bin" if layout == "sharded bin" else "safetensors"
        stem = "pytorch_model" if suffix == "bin" else "model"
        weight_map = {}
        for number, part in enumerate(halves, 1):
            file = f"{stem}-{number:05d}-of-00002.{suffix}"
            weight_map.update(dict.fromkeys(part, file))
            chosen = {name: tensors[name] for name in part}
            if suffix == "bin":
                torch.save(chosen, directory / file)
            else:
                save_file(chosen, directory / file, metadata={"format": "pt"})
        index = directory / f"{stem}.{suffix}.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")
