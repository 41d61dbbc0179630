"""Files shipped with the package: the demo's dialogues, model configuration and run config."""

from pathlib import Path

_ROOT = Path(__file__).parent


def asset_path(name: str) -> Path:
    """Return the path of a shipped file or directory, such as "demo/model"."""
    path = _ROOT / name
    assert path.exists(), f"{name} is not shipped with glmforge"
    return path
