"""The models against the reference values kept in this repository (tests/golden/models.json)."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

TOLERANCE = 1e-5  # fp32, logits of size ~3: summation order only


@pytest.fixture(scope="module")
def reference(root: Path):
    path = root / "tests" / "golden" / "make_models.py"
    spec = importlib.util.spec_from_file_location("make_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "chatglm-6b",
        "chatglm-6b-1d",
        "chatglm2-6b",
        "chatglm2-6b-32k",
        "chatglm3-6b",
        "chatglm3-6b-128k",
        "glm-4-9b-chat",
        "glm-4-9b-hf",
        "glm-4-0414",
    ],
)
def test_every_family_gives_the_kept_logits(reference, name, tmp_path):
    kept = json.loads(reference.FILE.read_text(encoding="utf-8"))
    difference = reference.logits(tmp_path, name) - torch.tensor(kept[name])
    assert difference.abs().max() <= TOLERANCE


def test_the_long_context_variants_differ_from_their_plain_models(reference):
    kept = json.loads(reference.FILE.read_text(encoding="utf-8"))
    for plain, long in (("chatglm2-6b", "chatglm2-6b-32k"), ("chatglm3-6b", "chatglm3-6b-128k")):
        assert (torch.tensor(kept[plain]) - torch.tensor(kept[long])).abs().max() > 1e-2


def test_every_kept_model_is_tested(reference):
    assert set(json.loads(reference.FILE.read_text(encoding="utf-8"))) == set(reference.CONFIGS)
