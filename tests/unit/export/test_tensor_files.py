"""Weights are written tensor by tensor and read back; checkpoints are read and never run."""

import json
import os
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glmforge.errors import CheckpointError, ExportError
from glmforge.export.pickles import Inert, read_inert
from glmforge.export.tensor_files import Planned, check_written, parse_size, write_tensors


def planned(tensors, log=None):
    def reader(name):
        def read():
            if log is not None:
                log(name)
            return tensors[name].clone()

        return read

    return {
        name: Planned(dtype=tensor.dtype, shape=tuple(tensor.shape), read=reader(name))
        for name, tensor in tensors.items()
    }


TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.arange(6, dtype=torch.float32).to(torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "empty": torch.zeros(0, 3),
    "名": torch.ones(2, dtype=torch.float16),
}


def test_safetensors_reads_what_was_written(tmp_path):
    """Every dtype, scalars, empty tensors, names that are not ASCII."""
    checksums = write_tensors(tmp_path, planned(TENSORS), max_shard_size="1GB")
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    check_written(tmp_path, checksums)


def test_shards_have_an_index(tmp_path):
    """No file is larger than asked, unless one tensor is."""
    tensors = {f"w{n}": torch.full((100,), float(n)) for n in range(5)}
    write_tensors(tmp_path, planned(tensors), max_shard_size="0.8KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000
    assert sorted(set(index["weight_map"].values())) == [
        f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name], tensors[name])


def test_one_tensor_is_in_memory_at_a_time(tmp_path):
    """Each is let go before the one after the next is read."""
    alive: list[weakref.ref] = []
    most = []

    def reader(number):
        def read():
            most.append(sum(ref() is not None for ref in alive))
            tensor = torch.full((1000,), float(number))
            alive.append(weakref.ref(tensor))
            return tensor

        return read

    tensors = {
        f"w{n}": Planned(dtype=torch.float32, shape=(1000,), read=reader(n)) for n in range(6)
    }
    write_tensors(tmp_path, tensors, max_shard_size="1GB")
    assert max(most) <= 1


def test_a_flipped_byte_is_found(tmp_path):
    """And so is a tensor that is not there."""
    checksums = write_tensors(tmp_path, planned(TENSORS), max_shard_size="1GB")
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ExportError, match="is not what was written"):
        check_written(tmp_path, checksums)
    with pytest.raises(ExportError, match="lost was not written"):
        check_written(tmp_path, {"lost": (0, "", ())})


@pytest.mark.parametrize("text", ["five", "5", "0GB", "5TB"])
def test_a_size_is_a_number_and_a_unit(text):
    """As safetensors' tools write it."""
    with pytest.raises(ExportError, match="such as 5GB"):
        parse_size(text)


def test_sizes():
    """Decimal and binary units."""
    assert parse_size("5GB") == 5 * 10**9
    assert parse_size("1.5 MiB") == 3 * 2**19


class Payload:
    """Pickled, it would run a command where it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Loaded:
    """Pickled, it would make Python import this module and call `__setstate__`."""

    def __setstate__(self, state):
        raise AssertionError("the file's class was used")

    def __getstate__(self):
        return {"x": 1}


def test_a_pickle_is_never_run(tmp_path):
    """A call to the system is refused; an object of a foreign class is a stand-in."""
    torch.save({"t": torch.ones(3), "o": Loaded()}, tmp_path / "object.pt")
    found = read_inert(tmp_path / "object.pt")
    assert torch.equal(found["t"], torch.ones(3))
    assert type(found["o"]) is Inert
    torch.save({"t": torch.ones(3), "o": Payload(tmp_path / "made")}, tmp_path / "call.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_inert(tmp_path / "call.pt")
    assert not (tmp_path / "made").exists()


def test_a_torn_file_is_named(tmp_path):
    """Cut short, and something else altogether."""
    torch.save({"t": torch.ones(3000)}, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    for wrong in (data[: len(data) // 2], b"not a checkpoint"):
        (tmp_path / "x.pt").write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"x\.pt: cannot be read"):
            read_inert(tmp_path / "x.pt")
