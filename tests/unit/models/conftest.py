"""Reference outputs of the original code, and small configurations of each generation."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generations import FIRST_GENERATION, GENERATIONS, TRANSFORMERS_OWN
from safetensors.torch import load_file

from glmforge.models import load_config, load_model, new_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What the original code gave for one model: cases of named tensors, gradient norms."""

    directory: Path
    cases: dict[str, dict[str, Any]]
    grad_l2: dict[str, float]


@pytest.fixture(scope="session")
def golden(shared: Path) -> Callable[[str], Golden]:
    def read(name: str) -> Golden:
        directory = shared / "golden" / name
        cases: dict[str, dict[str, Any]] = {}
        with np.load(directory / "golden.npz") as arrays:
            for key in arrays.files:
                case, tensor = key.split(".", 1)
                value = arrays[key]
                cases.setdefault(case, {})[tensor] = (
                    torch.from_numpy(value) if value.ndim else float(value)
                )
        facts = json.loads((directory / "golden.json").read_text(encoding="utf-8"))
        return Golden(directory=directory, cases=cases, grad_l2=facts["grad_l2"])

    return read


@pytest.fixture
def tiny_model(tmp_path: Path) -> Callable[..., Any]:
    """Write the config.json of a generation and build the model from it, random weights."""

    def build(generation: str, **changes: Any) -> Any:
        directory = tmp_path / generation
        directory.mkdir()
        keys = {**{**GENERATIONS, **FIRST_GENERATION, **TRANSFORMERS_OWN}[generation], **changes}
        (directory / "config.json").write_text(json.dumps(keys), encoding="utf-8")
        torch.manual_seed(7)
        model = new_model(load_config(directory)).eval()
        # Norm weights around 1 and biases off 0, so that none of them can hide a mistake.
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                else:
                    parameter.mul_(4)
        return model

    return build


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Any]:
    """Save a model and open what was written."""

    def reload(model: Any) -> Any:
        model.save_pretrained(tmp_path / "saved")
        return load_model(tmp_path / "saved")

    return reload


@pytest.fixture
def directory(tiny_model, tmp_path):
    """A saved ChatGLM3, one safetensors file."""
    tiny_model("chatglm3").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def tensors(directory):
    """Its tensors."""
    return load_file(directory / "model.safetensors")
