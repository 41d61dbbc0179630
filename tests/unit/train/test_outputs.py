"""The last weights of a finished run, looked at again when it is asked to go on."""

import pytest

from glmforge.train.outputs import changed_weights, lost_weights, seal_weights


@pytest.fixture
def adapter(tmp_path):
    directory = tmp_path / "adapter"
    directory.mkdir()
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(b"weights")
    return directory


def test_weights_that_are_as_they_were_written_pass(adapter):
    """Edited text beside them does too."""
    written = seal_weights(adapter)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    (adapter / "README.md").write_text("mine")
    assert lost_weights(adapter) is None
    assert changed_weights(adapter, written) == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_model.safetensors", b"weighty", "its bytes differ from what was written"),
        ("adapter_model.safetensors", b"weig", "4 bytes, 7 were written"),
        ("adapter_config.json", b'{"r": ', "is not valid JSON"),
    ],
)
def test_what_is_damaged_is_named(adapter, name, content, said):
    written = seal_weights(adapter)
    (adapter / name).write_bytes(content)
    (problem,) = changed_weights(adapter, written)
    assert problem.startswith(f"{adapter / name}: ")
    assert said in problem


def test_what_is_gone_is_named(adapter):
    (adapter / "adapter_model.safetensors").unlink()
    assert lost_weights(adapter) == f"{adapter} has no adapter_model.safetensors"
    assert lost_weights(adapter.with_name("model")) == f"{adapter.with_name('model')} is not there"
