"""Data and model of a run, ready for the engine; everything that may refuse comes first.

Order: settings, then data (tokenizer only), then the model's shape on no memory at all, and only
then its weights: bad input never costs GPU time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import LoraSettings, add_lora, check_targets, trainable_line
from glmforge.config import RunConfig
from glmforge.data import (
    Batch,
    BatchPlan,
    Conversation,
    Example,
    ExampleSet,
    PackedRows,
    build_examples,
    eval_batches,
    generation_prompt,
    pack,
    read_conversations,
    unpacked,
)
from glmforge.distributed.collectives import Ranks
from glmforge.errors import ConfigError, TrainingError
from glmforge.models import family_of, load_config, load_model, load_tokenizer, new_model
from glmforge.models.layers import (
    add_embedding_noise,
    checkpoint_layers,
    compile_layers,
    decoder_layers,
    train_last_layers,
)
from glmforge.plan.batch import BatchSizes, batch_sizes
from glmforge.plan.deepspeed_config import EngineSettings, read_map, write_config
from glmforge.train.engine import pick_precision, torch_dtype
from glmforge.train.methods import (
    check_layer_count,
    check_requirements,
    check_schedule,
    four_bit,
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Encoded examples and the rows made of them."""

    train: ExampleSet
    train_rows: PackedRows
    validation: ExampleSet | None
    validation_rows: PackedRows
    prompts: Sequence[tuple[str, list[int]]]
    files: dict[str, list[Path]]

    packed: bool
    pad_id: int

    def plan(self, sizes: BatchSizes, seed: int) -> BatchPlan:
        """Return the order of rows for a global batch."""
        return BatchPlan(
            self.train.examples,
            self.train_rows,
            global_batch=sizes.global_batch,
            seed=seed,
            packed=self.packed,
            pad_id=self.pad_id,
        )

    def examples(self) -> dict[str, Sequence[Example]]:
        """Return the encoded examples by part ("train", "validation")."""
        found = {"train": self.train.examples}
        if self.validation is not None:
            found["validation"] = self.validation.examples
        return found

    def eval_batches(self, ranks: Ranks, micro_batch: int) -> list[Batch]:
        """Return this rank's share of the validation rows."""
        if self.validation is None:
            return []
        return eval_batches(
            self.validation.examples,
            self.validation_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
            micro_batch=micro_batch,
            packed=self.packed,
            pad_id=self.pad_id,
        )


def paths_of(value: str | list[str] | None) -> list[Path]:
    """Return a config's file or files as paths."""
    if value is None:
        return []
    return [Path(item) for item in ([value] if isinstance(value, str) else value)]


def prepare_data(config: RunConfig, tokenizer: Any, say: Say) -> TrainingData:
    """Read, check, encode and pack the dialogues of `config`.

    Raises:
        DataError: files or rows that break a rule, all at once.
        TrainingError: no row with anything to train is left.
    """
    data = config.data
    files = {"train": paths_of(data.train), "validation": paths_of(data.validation)}

    def encode(part: str) -> tuple[ExampleSet, list[Conversation]]:
        conversations = [row for path in files[part] for row in read_conversations(path)]
        found = build_examples(
            conversations,
            tokenizer,
            max_length=data.max_length,
            labels=data.labels,
            truncation=data.truncation,
            on_error=data.on_error,
        )
        say(f"{part}: {found.counts}")
        return found, conversations

    train, _ = encode("train")
    if not train.examples:
        raise TrainingError(
            f"data.train: no dialogue is left to train on ({train.counts}): raise data.max_length "
            f"({data.max_length} tokens now) or look at the rows of "
            f"{', '.join(map(str, files['train']))}"
        )
    validation, held_out = encode("validation") if files["validation"] else (None, [])

    def rows_of(found: ExampleSet | None) -> PackedRows:
        if found is None:
            return []
        if not data.packing:
            return unpacked(len(found.examples))
        lengths = [len(example.input_ids) for example in found.examples]
        return pack(lengths, data.max_length, config.training.seed)

    return TrainingData(
        train=train,
        train_rows=rows_of(train),
        validation=validation,
        validation_rows=rows_of(validation),
        prompts=_prompts(config, tokenizer, held_out),
        files={part: paths for part, paths in files.items() if paths},
        packed=data.packing,
        pad_id=tokenizer.pad_token_id or 0,
    )


def _prompts(
    config: RunConfig, tokenizer: Any, held_out: Sequence[Conversation]
) -> list[tuple[str, list[int]]]:
    """Return (text, generation prompt ids) of the prompts that the run answers on the way."""
    generation = config.generation
    if generation.prompts is not None:
        histories = [[{"role": "user", "content": text}] for text in generation.prompts]
    else:
        histories = []
        for conversation in held_out[: generation.num_prompts]:
            first = next(i for i, m in enumerate(conversation.messages) if m.role == "user")
            histories.append(
                [
                    {"role": message.role, "content": message.content}
                    for message in conversation.messages[: first + 1]
                ]
            )
    return [
        (history[-1]["content"], generation_prompt(history, tokenizer)) for history in histories
    ]


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
    positions = getattr(model_config, "max_position_embeddings", None)
    if positions is not None and config.data.max_length > positions:
        raise ConfigError(
            f"data.max_length is {config.data.max_length} tokens, but {directory} has "
            f"{positions} positions: write data.max_length={positions} or less"
        )
    if config.method == "full":
        return ModelPlan(config=model_config, lora=None)
    empty = _empty_model(model_config)
    if config.method == "freeze":
        wanted = config.freeze.num_trainable_layers
        check_layer_count(wanted, len(decoder_layers(empty)), directory)
        return ModelPlan(config=model_config, lora=None, trained_layers=wanted)
    targets = check_targets(
        empty,
        config.lora.target_modules,
        family_of(model_config).lora_targets,
    )
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
    sizes = batch_sizes(
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        ranks.world_size,
        packing=config.data.packing,
    )
    engine_config = write_config(
        EngineSettings(sizes=sizes, precision=precision, max_grad_norm=training.max_grad_norm),
        read_map(config.deepspeed),
    )
    check_requirements(config, ranks.device, engine_config)
    stage = engine_config["zero_optimization"]["stage"]
    say(f"{ranks.device.type}, {precision}, ZeRO-{stage}; {sizes.sentence()} rows a step")
    model = plan_model(config)
    tokenizer = load_tokenizer(config.model.model_name_or_path)
    data = prepare_data(config, tokenizer, say)
    order = data.plan(sizes, training.seed)
    steps = total_steps(config, order)
    check_schedule(config, steps)
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
    config: RunConfig, plan: ModelPlan, precision: str, ranks: Ranks, say: Say
) -> Any:
    """Load (or make) the model in its training dtype on this rank's device, adapters added.

    Raises:
        ModelError: the directory's weights cannot be loaded.
    """
    directory, dtype = config.model.model_name_or_path, torch_dtype(precision)
    if config.model.from_scratch:
        say(f"model: random weights from {directory}/config.json (model.from_scratch)")
        model: Any = new_model(plan.config, dtype=dtype).to(ranks.device)
    else:
        quantization = four_bit(dtype) if config.method == "qlora" else None
        model = load_model(directory, dtype=dtype, device=ranks.device, quantization=quantization)
    if plan.lora is not None:
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
