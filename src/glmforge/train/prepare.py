"""Data and model of a run, ready for the engine; everything that may refuse comes first.

Order: settings, then data (tokenizer only), then the model's shape on no memory at all, and only
then its weights: bad input never costs GPU time.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import LoraSettings, add_lora, check_targets, trainable_line
from glmforge.config import RunConfig
from glmforge.config.from_deepspeed import read_map
from glmforge.config.paths import holds_run
from glmforge.data import BatchPlan
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.zero import (
    assign_partitioned,
    partitioned_construction,
    partitions_announced,
)
from glmforge.models import family_of, load_config, load_model, load_tokenizer, new_model
from glmforge.models.counts import usual_lora_targets
from glmforge.models.layers import (
    add_embedding_noise,
    checkpoint_layers,
    compile_layers,
    decoder_layers,
    train_last_layers,
)
from glmforge.models.loading import load_model_in_parts
from glmforge.plan.batch import BatchSizes
from glmforge.plan.deepspeed_config import write_config
from glmforge.plan.settings import engine_settings, run_sizes
from glmforge.train.engine import pick_precision, torch_dtype
from glmforge.train.methods import (
    check_layer_count,
    check_lengths,
    check_requirements,
    four_bit,
)
from glmforge.train.stops import check_stop_ids
from glmforge.train.training_data import (
    TrainingData,
    check_max_length,
    is_packed,
    prepare_data,
)

Say = Callable[[str], None]


def total_steps(config: RunConfig, plan: BatchPlan) -> int:
    """Return the number of optimizer updates of the whole run."""
    if config.training.max_steps is not None:
        return config.training.max_steps
    return math.ceil(plan.steps_per_epoch * config.training.num_train_epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What will be built, known before any weight is read."""

    config: Any
    """The model's own configuration (config.json)."""
    lora: LoraSettings | None
    trained_layers: int | None = None
    """Method freeze: how many of the last decoder layers are trained."""


def plan_model(config: RunConfig) -> ModelPlan:
    """Check the model's shape against the run's settings, on no memory.

    Raises:
        AdapterError: LoRA targets that match nothing.
        ConfigError: max_length is longer than the model's positions, or more layers are to be
            trained than there are.
        ModelError: no readable config.json, or one of no known model.
    """
    directory = config.model.model_name_or_path
    model_config = load_config(directory)
    check_max_length(config, model_config)
    if config.method == "full":
        return ModelPlan(config=model_config, lora=None)
    empty = _empty_model(model_config)
    if config.method == "freeze":
        wanted = config.freeze.num_trainable_layers
        check_layer_count(wanted, len(decoder_layers(empty)), directory)
        return ModelPlan(config=model_config, lora=None, trained_layers=wanted)
    targets = check_targets(empty, config.lora.target_modules, usual_lora_targets(model_config))
    lora = LoraSettings(
        r=config.lora.r,
        lora_alpha=config.lora.lora_alpha,
        lora_dropout=config.lora.lora_dropout,
        target_modules=targets,
        use_rslora=config.lora.use_rslora,
        use_dora=config.lora.use_dora,
    )
    return ModelPlan(config=model_config, lora=lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything about a run that can be known without its weights."""

    sizes: BatchSizes
    precision: str
    engine_config: dict[str, Any]
    model: ModelPlan
    tokenizer: Any
    data: TrainingData
    order: BatchPlan
    total_steps: int


def plan_run(config: RunConfig, ranks: Ranks, say: Say) -> RunPlan:
    """Work out and check sizes, engine config, model shape, data and length of a run.

    Raises:
        ConfigError, ModelError, AdapterError, DataError, TrainingError: what is wrong, before any
            weight is read.
    """
    training = config.training
    precision = pick_precision(training.precision, ranks.device)
    packed = is_packed(config, say)
    user_map = read_map(config.deepspeed)
    sizes = run_sizes(config, ranks.world_size, packing=packed, user_map=user_map)
    engine_config = write_config(engine_settings(config, sizes, precision), user_map)
    check_requirements(config, ranks.device, engine_config)
    stage = engine_config["zero_optimization"]["stage"]
    say(f"{ranks.device.type}, {precision}, ZeRO-{stage}; {sizes.sentence()} rows a step")
    model = plan_model(config)
    tokenizer = load_tokenizer(config.model.model_name_or_path)
    data = prepare_data(config, tokenizer, ranks, say, packed=packed)
    for note in check_stop_ids(config.model.model_name_or_path, tokenizer, data.train):
        say(note)
    order = data.plan(sizes, training.seed)
    steps = total_steps(config, order)
    directory = Path(training.output_dir)
    ranks.on_main(
        lambda: check_lengths(config, steps, order.steps_per_epoch, begun=holds_run(directory))
    )
    say(f"{len(data.train_rows)} rows, {order.steps_per_epoch} steps an epoch, {steps} in all")
    return RunPlan(
        sizes=sizes,
        precision=precision,
        engine_config=engine_config,
        model=model,
        tokenizer=tokenizer,
        data=data,
        order=order,
        total_steps=steps,
    )


def prepare_model(
    config: RunConfig,
    plan: ModelPlan,
    precision: str,
    ranks: Ranks,
    say: Say,
    engine_config: Mapping[str, Any],
) -> Any:
    """Load (or make) the model in its training dtype on this rank's device, adapters added.

    Under ZeRO-3 a model of the family table is cut into the ranks' parts while it is loaded.

    Raises:
        ModelError: the directory's weights cannot be loaded.
    """
    directory, dtype = config.model.model_name_or_path, torch_dtype(precision)
    if config.model.from_scratch:
        say(f"model: random weights from {directory}/config.json (model.from_scratch)")
        model: Any = new_model(plan.config, dtype=dtype).to(ranks.device)
    elif engine_config["zero_optimization"]["stage"] == 3 and family_of(plan.config).model_type:
        model = load_model_in_parts(
            directory,
            dtype,
            construction=partitioned_construction(engine_config),
            assign=assign_partitioned,
        )
    else:
        quantization = four_bit(dtype) if config.method == "qlora" else None
        model = load_model(directory, dtype=dtype, device=ranks.device, quantization=quantization)
    if plan.lora is not None:
        with partitions_announced(engine_config):
            model = add_lora(model, plan.lora)
    elif plan.trained_layers is not None:
        train_last_layers(model, plan.trained_layers)
    else:
        model.requires_grad_(True)
    if config.training.gradient_checkpointing:
        checkpoint_layers(model, every=int(config.training.gradient_checkpointing))
    if config.training.neftune_noise_alpha is not None:
        add_embedding_noise(model, config.training.neftune_noise_alpha)
    if ranks.device.type == "cuda" and config.method != "qlora":
        compile_layers(model)
    say(trainable_line(model))
    return model


def _empty_model(model_config: Any) -> Any:
    """Build the model on no memory, to look at its modules."""
    with torch.device("meta"):
        return new_model(model_config)
