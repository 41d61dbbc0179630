"""A rank that hangs is named within a minute, with its last step and phase; a slow one is not."""

import threading
import time

import pytest
import torch

from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.train import heartbeat
from glmforge.train.heartbeat import Beat, Heartbeat, Watch, beating, read_beats, write_beat
from glmforge.train.phases import Place

STEP = heartbeat.BEAT_SECONDS


class Ring:
    """Ranks whose beats are moved by hand, and the one that reads them."""

    def __init__(self, count):
        self.beats = {rank: self.beat(rank) for rank in range(count)}
        self.watch = Watch()
        self.now = 1000.0

    @staticmethod
    def beat(rank, **values):
        usual = {"step": 12, "micro_step": 24, "phase": "forward", "waiting": False, "count": 1}
        return Beat(
            **{"rank": rank, "host": f"gpu{rank}", "pid": 100 + rank, "time": 0.0} | usual | values
        )

    def set(self, rank, **values):
        self.beats[rank] = self.beat(rank, count=self.beats[rank].count, **values)

    def go(self, seconds, *, frozen=()):
        """Let time pass; every rank beats but the frozen ones."""
        said = []
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            for rank, beat in self.beats.items():
                if rank not in frozen:
                    known = {
                        name: getattr(beat, name)
                        for name in ("step", "micro_step", "phase", "waiting", "ended")
                    }
                    self.beats[rank] = self.beat(rank, count=beat.count + 1, **known)
            said += self.watch.observe(self.beats, self.now)
        return said


def test_a_frozen_rank_is_named_within_a_minute_and_once():
    """With its host, process, last step and phase, and what to do."""
    ring = Ring(4)
    for rank in (0, 1, 3):
        ring.set(rank, phase="optimizer", waiting=True)
    ring.set(2, phase="backward")
    assert ring.go(5) == []
    (line,) = ring.go(60, frozen=[2])
    assert line.startswith("rank 2 (gpu2, process 102; 12 steps done, backward) gives no sign of l")
    assert "py-spy dump --pid 102" in line
    assert "--resume auto" in line


def test_a_rank_that_lives_but_does_not_move_keeps_the_others_waiting():
    """It makes its batch for ever; the others are in the exchange of their gradients."""
    ring = Ring(3)
    ring.set(1, phase="data")
    for rank in (0, 2):
        ring.set(rank, phase="backward", waiting=True)
    (line,) = ring.go(60)
    assert line.startswith("rank 1 (gpu1, process 101; 12 steps done, data) has not moved for ")


def test_of_ranks_at_one_place_the_one_that_does_not_wait_is_meant():
    """All are in the backward pass, but one is not in the exchange."""
    ring = Ring(3)
    for rank in range(3):
        ring.set(rank, phase="backward", waiting=rank != 2)
    (line,) = ring.go(60)
    assert line.startswith("rank 2 ")


def test_long_steps_and_long_evaluations_are_no_fault():
    """Ranks that compute at the same place are left alone; micro-batches are movement."""
    ring = Ring(2)
    assert ring.go(200) == []
    for rank in range(2):
        ring.set(rank, phase="evaluation", waiting=rank == 1)
    assert ring.go(250) == []
    ring.set(0, micro_step=25)
    ring.set(1, micro_step=26)
    assert ring.go(35) == []


def test_a_rank_behind_others_that_still_compute_is_no_fault():
    """Nobody waits for it yet."""
    ring = Ring(2)
    ring.set(0, phase="data")
    for number in range(20):
        ring.set(1, micro_step=30 + number)
        assert ring.go(10) == []


def test_an_exchange_that_never_ends_is_said_of_all():
    """Nobody is behind: the network."""
    ring = Ring(2)
    for rank in range(2):
        ring.set(rank, phase="backward", waiting=True)
    (line,) = ring.go(320)
    assert line.startswith("no rank has moved for 300 s (all: 12 steps done, backward)")


def test_a_rank_that_comes_back_is_told_of():
    """And named again when it hangs again."""
    ring = Ring(2)
    ring.go(10)
    assert len(ring.go(40, frozen=[1])) == 1
    assert ring.go(20) == ["rank 1 goes on: 12 steps done"]
    assert len(ring.go(40, frozen=[1])) == 1


def test_ranks_that_have_ended_are_not_missed():
    """One is done a little before the others."""
    ring = Ring(2)
    ring.set(1, ended=True)
    assert ring.go(100, frozen=[1]) == []


def test_what_is_written_is_read(tmp_path):
    """By any process that sees the directory."""
    (tmp_path / "heartbeats").mkdir()
    beats = {rank: Ring.beat(rank) for rank in range(3)}
    for beat in beats.values():
        write_beat(tmp_path, beat)
    assert read_beats(tmp_path) == beats


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "SILENT_SECONDS", 0.4)


def ranks(rank=0, world_size=1):
    world = World(rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size)
    return Ranks(world=world, device=torch.device("cpu"))


def test_a_run_beats_while_it_goes_on(tmp_path, fast):
    """The file shows the step, changes while the training thread is busy, and says the end."""
    step = [3, 7]
    with beating(tmp_path, ranks(), lambda: tuple(step)):
        first = read_beats(tmp_path)[0]
        assert (first.step, first.micro_step, first.ended) == (3, 7, False)
        step[0] = 4
        end = time.monotonic() + 10
        while read_beats(tmp_path)[0].step != 4 and time.monotonic() < end:
            time.sleep(0.02)
        assert read_beats(tmp_path)[0].count > first.count
    assert read_beats(tmp_path)[0].ended


def test_where_rank_0_is_frozen_rank_1_speaks(tmp_path, fast, capfd):
    """Whoever is alive first says it, once."""
    (tmp_path / "heartbeats").mkdir()
    mine = [Heartbeat(tmp_path, ranks(rank, 4), lambda: (5, 5)) for rank in (1, 2)]
    write_beat(tmp_path, Ring.beat(0, step=5))
    for heart in mine:
        heart.start()
    end = time.monotonic() + 10
    lines = ""
    while "rank 0" not in lines and time.monotonic() < end:
        time.sleep(0.05)
        lines += capfd.readouterr().err
    for heart in mine:
        heart.stop()
    lines += capfd.readouterr().err
    assert lines.count("heartbeat: rank 0 (gpu0, process 100; 5 steps done, forward) gives no") == 1


def test_a_lost_directory_stops_the_beating_with_a_line_and_not_the_run(
    tmp_path, fast, capfd, monkeypatch
):
    """The place is a file now."""
    (tmp_path / "heartbeats").write_text("")
    heart = Heartbeat(tmp_path, ranks(), lambda: (1, 1))
    monkeypatch.setattr(heart, "beat", lambda *args, **kwargs: (tmp_path / "heartbeats/x").touch())
    heart._thread.start()
    heart._thread.join(10)
    assert "heartbeat: not written" in capfd.readouterr().err


def test_the_place_of_the_training_thread_is_seen_from_another(monkeypatch):
    """Its stack tells the phase, and whether it waits for others."""
    from glmforge.train.phases import place_of_thread

    ready, leave, found = threading.Event(), threading.Event(), []

    def gather_floats():
        ready.set()
        leave.wait(10)

    def call(name, module, body):
        space = {"__name__": module, "body": body}
        exec(f"def {name}():\n    body()", space)
        return space[name]

    exchange = call("gather_floats", "glmforge.distributed.collectives", gather_floats)
    thread = threading.Thread(target=call("train_loop", "glmforge.train.loop", exchange))
    thread.start()
    ready.wait(10)
    found.append(place_of_thread(thread.ident))
    leave.set()
    thread.join()
    assert found == [Place(phase="exchange", waiting=True)]
