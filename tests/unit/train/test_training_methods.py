"""What a method needs is asked before a weight is read, and refused with the reason."""

import importlib.util
import shutil

import pytest
import torch

import glmforge
import glmforge.train.methods as methods
from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.errors import ConfigError
from glmforge.train.methods import check_lengths, check_requirements
from small_models import TINY_MODEL

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def config(tmp_path, method="lora", sections=None, **training):
    return config_from_mapping(
        {
            **(sections or {}),
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "method": method,
            "data": {"train": str(asset_path("demo/validation.jsonl")), "max_length": 256},
            "training": {"output_dir": str(tmp_path / "run"), **training},
        }
    )


def problems(settings, device, **zero):
    with pytest.raises(ConfigError) as caught:
        check_requirements(settings, device, {"zero_optimization": {"stage": 2, **zero}})
    return list(caught.value.problems)


def test_bitsandbytes_is_refused_on_the_cpu(tmp_path):
    """Both of its users, each with what to write instead."""
    method, optim = problems(config(tmp_path, "qlora", optim="adamw_bnb_8bit"), CPU)
    assert method.startswith("method is qlora, but this run is on the CPU")
    assert "write method=lora, or run on a GPU" in method
    assert optim.startswith("training.optim is adamw_bnb_8bit, but this run is on the CPU")
    assert "training.optim=adamw_torch" in optim


def test_qlora_on_the_cpu_ends_before_anything_is_written(tmp_path):
    """The whole program: no weight is read, no run directory made."""
    with pytest.raises(ConfigError, match="bitsandbytes is run on CUDA GPUs only"):
        glmforge.train(config(tmp_path, "qlora"))
    assert not (tmp_path / "run").exists()


def test_bitsandbytes_that_is_not_installed_is_named(tmp_path, monkeypatch):
    """With the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (problem,) = problems(config(tmp_path, "qlora"), GPU)
    assert "pip install 'glmforge[gpu]'" in problem


def test_qlora_is_refused_at_stage_3_with_the_reason(tmp_path, monkeypatch):
    """The other stages are named."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    (problem,) = problems(config(tmp_path, "qlora"), GPU, stage=3)
    assert "scales lie beside it" in problem
    assert "write stage 2 (or 1, 0)" in problem
    for stage in (0, 1, 2):
        engine = {"zero_optimization": {"stage": stage}}
        check_requirements(config(tmp_path, "qlora"), GPU, engine)


def test_eight_bit_states_cannot_be_offloaded(tmp_path, monkeypatch):
    """DeepSpeed's CPU Adam would do the updates, and the choice nothing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    settings = config(tmp_path, optim="adamw_bnb_8bit")
    (problem,) = problems(settings, GPU, offload_optimizer={"device": "cpu"})
    assert "remove one of the two" in problem
    check_requirements(settings, GPU, {"zero_optimization": {"stage": 2}})


def test_more_layers_than_there_are_cannot_be_trained(tmp_path):
    """The number that exists, before weights are read."""
    settings = config(tmp_path, "freeze", {"freeze": {"num_trainable_layers": 5}})
    with pytest.raises(ConfigError, match=r"is 5, but .* has 4 decoder layers: write 4 or less"):
        glmforge.train(settings)


def test_a_warm_up_and_a_fall_that_do_not_fit_into_the_run_are_refused(tmp_path):
    """The three numbers; a run that they fill exactly is fine."""
    training = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 6, "decay_steps": 5}
    settings = config(tmp_path, **training)
    with pytest.raises(
        ConfigError, match=r"6 warm-up step\(s\) and 5 decay step\(s\), but the run"
    ):
        check_lengths(settings, 10, 5)
    with pytest.raises(ConfigError, match="but the run has 10 step"):
        check_lengths(settings, 10, 5, begun=True)
    check_lengths(settings, 11, 5)


def length_problems(settings, steps, steps_per_epoch):
    with pytest.raises(ConfigError) as caught:
        check_lengths(settings, steps, steps_per_epoch)
    return list(caught.value.problems)


def looking(tmp_path, **training):
    return config(tmp_path, "lora", **{"metric_for_best_model": "loss", **training})


def test_what_never_acts_in_the_steps_of_a_run_is_refused_all_at_once(tmp_path):
    """With the number of steps that the data gave, and what to write; a begun run goes on."""
    settings = looking(tmp_path, warmup_steps=13, eval_steps=13, early_stopping_patience=2)
    warmup, looks, patience = length_problems(settings, 12, 4)
    assert warmup.startswith("training.warmup_steps is 13, but the run has 12 step(s)")
    assert "write 11 or less" in warmup
    assert looks.startswith("training.eval_steps has no effect: the run ends at step 12")
    assert patience.startswith(
        "training.early_stopping_patience has no effect: the run has 2 evaluation(s) before its "
        "last step 12, and with 2 it takes 3"
    )
    assert patience.endswith(
        ": evaluate more often (training.eval_steps=3), write 1 or less, or leave it out"
    )
    (alone,) = length_problems(looking(tmp_path, early_stopping_patience=1), 2, 2)
    assert alone.endswith("compared with): leave it out")
    check_lengths(settings, 12, 4, begun=True)
    check_lengths(looking(tmp_path, warmup_steps=11, eval_steps=12), 12, 4)
    check_lengths(config(tmp_path), 1, 1)


@pytest.mark.parametrize(
    ("steps", "steps_per_epoch", "eval_steps", "patience", "fits"),
    [
        (12, 4, None, 1, True),  # after 4 and 8: the second is no better
        (12, 4, None, 2, False),
        (13, 4, None, 2, True),  # 4, 8, 12
        (12, 4, 3, 4, True),  # 3, 4, 6, 8, 9
        (12, 4, 3, 5, False),
        (12, 4, 2, 4, True),  # 2, 4, 6, 8, 10: epochs' ends count once
        (12, 4, 2, 5, False),
        (2, 9, 1, 1, False),
        (3, 9, 1, 1, True),
    ],
)
def test_patience_needs_evaluations_enough_to_end_a_run_before_its_last_step(
    tmp_path, steps, steps_per_epoch, eval_steps, patience, fits
):
    settings = looking(tmp_path, eval_steps=eval_steps, early_stopping_patience=patience)
    if fits:
        check_lengths(settings, steps, steps_per_epoch)
    else:
        (problem,) = length_problems(settings, steps, steps_per_epoch)
        assert problem.startswith("training.early_stopping_patience has no effect")


def test_a_whole_run_is_refused_before_weights_are_read(tmp_path):
    """24 dialogues, 3 epochs: nothing is written, and there are no weights to read."""
    settings = config(tmp_path, warmup_steps=1000)
    with pytest.raises(ConfigError, match=r"warmup_steps is 1000, but the run has \d+ step"):
        glmforge.train(settings)
    assert not (tmp_path / "run").exists()


def test_offloading_without_a_way_to_build_the_optimizer_is_refused(tmp_path, monkeypatch):
    """Before the weights; the message says what is missing."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (problem,) = problems(config(tmp_path), GPU, offload_optimizer={"device": "cpu"})
    assert "no ninja is on the PATH" in problem


def test_offloading_to_a_disk_without_async_io_is_refused(tmp_path, monkeypatch):
    """With the package that is missing; where it can be built nothing is said."""
    monkeypatch.setattr(methods, "cpu_adam_problem", lambda: None)
    monkeypatch.setattr(methods, "async_io_problem", lambda: "async_io cannot be built")
    disk = {"device": "nvme", "nvme_path": str(tmp_path)}
    (problem,) = problems(config(tmp_path), GPU, stage=3, offload_param=disk)
    assert problem == "async_io cannot be built, or write device: cpu"
    monkeypatch.setattr(methods, "async_io_problem", lambda: None)
    zero = {"stage": 3, "offload_optimizer": disk}
    check_requirements(config(tmp_path), GPU, {"zero_optimization": zero})
