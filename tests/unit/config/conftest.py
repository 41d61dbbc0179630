"""Writes config files and hands out the problems that loading them names."""

from collections.abc import Callable
from pathlib import Path

import pytest

from glmforge.config import load_config_file
from glmforge.errors import ConfigError


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write `c.yaml` into an empty working directory."""

    def write_text(text: str) -> Path:
        file = tmp_path / "c.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_text


@pytest.fixture
def problems(write: Callable[[str], Path]) -> Callable[..., list[str]]:
    """Load a text with overrides and return the problems, the file's path shortened to c.yaml."""

    def load(text: str, *overrides: str, **options: object) -> list[str]:
        file = write(text)
        with pytest.raises(ConfigError) as caught:
            load_config_file(file, overrides, **options)
        return [problem.replace(str(file), "c.yaml") for problem in caught.value.problems]

    return load
