"""What all models of ours have in common towards transformers: no file of a checkpoint is run.

Owns `OwnCodeModel`, the base of the two pretrained classes. The Auto classes hand
``trust_remote_code`` on to the class that they chose, where transformers would run a directory's
``custom_generate/generate.py`` for it; the flag ends here.
"""

from typing import Any

from transformers import PreTrainedModel


class OwnCodeModel(PreTrainedModel):
    """A model that is whole without any code of its checkpoint."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does; ``trust_remote_code`` is accepted and means nothing."""
        return super().from_pretrained(*args, **{**kwargs, "trust_remote_code": False})
