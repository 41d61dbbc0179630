"""Torch's deterministic mode is on for the time of a run that asked for it, and off after it."""

import pytest
import torch

from glmforge.train.deterministic import deterministic_kernels


@pytest.mark.parametrize("wanted", [True, False])
def test_the_mode_lasts_as_long_as_the_run(wanted: bool, monkeypatch) -> None:
    """An error inside ends it too."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = []

    def run() -> None:
        with deterministic_kernels(wanted):
            found.append(torch.are_deterministic_algorithms_enabled())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        run()
    assert found == [wanted]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_layers_are_compiled_without_timing_their_kernels() -> None:
    """torch.compile takes the option that `compile_layers` gives it in deterministic mode."""
    layer = torch.nn.Linear(2, 2)
    torch.compile(layer, options={"deterministic": True})
    assert "deterministic" in torch._inductor.list_options()
