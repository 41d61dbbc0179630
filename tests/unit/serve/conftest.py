"""Fixtures of the serve tests: a tiny base and two adapters."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from served import write_adapter, write_base

from glmforge.serve.opening import find_paths, open_models


@pytest.fixture(scope="session")
def small_base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("serve") / "base")


@pytest.fixture(scope="session")
def two_adapters(small_base, tmp_path_factory):
    top = tmp_path_factory.mktemp("runs")
    write_adapter(small_base, top / "first" / "adapter", 1)
    write_adapter(small_base, top / "v1.2", 2)
    return [top / "first" / "adapter", top / "v1.2"]


@pytest.fixture(scope="session")
def small_models(small_base, two_adapters):
    return open_models(find_paths(small_base, [(None, path) for path in two_adapters]))
