"""What every tier of tests shares: reference material beside the checkout, and who runs when.

Tests marked `gpu` are skipped with the reason where there is no CUDA device. Tests marked `slow`
run only when `-m` names the marker (`make test-all`). Property tests draw the same examples on
every run and have no deadline: the machine that runs them may be busy.
"""

import functools
import gc
import importlib.util
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from warm import WarmPython

# Importing the libraries makes hundreds of thousands of objects that stay; looking through them
# again and again would be a quarter of the time of collecting tests, and some of every test's.
gc.disable()

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("hypothesis") is not None:
        from hypothesis import settings

        settings.register_profile("glmforge", derandomize=True, deadline=None, database=None)
        settings.load_profile("glmforge")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" not in config.getoption("markexpr"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        if slow:
            config.hook.pytest_deselected(items=slow)
            items[:] = [item for item in items if not item.get_closest_marker("slow")]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        if not torch.cuda.is_available():
            for item in on_gpu:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Let a failed test report half of a surrogate pair: pytest-xdist sends reports as UTF-8."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """The same value with every text in it made valid UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {encodable(key): encodable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(encodable(inner) for inner in value)
    return value


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout: original outputs and real data, never committed."""
    directory = ROOT.parent / "shared"
    if not directory.is_dir():
        pytest.skip("needs the reference folder `shared` beside the checkout")
    return directory


@pytest.fixture(scope="session")
def real_tokenizer(shared: Path) -> Callable[[str], Any]:
    """The real tokenizer of a directory of shared/tokenizers, opened once."""
    from glmforge.models import load_tokenizer

    return functools.cache(lambda name: load_tokenizer(shared / "tokenizers" / name))


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def warm_python() -> Generator[WarmPython, None, None]:
    """`warm_python.run([sys.executable, …])`: a new process that has the libraries loaded."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def warm_proofs(warm_python: WarmPython) -> Generator[None, None, None]:
    """The new processes in which an export opens what it wrote need not load the libraries."""
    from glmforge.export import proof

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proof, "subprocess", warm_python)
        yield


@pytest.fixture
def plain_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those processes are started as users start them, in one test of a `warm_proofs` module."""
    from glmforge.export import proof

    monkeypatch.setattr(proof, "subprocess", subprocess)
