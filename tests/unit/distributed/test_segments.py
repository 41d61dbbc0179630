"""The allocator's segments grow, unless the user has said something about the allocator."""

import os

import pytest

from glmforge.distributed.env import let_segments_grow


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Both of torch's names count."""
    for other in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, "max_split_size_mb:128")
    let_segments_grow()
    assert os.environ[name] == "max_split_size_mb:128"
    assert sum(key in os.environ for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")) == 1


def test_otherwise_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured: full 6B under ZeRO-2 fits a card of 140 GiB only so."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    let_segments_grow()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
