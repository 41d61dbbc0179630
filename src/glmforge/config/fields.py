"""What all sections of the run config share: their base class and the kinds of values.

`schema.py` and `training_settings.py` hold the sections themselves.
"""

import os.path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


class Settings(BaseModel):
    """What all sections share: frozen, unknown keys refused, no silent type conversion."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, protected_namespaces=(), allow_inf_nan=False
    )


def _number_as_text(value: object) -> object:
    """Read `gpus: 0`, which YAML gives as a number, as the text "0"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


NonEmptyText = Annotated[str, Field(min_length=1)]
PathText = Annotated[NonEmptyText, AfterValidator(os.path.expanduser)]
Paths = PathText | Annotated[list[PathText], Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
GpuList = Annotated[NonEmptyText, BeforeValidator(_number_as_text)]
