"""glmforge: fine-tune the ChatGLM family on several GPUs.

The public Python API, resolved on first use. Importing the package registers the ChatGLM classes
with transformers' Auto classes, and does nothing else; after that
``AutoModelForCausalLM.from_pretrained(directory)`` opens a ChatGLM directory without remote code.
The ``glmforge`` command itself skips that (its parts register when they open a model), so that
``--help`` and a mistyped config answer at once.
"""

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glmforge.data import encode_conversation, encode_rows
    from glmforge.models import load_model, load_tokenizer
    from glmforge.train import train

__all__ = ["encode_conversation", "encode_rows", "load_model", "load_tokenizer", "train"]

_LAZY = {
    "encode_conversation": "glmforge.data",
    "encode_rows": "glmforge.data",
    "load_model": "glmforge.models",
    "load_tokenizer": "glmforge.models",
    "train": "glmforge.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module 'glmforge' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def _is_own_command() -> bool:
    """Whether this process is ``glmforge …`` or ``python -m glmforge …``."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m":  # Python is looking for the module that it was told to run
        words = sys.orig_argv
        return "-m" in words[:-1] and words[words.index("-m") + 1] == "glmforge"
    return PurePath(program).stem == "glmforge"


if not _is_own_command():
    from glmforge.collector import collector_paused

    with collector_paused():
        from glmforge.models.registration import register_models

        register_models()
