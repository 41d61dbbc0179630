"""Running out of GPU memory names the phase, the batch, both peaks, and what is not yet done."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import glmforge.train.loop as loop
import glmforge.train.prepare as prepare
from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.data import Example, StepBatches
from glmforge.data.collate import collate
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import TrainingError
from glmforge.train.evaluate import evaluate
from glmforge.train.out_of_memory import (
    CardMemory,
    Setting,
    explanation,
    is_out_of_memory,
    out_of_memory_explained,
    remedies,
)
from glmforge.train.phases import place_of_error
from small_models import TINY_MODEL

CPU = torch.device("cpu")
ALONE = Ranks(world=World(), device=CPU)


def config(training=None, **sections):
    data = str(asset_path("demo/train.jsonl"))
    held_out = str(asset_path("demo/facts_validation.jsonl"))
    return config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": data, "validation": held_out, "max_length": 512},
            "training": {"output_dir": "run", **(training or {})},
            **sections,
        }
    )


def setting(training=None, *, stage=2, world_size=1, precision="bf16", **sections):
    return Setting(
        config=config(training, **sections),
        world_size=world_size,
        accumulation=1,
        stage=stage,
        offload_optimizer=False,
        offload_param=False,
        precision=precision,
    )


def batch():
    ids = np.arange(8, dtype=np.int32)
    row = [Example(input_ids=ids, labels=ids, source="a:1")]
    return collate([row, row], packed=False, pad_to=10)


class Engine:
    """An engine whose memory ends in one call."""

    def __init__(self, fails_in):
        self.fails_in = fails_in
        self.optimizer = SimpleNamespace(param_groups=[])
        self.micro_steps = 0

    def _call(self, name):
        if self.fails_in == name:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def train(self):
        pass

    eval = train

    def __call__(self, **inputs):
        self._call("forward")
        return SimpleNamespace(loss=torch.zeros(()))

    def backward(self, loss, scale_wrt_gas):
        self._call("backward")

    def is_gradient_accumulation_boundary(self):
        return False

    def step(self):
        self._call("optimizer")


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_each_part_of_the_step_is_named(phase):
    """With the batch in hand; the loop itself keeps no record of where it is."""
    engine = Engine(phase)
    batches = StepBatches(micro_batches=(batch(),), trained_tokens=4, tokens=16)
    session = SimpleNamespace(
        engine=engine,
        batches=batches,
        progress=SimpleNamespace(step=6),
        sizes=SimpleNamespace(accumulation=1),
        zero_stage=2,
        precision="bf16",
        memory_plan=None,
        eval_batches=[],
    )
    words = {
        "forward": "in the forward pass",
        "backward": "in the backward pass",
        "optimizer": "in the optimizer's update",
    }[phase]
    with pytest.raises(
        TrainingError, match=f"ran out of memory {words} at step 7 \\(asked for 2.00 GiB more\\); "
    ) as caught:
        with out_of_memory_explained(config(), ALONE, session):
            loop.train_step(engine, batches, 1e-3, ALONE)
    text = str(caught.value)
    assert "the batch had 2 x 10 = 20 tokens (16 of them no padding)" in text
    assert "peak planned " in text
    assert [line.strip()[:2] for line in text.splitlines()[1:]] == ["1.", "2.", "3."]


def test_an_evaluation_is_named_with_its_largest_batch():
    """It happens between two steps."""
    session = SimpleNamespace(
        engine=Engine("forward"),
        batches=None,
        progress=SimpleNamespace(step=6),
        sizes=SimpleNamespace(accumulation=1),
        zero_stage=2,
        precision="bf16",
        memory_plan=None,
        eval_batches=[batch()],
    )
    with pytest.raises(TrainingError, match="out of memory in the evaluation at step 6 "):
        with out_of_memory_explained(config(), ALONE, session):
            evaluate(session.engine, session.eval_batches, ALONE)


def test_loading_is_named(monkeypatch):
    """Before there is a session."""

    def load_model(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(prepare, "load_model", load_model)
    plan = SimpleNamespace(config=None, lora=None, trained_layers=None)
    engine_config = {"zero_optimization": {"stage": 2}}
    with pytest.raises(TrainingError, match="while the model and the optimizer were set up; peak"):
        with out_of_memory_explained(config(), ALONE):
            prepare.prepare_model(config(), plan, "bf16", ALONE, print, engine_config)


def test_other_errors_pass_as_they_are():
    """And every way in which CUDA says that memory is out is understood."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        with out_of_memory_explained(config(), ALONE):
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(ValueError("CUDA out of memory"))


def test_planned_and_measured_stand_side_by_side_with_what_else_takes_memory():
    """As the card saw it."""
    card = CardMemory(total=79.1, peak=76.5, allocated=60.0, reserved=74.0, others=3.4)
    text = explanation(
        setting(), phase="backward", step=3, batch=batch(), card=card, planned_gib=55.25
    )
    assert "peak planned 55.2 GiB, measured 76.5 GiB when it failed, of 79.1 GiB" in text
    assert "3.4 GiB of the card are held outside of this process's tensors" in text
    assert "14.0 GiB are reserved in pieces too small to use" in text


def names(found):
    """The settings that are advised."""
    return [text.split("=")[0].split(" ")[0] for text in found]


def test_a_smaller_batch_comes_first_and_keeps_the_rows_of_a_step():
    """Then checkpointing, then length."""
    usual = setting(
        {
            "per_device_train_batch_size": 6,
            "gradient_accumulation_steps": 2,
            "gradient_checkpointing": False,
        }
    )
    usual = dataclasses.replace(usual, accumulation=2)
    found = remedies(usual, "backward")
    assert found[0].startswith("training.per_device_train_batch_size=3 (now 6) with training.grad")
    assert "training.gradient_accumulation_steps=4" in found[0]
    assert found[1] == "training.gradient_checkpointing=true (now false)"
    assert found[2] == "data.max_length=256 (now 512)"


def test_what_is_already_so_is_not_advised():
    """A LoRA run of one row with checkpointing in bf16 on one GPU."""
    found = remedies(setting({"per_device_train_batch_size": 1}), "forward")
    assert names(found) == ["data.max_length", "method", "more"]
    full = setting({"per_device_train_batch_size": 1}, method="full", stage=3, world_size=4)
    full = dataclasses.replace(full, offload_optimizer=True, offload_param=True)
    for phase in ("load", "forward", "backward", "optimizer", "evaluation", "saving"):
        advised = names(remedies(full, phase))
        assert len(advised) == 3
        assert not [name for name in advised if name.startswith(("deepspeed", "training.optim"))]
        assert "training.per_device_train_batch_size" not in advised
        assert "training.gradient_checkpointing" not in advised


def test_the_advice_is_of_the_phase():
    """States for the update, weights for loading, the evaluation's own batch."""
    full = setting(method="full", world_size=2)
    assert names(remedies(full, "optimizer"))[:2] == [
        "deepspeed.zero_optimization.offload_optimizer.device",
        "training.optim",
    ]
    assert names(remedies(setting(world_size=2, precision="fp32"), "load")) == [
        "training.precision",
        "method",
        "deepspeed.zero_optimization.stage",
    ]
    assert names(remedies(setting(), "evaluation"))[:2] == [
        "training.per_device_eval_batch_size",
        "generation.max_new_tokens",
    ]


def test_a_layer_computed_again_in_the_backward_pass_is_still_the_backward_pass():
    """Gradient checkpointing calls forward functions there."""

    class Recomputing(Engine):
        def backward(self, loss, scale_wrt_gas):
            self.fails_in = "forward"
            self()

    batches = StepBatches(micro_batches=(batch(),), trained_tokens=4, tokens=16)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        loop.train_step(Recomputing("nothing"), batches, 1e-3, ALONE)
    assert place_of_error(caught.value).phase == "backward"
