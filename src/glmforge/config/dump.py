"""A run config as YAML text that loads back to an equal config.

Every setting that has an effect is written, defaults included, so that a run's `config.yaml` says
all of what was used, whatever the defaults of a later version are.
"""

from glmforge.config import document
from glmforge.config.rules import idle_settings
from glmforge.config.schema import RunConfig
from glmforge.config.tree import leaf_fields


def config_to_yaml(config: RunConfig) -> str:
    """Write every setting that has an effect, defaults included."""
    values = config.model_dump(mode="json")
    flat = {name: _get(values, name) for name in leaf_fields()}
    for name in idle_settings(flat.__getitem__):
        section, _, key = name.partition(".")
        del values[section][key]
    return document.write({key: value for key, value in values.items() if value != {}})


def _get(values: dict[str, object], name: str) -> object:
    section, _, key = name.partition(".")
    inner = values[section]
    return inner[key] if key and isinstance(inner, dict) else inner
