"""Files shipped with the package: the demo (base, dialogues, questions, config), prompts, pages."""

from pathlib import Path

_ROOT = Path(__file__).parent


def asset_path(name: str) -> Path:
    """Return the path of a shipped file or directory, such as "base" or "demo/train.jsonl"."""
    path = _ROOT / name
    assert path.exists(), f"{name} is not shipped with glmforge"
    return path
