"""LoRA through PEFT: resolving targets, wrapping a model, saving, merging.

Plain values in (never the run config); sits beside ``models`` and ``data``.
"""

from glmforge.adapters.lora import (
    LoraSettings,
    add_lora,
    check_targets,
    linear_module_names,
    open_adapter,
    save_adapter,
    trainable_line,
)

__all__ = [
    "LoraSettings",
    "add_lora",
    "check_targets",
    "linear_module_names",
    "open_adapter",
    "save_adapter",
    "trainable_line",
]
