"""Heavy imports run without Python's cycle collector, and leave it as it was."""

import gc
import importlib

import pytest

from glmforge.cli.imports import heavy_imports


def fails():
    with heavy_imports():
        assert not gc.isenabled()
        importlib.import_module("no_such_module")


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_paused_and_left_as_it_was(on):
    """Also where an import fails; what was there is looked through no more."""
    was = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with pytest.raises(ModuleNotFoundError):
            fails()
        assert gc.isenabled() == on
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        (gc.enable if was else gc.disable)()
