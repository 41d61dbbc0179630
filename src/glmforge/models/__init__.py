"""Model code: our own ChatGLM classes, and everything that opens a model directory.

Public here: `load_config`, `load_model`, `new_model` (loading.py), `load_tokenizer`
(tokenizers.py), `register_models` (registration.py) and the family table (families.py). Names are
resolved on first use, so that the family table can be read without torch. Models know plain
values only, never the run config.
"""

from typing import TYPE_CHECKING, Any

from glmforge.models.families import FAMILIES, Family, family_of, family_of_tokenizer

if TYPE_CHECKING:
    from glmforge.models.loading import load_config, load_model, new_model
    from glmforge.models.registration import register_models
    from glmforge.models.tokenizers import load_tokenizer

__all__ = [
    "FAMILIES",
    "Family",
    "family_of",
    "family_of_tokenizer",
    "load_config",
    "load_model",
    "load_tokenizer",
    "new_model",
    "register_models",
]

_LAZY = {
    "load_config": "loading",
    "load_model": "loading",
    "new_model": "loading",
    "load_tokenizer": "tokenizers",
    "register_models": "registration",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    import importlib

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
