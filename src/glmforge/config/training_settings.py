"""The section `training` of the run config: optimisation, schedule, logging and checkpoints.

A part of the schema; rules between its fields are in `rules.py`.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field

from glmforge.config.fields import Count, PathText, Settings

TrackerName = Literal["tensorboard", "wandb", "swanlab", "mlflow"]
EvalMetric = Literal[
    "eval_loss",
    "eval_exact_match",
    "eval_bleu_4",
    "eval_rouge_l",
    "eval_repetition",
    "eval_stopped_share",
    "eval_empty_answers",
    "eval_empty_references",
]
StepMetric = Literal[
    "loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "skipped_steps",
    "trained_tokens",
    "tokens_per_second",
    "step_seconds",
    "data_seconds",
    "peak_gib",
]
Metric = Literal[EvalMetric, StepMetric]

STEP_METRICS: tuple[str, ...] = get_args(StepMetric)
"""Measures of a step, by the names of metrics.jsonl."""


class TrainingSettings(Settings):
    """Optimisation, schedule, logging and checkpoints."""

    output_dir: PathText = Field(description="Run directory, made by the run.")
    seed: int = Field(
        default=42,
        ge=0,
        lt=2**32,
        description="Seed of the weights, the dropout and the order of the rows (an integer).",
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        default="auto",
        description="Number format of forward and backward; auto takes bf16 where the GPU has it, "
        "fp16 on older GPUs, fp32 on CPU.",
    )
    deterministic: bool = Field(
        default=False,
        description="Use kernels that give the same bits every time, so that a resumed run on GPUs "
        "is bitwise the one that never stopped; slower (on the CPU runs are so anyway).",
    )
    num_train_epochs: float = Field(
        default=3.0, gt=0, description="Passes over the training rows (epochs, may be a fraction)."
    )
    max_steps: Count | None = Field(
        default=None,
        description="Length of the run in optimizer steps, in place of num_train_epochs; null "
        "counts epochs.",
    )
    per_device_train_batch_size: Count = Field(
        default=2, description="Rows (packed rows where packing is on) a process and forward pass."
    )
    per_device_eval_batch_size: Count = Field(
        default=2, description="Rows a process and forward pass during evaluation."
    )
    gradient_accumulation_steps: Count | Literal["auto"] = Field(
        default="auto",
        description="Forward passes a process for one optimizer step; auto is 1 with packing and "
        "8 without.",
    )
    learning_rate: float = Field(
        default=5e-5, gt=0, description="Highest learning rate of the schedule (per step)."
    )
    lr_scheduler_type: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = Field(
        default="linear",
        description="Course of the learning rate after the warm-up; warmup_stable_decay stays and "
        "falls at the end only.",
    )
    warmup_ratio: float = Field(
        default=0.03,
        ge=0,
        le=1,
        description="Share of all steps in which the learning rate rises from 0 (fraction).",
    )
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Steps in which the learning rate rises from 0, in place of warmup_ratio; "
        "null takes the ratio.",
    )
    decay_ratio: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of all steps, at the end, in which warmup_stable_decay falls to 0 "
        "(fraction).",
    )
    decay_steps: Count | None = Field(
        default=None,
        description="Steps, at the end, in which warmup_stable_decay falls to 0, in place of "
        "decay_ratio; null takes the ratio.",
    )
    optim: Literal["adamw_torch", "adamw_bnb_8bit"] = Field(
        default="adamw_torch",
        description="Optimizer: torch's AdamW (fused on GPU), or bitsandbytes' with states of 8 "
        "bits (GPU only), which takes 6 bytes less a trained parameter.",
    )
    weight_decay: float = Field(
        default=0.01, ge=0, description="AdamW's decoupled weight decay (per unit learning rate)."
    )
    adam_beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Decay of Adam's first moment (per step)."
    )
    adam_beta2: float = Field(
        default=0.999, ge=0, lt=1, description="Decay of Adam's second moment (per step)."
    )
    adam_epsilon: float = Field(
        default=1e-8, gt=0, description="Term in Adam's denominator against division by zero."
    )
    max_grad_norm: float = Field(
        default=1.0, ge=0, description="Gradients are scaled down to this L2 norm; 0 never scales."
    )
    neftune_noise_alpha: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Uniform noise on the token embeddings in training, of this size / √(tokens x "
        "width) of a dialogue (NEFTune; 5 is usual); null adds none.",
    )
    gradient_checkpointing: bool | Count = Field(
        default=True,
        description="Recompute activations in the backward pass: about 30 % slower, far less "
        "memory; a number n does so for every n-th decoder layer only.",
    )
    logging_steps: Count = Field(
        default=10, description="Console and TensorBoard get a line every so many steps."
    )
    eval_steps: Count | None = Field(
        default=None,
        description="Evaluate (look at metric_for_best_model) every so many steps; null does so at "
        "each epoch's end only.",
    )
    report_to: Literal["none"] | TrackerName | list[TrackerName] = Field(
        default="tensorboard",
        description="Where curves and sample answers go besides metrics.jsonl: none, one or "
        "several of tensorboard, wandb, swanlab, mlflow (the last three need their package).",
    )
    metric_for_best_model: Metric = Field(
        default="eval_loss",
        description="Measure by which the best checkpoint is kept and early stopping decides: of "
        "the evaluations (eval_...), or of the steps since the last one (loss, grad_norm, ...: "
        "their mean).",
    )
    greater_is_better: bool | None = Field(
        default=None,
        description="Whether a higher metric_for_best_model is better; null knows: lower for "
        "losses, norms, repetition, empty answers, skipped steps, seconds and memory, higher for "
        "the others.",
    )
    early_stopping_patience: Count | None = Field(
        default=None,
        description="End the run after so many looks in a row (eval_steps, epochs' ends) without a "
        "better metric_for_best_model; null never does.",
    )
    save_steps: Count = Field(default=500, description="Write a checkpoint every so many steps.")
    save_total_limit: Count = Field(
        default=2, description="Newest checkpoints kept beside the best one (a count)."
    )
    async_save: bool = Field(
        default=False,
        description="Copy checkpoints into host memory (their size, once) and write them while "
        "training goes on; false writes them at once, and training waits.",
    )
