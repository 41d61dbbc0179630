"""The run config: every setting of a training run, with its type, default and meaning.

Owns the sections and fields of the YAML file and nothing else: reading the file is `load.py`,
rules between fields are `rules.py`, files on disk are `paths.py`. The names are those that users
know from transformers' `TrainingArguments`, PEFT's `LoraConfig` and DeepSpeed. A `RunConfig` is
frozen: nothing changes a value after loading, and nothing overrides a value that was written.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from glmforge.config.fields import Count, GpuList, NonEmptyText, Paths, PathText, Settings, Share
from glmforge.config.training_settings import TrainingSettings

Truncation = Literal[
    "drop_last_turns",
    "drop",
    "drop_oldest_turns",
    "split",
    "truncate_prompt",
    "truncate_right",
    "error",
]


class ModelSettings(Settings):
    """The base model."""

    model_name_or_path: PathText = Field(
        description="Local directory of the base model (config.json, tokenizer and weights)."
    )
    from_scratch: bool = Field(
        default=False,
        description="Start from random weights made from config.json instead of reading weights; "
        "only with method full.",
    )


class LoraSettings(Settings):
    """Low-rank adapters (methods lora and qlora)."""

    r: Count = Field(default=8, description="Rank of the adapter matrices (dimensions).")
    lora_alpha: Count = Field(
        default=32,
        description="Scale of the adapter: its output is multiplied by lora_alpha / r (with "
        "use_rslora by lora_alpha / √r).",
    )
    lora_dropout: float = Field(
        default=0.1, ge=0, lt=1, description="Dropout on the adapter's input (probability)."
    )
    target_modules: Annotated[list[NonEmptyText], Field(min_length=1)] | None = Field(
        default=None,
        description="Names of the linear modules that get an adapter; null takes the model "
        "family's usual ones (query_key_value for ChatGLM).",
    )
    use_rslora: bool = Field(
        default=False,
        description="Scale the adapter by lora_alpha / √r, which keeps its strength the same at "
        "any rank (rsLoRA).",
    )
    use_dora: bool = Field(
        default=False,
        description="Train a magnitude for each output of a module beside the low-rank direction "
        "(DoRA): closer to full training at low ranks, clearly slower.",
    )
    loraplus_lr_ratio: Annotated[float, Field(gt=1)] | None = Field(
        default=None,
        description="Learning rate of the lora_B matrices as a multiple of learning_rate (LoRA+); "
        "null is the same for all.",
    )


class FreezeSettings(Settings):
    """Training of the last layers only (method freeze)."""

    num_trainable_layers: Count = Field(
        default=2,
        description="How many of the last decoder layers are trained (a count), with the norm "
        "after them; embeddings and language head stay as they are.",
    )


class WeightedSource(Settings):
    """One source of training data and how often its records count."""

    path: PathText = Field(description="File, directory or hub name.")
    weight: float = Field(
        default=1.0,
        gt=0,
        description="How often each record is taken: 2 is twice, 0.5 a random half (a factor).",
    )


Sources = (
    PathText | WeightedSource | Annotated[list[PathText | WeightedSource], Field(min_length=1)]
)
Repair = Literal["merge", "trim", "flatten", "gbk"]


class DataSettings(Settings):
    """Dialogues and how they become training rows."""

    train: Sources = Field(
        description="Training dialogues: files, directories or hub names, each alone or as "
        "{path, weight}."
    )
    validation: Paths | None = Field(
        default=None,
        description="Held-out dialogues: files, directories or hub names; null evaluates nothing, "
        "or what validation_size holds out.",
    )
    validation_size: Count | Share | None = Field(
        default=None,
        description="Records of data.train to hold out for validation (a count, or a share below "
        "1), copies of a record together; null holds none out.",
    )
    columns: dict[NonEmptyText, NonEmptyText] = Field(
        default_factory=dict,
        description="Names of the files' fields where they differ from ours (ours: theirs), such "
        "as {query: ask, response: reply}.",
    )
    repair: list[Repair] = Field(
        default_factory=list,
        description="Faults that are repaired on reading: merge joins neighbours of one role, trim "
        "strips white space, flatten joins lists of text parts, gbk reads GBK lines.",
    )
    max_length: int = Field(
        default=2048, ge=8, description="Longest dialogue and length of a packed row (tokens)."
    )
    labels: Literal["all_turns", "last_turn", "official"] = Field(
        default="all_turns",
        description="Which assistant turns are trained: all of them, only the last, or what the "
        "family's own fine-tuning code trained.",
    )
    truncation: Truncation = Field(
        default="drop_last_turns",
        description="What happens to a dialogue over max_length: lose turns from its end "
        "(drop_last_turns) or its start (drop_oldest_turns), be left out (drop), be divided "
        "(split), lose words of its questions (truncate_prompt), have its last answer cut "
        "(truncate_right), or stop the run (error); everything is counted.",
    )
    packing: bool | Literal["auto"] = Field(
        default="auto",
        description="Put several dialogues into one row, with attention and positions kept apart; "
        "auto does so unless the model family cannot (ChatGLM-6B).",
    )
    group_by_length: bool = Field(
        default=False,
        description="Rows of like length share a step, for less padding; only with packing false.",
    )
    pad_to_multiple_of: Count = Field(
        default=1,
        description="Row lengths are padded to a multiple of this (tokens); only with packing "
        "false.",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop",
        description="What a faulty record does: stop the run, or be skipped, counted and written "
        "to skipped.jsonl in the run directory.",
    )
    preprocessing_num_workers: Count | None = Field(
        default=None,
        description="Processes that prepare the data, one core each; null is all cores, fewer for "
        "small files.",
    )
    prepared_dir: PathText | None = Field(
        default=None,
        description="Directory of the prepared sets, which runs share; null is .prepared beside "
        "training.output_dir.",
    )


class GenerationSettings(Settings):
    """Sample answers written at each evaluation."""

    prompts: Annotated[list[NonEmptyText], Field(min_length=1)] | None = Field(
        default=None,
        description="User messages answered at each evaluation; null takes the first user "
        "messages of the validation dialogues.",
    )
    references: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None,
        description="Right answers to generation.prompts, one each, for exact match, BLEU-4 and "
        "ROUGE-L; prompts from the validation dialogues bring their own.",
    )
    num_prompts: Annotated[int, Field(ge=0)] = Field(
        default=4, description="How many validation dialogues give a prompt (a count)."
    )
    max_new_tokens: Count = Field(
        default=128, description="Longest answer generated at an evaluation (tokens)."
    )


class LaunchSettings(Settings):
    """Processes that `glmforge train` starts itself."""

    nproc: Count | None = Field(
        default=None,
        description="Processes on this machine; null is one, or one per GPU of launch.gpus.",
    )
    gpus: GpuList | None = Field(
        default=None,
        description='GPUs to use, such as "0,2": indices into CUDA_VISIBLE_DEVICES where it is '
        "set, or UUIDs; null is all visible ones.",
    )
    master_addr: NonEmptyText | None = Field(
        default=None, description="Address where the processes meet; null is 127.0.0.1."
    )
    master_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="TCP port where the processes meet; null finds a free one."
    )


class RunConfig(Settings):
    """All settings of a run."""

    model: ModelSettings = Field(description="The base model.")
    method: Literal["lora", "qlora", "freeze", "full"] = Field(
        default="lora",
        description="What is trained: low-rank adapters (on a 4-bit base with qlora), the last "
        "layers, or all weights.",
    )
    lora: LoraSettings = Field(
        default_factory=LoraSettings, description="Low-rank adapters (methods lora and qlora)."
    )
    freeze: FreezeSettings = Field(
        default_factory=FreezeSettings,
        description="Training of the last layers only (method freeze).",
    )
    data: DataSettings = Field(description="Dialogues and how they become training rows.")
    training: TrainingSettings = Field(
        description="Optimisation, schedule, logging and checkpoints."
    )
    generation: GenerationSettings = Field(
        default_factory=GenerationSettings,
        description="Sample answers written at each evaluation.",
    )
    deepspeed: dict[str, Any] | PathText | None = Field(
        default=None,
        description="DeepSpeed settings as a map or as the path of a JSON file; null is ZeRO "
        "stage 2.",
    )
    launch: LaunchSettings = Field(
        default_factory=LaunchSettings,
        description="Processes that `glmforge train` starts itself.",
    )

    @property
    def trains_adapter(self) -> bool:
        """Whether adapters are trained beside a base that stays as it is."""
        return self.method in ("lora", "qlora")

    def to_yaml(self) -> str:
        """Write the config as YAML that `load_config_file` reads back to an equal config.

        Settings that have no effect under the others (lora.* with method full) are left out,
        because reading refuses them.
        """
        from glmforge.config.dump import config_to_yaml

        return config_to_yaml(self)
