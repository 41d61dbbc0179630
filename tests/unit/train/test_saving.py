"""Checkpoints written at once or in the background: whole or absent, one at a time."""

import contextlib
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import CheckpointError
from glmforge.train import saving
from glmforge.train.checkpoint import check, newest_complete
from glmforge.train.saving import Saver
from glmforge.train.snapshot import snapshot_of
from glmforge.train.state import Progress


class Files:
    """DeepSpeed's own checkpoint engine, as far as it is asked; a write may be slow, or fail."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.error = None

    def save(self, state_dict, path):
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        torch.save(state_dict, path)

    def preserves_storage_sharing(self):
        return True


class Engine:
    """Writes one shard, which training changes afterwards."""

    module = None

    def __init__(self):
        self.files = self.checkpoint_engine = Files()
        self.weight = torch.zeros(1000)

    def save_checkpoint(self, place, *, tag, save_latest, exclude_frozen_parameters):
        assert not save_latest
        folder = Path(place) / tag
        folder.mkdir(parents=True, exist_ok=True)
        state = {"weight": self.weight, "row": self.weight[10:20], "lr": 0.5, "names": ["a"]}
        self.checkpoint_engine.save(state, str(folder / "shard.pt"))
        self.weight += 1


@pytest.fixture
def saver(tmp_path):
    engine, device = Engine(), torch.device("cpu")
    found = Saver(
        engine=engine,
        directory=tmp_path / "run" / "checkpoints",
        ranks=Ranks(world=World(), device=device),
        exclude_frozen=False,
        keep_last=2,
        write_extras=lambda place: None,
        next_bytes=1000,
        snapshot=snapshot_of(engine, device),
    )
    yield found
    engine.files.gate.set()
    found.close()


def names(saver):
    return sorted(path.name for path in saver.directory.iterdir())


@pytest.fixture
def slow(saver):
    """From the second save on, files are written only once the event is set."""
    saver.save(Progress(step=1), is_best=False, wait=True)
    saver.engine.files.gate.clear()
    return saver.engine.files.gate


def test_training_goes_on_and_the_name_comes_after_the_last_file(saver, slow):
    """Until then `latest` is the older one."""
    saver.save(Progress(step=2), is_best=True, wait=False)
    saver.poll()
    assert "step-000002" not in names(saver)
    assert (saver.directory / "latest").read_text().strip() == "step-000001"
    slow.set()
    saver.finish()
    assert check(saver.directory / "step-000002")["step"] == 2
    assert (saver.directory / "latest").read_text().strip() == "step-000002"
    assert (saver.directory / "best").read_text().strip() == "step-000002"


def test_what_is_written_later_is_what_it_was_at_the_save(saver, slow):
    """Training goes on with the same tensors; views stay views of one storage."""
    saver.save(Progress(step=2), is_best=False, wait=False)
    saver.engine.weight += 100
    slow.set()
    saver.save(Progress(step=3), is_best=False, wait=False)
    saver.finish()
    for step, value in ((2, 1.0), (3, 102.0)):
        shard = saver.directory / f"step-00000{step}" / f"global_step{step}" / "shard.pt"
        found = torch.load(shard)
        assert torch.equal(found["weight"], torch.full((1000,), value))
        assert torch.equal(found["row"], torch.full((10,), value))
        assert found["row"].untyped_storage().data_ptr() == found["weight"].data_ptr()
        assert (found["lr"], found["names"]) == (0.5, ["a"])
        assert shard.stat().st_size < 6000


def test_host_buffers_stay_from_save_to_save(saver):
    """Their pages are had once; while one write is under way no save fills them again."""
    places = []
    for _ in range(2):
        with saver.snapshot.held() as held:
            saver.engine.save_checkpoint(
                saver.directory, tag="t", save_latest=False, exclude_frozen_parameters=False
            )
        places.append(held[0].state["weight"].data_ptr())
    assert places[0] == places[1] != saver.engine.weight.data_ptr()


def test_the_background_writes_the_files_that_the_foreground_writes(saver):
    """Manifest and all, but for the step."""
    saver.save(Progress(step=3), is_best=False, wait=True)
    saver.save(Progress(step=4), is_best=False, wait=False)
    saver.finish()
    files = [check(saver.directory / f"step-00000{n}")["files"].keys() for n in (3, 4)]
    assert [name.replace("global_step4", "global_step3") for name in files[1]] == list(files[0])


def test_one_write_at_a_time(saver, slow):
    """The next save waits for the one before; a save that must be whole on return is."""
    saver.save(Progress(step=2), is_best=False, wait=False)
    threading.Timer(0.2, slow.set).start()
    saver.save(Progress(step=3), is_best=False, wait=True)
    assert names(saver) == ["latest", "step-000002", "step-000003"]


def test_a_failed_background_write_ends_the_run_at_the_next_step(saver):
    """With the rank and the reason; the older checkpoint is what a resume finds."""
    saver.save(Progress(step=1), is_best=False, wait=True)
    saver.engine.files.error = OSError(28, "No space left on device", "shard.pt")
    saver.save(Progress(step=2), is_best=False, wait=False)

    def steps():
        for _ in range(1000):
            threading.Event().wait(0.01)
            saver.poll()

    with pytest.raises(CheckpointError, match=r"step 2 could not[\s\S]*rank 0: .*No space left"):
        steps()
    assert newest_complete(saver.directory).path.name == "step-000001"
    saver.poll()


def fail_in_the_next_step(saver):
    with pytest.raises(ZeroDivisionError), contextlib.closing(saver):
        raise ZeroDivisionError


def test_a_failing_run_finishes_the_write_that_is_under_way(saver, slow, capsys):
    """Closing waits for the last file: the checkpoint is whole, the latest and the best."""
    saver.save(Progress(step=2, best_step=2), is_best=True, wait=False)
    threading.Timer(0.2, slow.set).start()
    fail_in_the_next_step(saver)
    assert names(saver) == ["best", "latest", "step-000001", "step-000002"]
    assert check(saver.directory / "step-000002")["world_size"] == 1
    assert not any((saver.directory / "step-000002").glob("notes"))
    for pointer in ("latest", "best"):
        assert (saver.directory / pointer).read_text().strip() == "step-000002"
    first, second = capsys.readouterr().err.splitlines()
    assert "step 2 is being written and is finished first" in first
    assert "step 2 was being written when the run failed; it is whole now" in second


def test_a_disk_that_fails_while_a_run_fails_hides_no_error(saver, capsys):
    """The run's own error is raised; a line says what became of the checkpoint."""
    saver.save(Progress(step=1), is_best=False, wait=True)
    saver.engine.files.error = OSError(28, "No space left on device")
    saver.save(Progress(step=2), is_best=False, wait=False)
    fail_in_the_next_step(saver)
    assert "that of step 2 could not be written ([Errno 28]" in capsys.readouterr().err
    assert newest_complete(saver.directory).path.name == "step-000001"


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("write(): No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 32 vs 28"),
        SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
    ],
)
def test_a_failed_write_in_place_leaves_the_older_ones_whole(saver, error):
    """Whatever torch makes of the system's error."""
    saver.save(Progress(step=1), is_best=False, wait=True)
    saver.engine.files.error = error
    with pytest.raises(CheckpointError, match="any older checkpoint is whole"):
        saver.save(Progress(step=2), is_best=False, wait=True)
    assert newest_complete(saver.directory).path.name == "step-000001"
    saver.engine.files.error = RuntimeError("our bug")
    with pytest.raises(RuntimeError, match="our bug"):
        saver.save(Progress(step=2), is_best=False, wait=True)


def test_a_checkpoint_that_does_not_fit_is_refused_before_the_write(saver):
    """The older checkpoints stay, nothing is written."""
    saver.save(Progress(step=1), is_best=False, wait=True)
    saver.next_bytes = 2**60
    with pytest.raises(CheckpointError, match="the next checkpoint takes about"):
        saver.save(Progress(step=2), is_best=False, wait=False)
    assert names(saver) == ["latest", "step-000001"]


def test_a_whole_checkpoint_is_not_written_again_and_a_damaged_one_is(saver):
    """A step may be saved twice: as the newest, then as the best."""
    path = saver.save(Progress(step=1), is_best=False, wait=True)
    shard = path / "global_step1" / "shard.pt"
    before = shard.stat().st_mtime_ns
    saver.save(Progress(step=1), is_best=True, wait=True)
    assert shard.stat().st_mtime_ns == before
    assert (saver.directory / "best").read_text().strip() == "step-000001"
    shard.write_bytes(b"x")
    saver.save(Progress(step=1), is_best=False, wait=True)
    check(path)


def test_a_frozen_weight_that_has_two_names_is_left_out_by_both():
    """The second name of a tied head; trained and untied ones stay, and afterwards all are back."""
    module = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "abcd"})
    module["b"].weight = module["a"].weight
    module["d"].weight = module["c"].weight
    module["a"].weight.requires_grad_(False)
    with saving.frozen_twins_left_out(module):
        assert list(module.state_dict()) == ["a.weight", "c.weight", "d.weight"]
    assert list(module.state_dict()) == ["a.weight", "b.weight", "c.weight", "d.weight"]


def test_shards_are_written_without_a_second_checksum_and_others_with_it(tmp_path):
    """torch.save's CRC-32 doubles the time of a write; what else is saved keeps it."""
    tensor = torch.arange(1000.0)
    with contextlib.suppress(OSError), saving.without_crc32():
        torch.save(tensor, tmp_path / "shard.pt")
        assert not torch.serialization.get_crc32_options()
        raise OSError("the disk is full")
    assert torch.serialization.get_crc32_options()
    assert torch.equal(torch.load(tmp_path / "shard.pt"), tensor)
    assert torch.equal(torch.load(tmp_path / "shard.pt", mmap=True), tensor)
