"""LoRA through PEFT: resolving targets, wrapping a model, saving, merging.

Plain values in (never the run config); sits beside ``models`` and ``data``.
"""

from glmforge.adapters.files import (
    AdapterFiles,
    peft_names,
    read_adapter,
    read_adapter_config,
    refuse_other_rank,
    save_adapter_files,
    weights_path,
    zero_alpha,
    zero_b,
    zero_notes,
)
from glmforge.adapters.lora import (
    LoraSettings,
    add_lora,
    check_match,
    check_targets,
    linear_module_names,
    open_adapter,
    save_adapter,
    saved_name,
    trainable_line,
    wrap,
)

__all__ = [
    "AdapterFiles",
    "LoraSettings",
    "add_lora",
    "check_match",
    "check_targets",
    "linear_module_names",
    "open_adapter",
    "peft_names",
    "read_adapter",
    "read_adapter_config",
    "refuse_other_rank",
    "save_adapter",
    "save_adapter_files",
    "saved_name",
    "trainable_line",
    "weights_path",
    "wrap",
    "zero_alpha",
    "zero_b",
    "zero_notes",
]
