"""The run config: its schema, reading it from YAML and the command line, and explaining it.

Flow: `load_config_file("run.yaml", ["training.seed=1"])` → frozen `RunConfig` → train. This room
knows nothing of torch, so that a fault in the config costs no import of it.
"""

from glmforge.config.load import config_from_mapping, load_config_file
from glmforge.config.schema import RunConfig

__all__ = ["RunConfig", "config_from_mapping", "load_config_file"]
