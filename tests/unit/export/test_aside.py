"""What leaves a model behind is whole or absent, and begins only where it can end."""

from pathlib import Path

import pytest

from glmforge.errors import ExportError
from glmforge.export.aside import written_aside


def test_a_directory_is_there_when_all_was_written_and_not_before(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with written_aside(out) as target:
        target.mkdir()
        (target / "file").touch()
        assert not out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "file").exists()


def test_nothing_is_left_where_something_was_raised(tmp_path: Path) -> None:
    def fail() -> None:
        with written_aside(tmp_path / "out") as target:
            target.mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_made_is_told_before_anything_is_read(tmp_path: Path) -> None:
    """It was a bug report with a traceback, after the weights were loaded."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ExportError, match=r"file/out: cannot be made \(File exists\)"),
        written_aside(tmp_path / "file" / "out"),
    ):
        raise AssertionError("not reached")
