"""What a stopped run says: commands that can be typed as they stand."""

from pathlib import Path

import pytest

from glmforge.train.session import next_commands


@pytest.mark.parametrize(("is_adapter", "ending"), [(True, "OUT --merge"), (False, "OUT")])
def test_only_an_adapter_is_exported_with_merge(is_adapter: bool, ending: str) -> None:
    """Whole weights refuse --merge, which would do nothing."""
    lines = next_commands(Path("my run"), Path("my run/checkpoints/step-000002"),
                          is_adapter=is_adapter)  # fmt: skip
    (export,) = (line for line in lines if "glmforge export" in line)
    assert export.endswith(f"'my run/checkpoints/step-000002' {ending}")
