"""Signs of life: each rank writes where it is every few seconds, and a rank that hangs is named.

``heartbeats/rank-NNNNN.json`` in the run directory, written by a thread that looks at the training
thread's stack (``phases``). The first rank that is alive reads the others' files and says within a
minute which rank keeps them waiting, whatever launcher started them, on one machine or on several
that share the run directory. `read_beats` and `Watch` are plain: files in, sentences out.
"""

import contextlib
import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import getpid
from pathlib import Path

from glmforge.distributed.collectives import Ranks
from glmforge.train.phases import ORDER, Place, place_of_thread

BEAT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""A rank whose file has not changed for so long is frozen or gone."""
STUCK_SECONDS = 40.0
"""A rank that has not moved for so long, and is behind the others, keeps them waiting."""
PATIENT_SECONDS = 300.0
"""The same in phases that are long by nature, and between two mentions of the same rank."""
ALL_STUCK_SECONDS = 300.0
"""No rank has moved for so long: a long step, or an exchange that does not end."""
_PATIENT = ("load", "evaluation", "saving")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank last said. ``count`` rises with every beat, ``time`` is seconds since 1970."""

    rank: int
    host: str
    pid: int
    step: int
    """Optimizer updates done."""
    micro_step: int
    phase: str
    waiting: bool
    """Whether it is in an exchange with the others."""
    count: int
    time: float
    ended: bool = False

    @property
    def position(self) -> tuple[int, int, int]:
        """How far it is, to be compared with the others'."""
        return self.step, self.micro_step, ORDER.index(self.phase)

    def words(self) -> str:
        """Name the rank, and where it is."""
        return (
            f"rank {self.rank} ({self.host}, process {self.pid}; {self.step} steps done, "
            f"{self.phase})"
        )


def file_of(directory: Path, rank: int) -> Path:
    """Return a rank's file."""
    return directory / "heartbeats" / f"rank-{rank:05d}.json"


def write_beat(directory: Path, beat: Beat) -> None:
    """Write a rank's file, whole at any moment."""
    path = file_of(directory, beat.rank)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(beat)), encoding="utf-8")
    temporary.replace(path)


def read_beats(directory: Path) -> dict[int, Beat]:
    """Return what each rank last said, by rank."""
    found = {}
    for path in sorted((directory / "heartbeats").glob("rank-*.json")):
        with contextlib.suppress(FileNotFoundError):
            values = json.loads(path.read_text(encoding="utf-8"))
            found[values["rank"]] = Beat(**values)
    return found


@dataclass(slots=True, kw_only=True)
class Watch:
    """Turns what ranks say, as it comes, into sentences about those that hang.

    Times are the reader's own, so that clocks of machines may differ.
    """

    counted: dict[int, tuple[int, float]] = field(default_factory=dict)
    moved: dict[int, tuple[tuple[int, int, int], float]] = field(default_factory=dict)
    told: dict[int, float] = field(default_factory=dict)
    """When a rank was last named; -1 stands for all of them."""

    def observe(self, beats: Mapping[int, Beat], now: float) -> list[str]:
        """Take the newest beats and return what there is to say.

        Args:
            beats: from `read_beats`.
            now: seconds on any clock that goes steadily.
        """
        running = {rank: beat for rank, beat in beats.items() if not beat.ended}
        for rank, beat in running.items():
            if self.counted.get(rank, (-1, 0.0))[0] != beat.count:
                self.counted[rank] = (beat.count, now)
            if self.moved.get(rank, (None, 0.0))[0] != beat.position:
                self.moved[rank] = (beat.position, now)
        silent = {rank: now - self.counted[rank][1] for rank in running}
        silent = {rank: idle for rank, idle in silent.items() if idle >= SILENT_SECONDS}
        still = {rank: now - self.moved[rank][1] for rank in running}
        said = [
            f"{running[rank].words()} gives no sign of life for {idle:.0f} s: frozen, or its "
            f"machine is gone{_advice(running[rank])}"
            for rank, idle in silent.items()
            if self._is_due(rank, now)
        ]
        stuck = {} if silent else _behind(running, still)
        said += [
            f"{running[rank].words()} has not moved for {idle:.0f} s and keeps the others waiting"
            f"{_advice(running[rank])}"
            for rank, idle in stuck.items()
            if self._is_due(rank, now)
        ]
        if len(running) > 1 and not silent and not stuck:
            said += self._all_stuck(running, still, now)
        return said + self._moving_again(silent.keys() | stuck.keys(), running, now)

    def _is_due(self, rank: int, now: float) -> bool:
        if rank in self.told and now - self.told[rank] < PATIENT_SECONDS:
            return False
        self.told[rank] = now
        return True

    def _all_stuck(
        self, running: Mapping[int, Beat], still: Mapping[int, float], now: float
    ) -> list[str]:
        phases = {beat.phase for beat in running.values()}
        if min(still.values()) < ALL_STUCK_SECONDS or phases & set(_PATIENT):
            self.told.pop(-1, None)
            return []
        if not self._is_due(-1, now):
            return []
        first = running[min(running)]
        return [
            f"no rank has moved for {min(still.values()):.0f} s (all: {first.step} steps done, "
            f"{', '.join(sorted(phases))}): a very long step, or an exchange between GPUs or "
            "machines that does not end (NCCL_DEBUG=INFO shows it; glmforge doctor tests it)"
        ]

    def _moving_again(
        self, hanging: set[int], running: Mapping[int, Beat], now: float
    ) -> list[str]:
        back = [rank for rank in self.told if rank >= 0 and rank not in hanging]
        said = []
        for rank in back:
            del self.told[rank]
            if rank in running:
                said.append(f"rank {rank} goes on: {running[rank].step} steps done")
        return said


def _behind(running: Mapping[int, Beat], still: Mapping[int, float]) -> dict[int, float]:
    """Return the ranks that the others wait for, and for how long they have not moved."""
    if len(running) < 2:
        return {}
    least = min(beat.position for beat in running.values())
    last = {rank for rank, beat in running.items() if beat.position == least}
    if len(last) == len(running):  # all at one place: those that wait are not the reason
        last = {rank for rank in last if not running[rank].waiting}
        if len(last) == len(running):
            return {}
    ahead = running.keys() - last
    if any(not running[rank].waiting and still[rank] < STUCK_SECONDS for rank in ahead):
        return {}  # they compute: nobody is kept waiting yet
    patience = {
        rank: PATIENT_SECONDS if running[rank].phase in _PATIENT else STUCK_SECONDS for rank in last
    }
    return {rank: still[rank] for rank in sorted(last) if still[rank] >= patience[rank]}


def _advice(beat: Beat) -> str:
    return (
        f". Where it stands: `py-spy dump --pid {beat.pid}` on {beat.host}. To give up: Ctrl-C "
        "twice, then the same command with --resume auto"
    )


def _say(line: str) -> None:
    """Print a line for people: any rank may have to, and the recorder is the training thread's."""
    print(f"heartbeat: {line}", file=sys.stderr, flush=True)


class Heartbeat:
    """The thread of one rank that writes its beats and, where it is this rank's turn, watches."""

    def __init__(self, directory: Path, ranks: Ranks, where: Callable[[], tuple[int, int]]) -> None:
        """Prepare the thread for the training thread, which is the caller.

        Args:
            directory: of the run.
            ranks: all ranks.
            where: gives (updates done, micro-batches done); called from the thread.
        """
        self._directory = directory
        self._ranks = ranks
        self._where = where
        self._watched = threading.get_ident()
        self._host = socket.gethostname()
        self._count = 0
        self._watch = Watch()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go, name="heartbeat", daemon=True)

    def _go(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self.beat(place_of_thread(self._watched))
                if self._is_watcher():
                    for line in self._observe():
                        _say(line)
            except OSError as error:  # a full or lost disk ends the run elsewhere, if it does
                _say(f"not written any more: {error}")
                return

    def beat(self, place: Place, *, ended: bool = False) -> None:
        """Write this rank's file."""
        step, micro_step = self._where()
        self._count += 1
        file_of(self._directory, self._ranks.rank).parent.mkdir(parents=True, exist_ok=True)
        write_beat(
            self._directory,
            Beat(
                rank=self._ranks.rank,
                host=self._host,
                pid=getpid(),
                step=step,
                micro_step=micro_step,
                phase=place.phase,
                waiting=place.waiting,
                count=self._count,
                time=time.time(),
                ended=ended,
            ),
        )

    def _is_watcher(self) -> bool:
        """The first rank of each machine, and rank 1: one of them is left where one freezes."""
        world = self._ranks.world
        return world.world_size > 1 and (world.local_rank == 0 or world.rank == 1)

    def _observe(self) -> list[str]:
        """Watch; say something only where no rank before this one is there to say it."""
        beats = read_beats(self._directory)
        now = time.monotonic()
        said = self._watch.observe(beats, now)
        alive = [
            rank
            for rank, (_, seen) in self._watch.counted.items()
            if now - seen < SILENT_SECONDS and rank in beats and not beats[rank].ended
        ]
        return said if self._ranks.rank == min(alive, default=0) else []

    def start(self) -> None:
        """Begin to beat."""
        try:
            self.beat(Place(phase="records", waiting=False))
        except OSError as error:
            _say(f"not written: {error}")
            return
        self._thread.start()

    def stop(self) -> None:
        """Beat once more, as ended."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self.beat(Place(phase="saving", waiting=False), ended=True)


@contextmanager
def beating(directory: Path, ranks: Ranks, where: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show signs of life while the body runs; a collective at the start."""
    if ranks.is_main:
        shutil.rmtree(directory / "heartbeats", ignore_errors=True)
    ranks.barrier()
    heart = Heartbeat(directory, ranks, where)
    heart.start()
    try:
        yield
    finally:
        heart.stop()
