"""What all models of ours have in common towards transformers: no file of a checkpoint is run.

Owns `OwnCodeModel`, the base of the two pretrained classes. The Auto classes hand
``trust_remote_code`` on to the class that they chose, where transformers would run a directory's
``custom_generate/generate.py`` for it; the flag ends here. A model opened from a directory that
names no stop ids gets those of its family.
"""

from typing import Any

from transformers import PreTrainedModel

from glmforge.models.stops import complete_stops


class OwnCodeModel(PreTrainedModel):
    """A model that is whole without any code of its checkpoint."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does; ``trust_remote_code`` is accepted and means nothing."""
        opened = super().from_pretrained(*args, **{**kwargs, "trust_remote_code": False})
        name = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        model = opened[0] if isinstance(opened, tuple) else opened
        if name is not None and model.can_generate():
            complete_stops(model, name, kwargs)
        return opened
