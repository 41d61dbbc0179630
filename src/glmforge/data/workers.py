"""Processes that write the parts of a prepared set, and the threads that hand them their work.

A worker is ``python -m glmforge.data.workers``: it gets a tokenizer, settings and units over its
standard input and answers over its standard output. Unlike ``multiprocessing`` it never imports
the caller's main module, so a plain script may prepare data without a ``__main__`` guard; and when
the caller dies, its workers end with the part in hand.
"""

import functools
import gc
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from glmforge.data.encoder import TokenizerLike
from glmforge.data.part_writer import PartWriter, PrepareSettings, Unit
from glmforge.errors import DataError

MakeTokenizer = Callable[[], TokenizerLike]
WritePart = Callable[[int, Unit], dict[str, Any]]


def write_parts(
    units: Iterable[Unit],
    directory: Path,
    settings: PrepareSettings,
    make_tokenizer: MakeTokenizer,
    workers: int,
) -> Iterator[tuple[Unit, dict[str, Any]]]:
    """Yield every unit with the description of its part, in their order.

    Args:
        units: a part each; a few of them are taken ahead.
        directory: where the parts are written.
        settings: what to make.
        make_tokenizer: returns the tokenizer; picklable and importable, called once a worker.
        workers: processes at most, of which this is one; it works while the others start. There
            is another one for every two units.

    Raises:
        DataError: a unit cannot be read at all, or a worker died.
    """
    here = PartWriter(make_tokenizer(), settings, directory)
    cores = len(os.sched_getaffinity(0))  # more processes than cores would only cost memory
    others = min(workers, cores) - 1
    if others <= 0:
        for number, unit in enumerate(units):
            yield unit, here.part(number, unit)
        return
    task = pickle.dumps((make_tokenizer, settings, directory))
    processes: list[subprocess.Popen[bytes]] = []
    idle: queue.SimpleQueue[WritePart] = queue.SimpleQueue()
    idle.put(here.part)

    def written(number: int, unit: Unit) -> dict[str, Any]:
        write = idle.get()
        try:
            return write(number, unit)
        finally:
            idle.put(write)

    threads = ThreadPoolExecutor(others + 1)
    begun: deque[tuple[Unit, Future[dict[str, Any]]]] = deque()
    try:
        for number, unit in enumerate(units):
            if len(processes) < min(others, number // 2):
                processes.append(_start(task))
                idle.put(functools.partial(_ask, processes[-1]))
            begun.append((unit, threads.submit(written, number, unit)))
            while begun and (begun[0][1].done() or len(begun) > 2 * (others + 1)):
                yield _finished(begun)
        while begun:
            yield _finished(begun)
    finally:
        for process in processes:
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            process.communicate()


def _finished(begun: "deque[tuple[Unit, Future[dict[str, Any]]]]") -> tuple[Unit, dict[str, Any]]:
    unit, part = begun.popleft()
    return unit, part.result()


def _start(task: bytes) -> subprocess.Popen[bytes]:
    # `-m` puts the working directory first on the module path; the installed program does not.
    safe = [] if sys.path and sys.path[0] in ("", os.getcwd()) else ["-P"]
    process = subprocess.Popen(
        [sys.executable, *safe, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None, "it is piped"
    process.stdin.write(task)
    process.stdin.flush()
    return process


def _ask(process: "subprocess.Popen[bytes]", number: int, unit: Unit) -> dict[str, Any]:
    assert process.stdin is not None, "it is piped"
    assert process.stdout is not None, "it is piped"
    try:
        pickle.dump((number, unit), process.stdin)
        process.stdin.flush()
        described, problems = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        code = process.wait()
        raise DataError(
            f"{_place(unit)}: the process that prepared it ended with exit status {code} (-9: "
            "killed, mostly for want of memory; its own last lines are above); finished parts are "
            "kept: start again, with a smaller data.preprocessing_num_workers where memory is short"
        ) from error
    if problems:
        raise DataError(problems)
    found: dict[str, Any] = described
    return found


def _place(unit: Unit) -> str:
    """Name a unit by file and first line."""
    if unit.stretch is None:
        first = [pickle.loads(record).source for record in unit.records[:1]]
        return f"{unit.path}{''.join(f' (from {source} on)' for source in first)}"
    end = "its end" if unit.stretch.end is None else f"byte {unit.stretch.end:,}"
    return f"{unit.path}:{unit.stretch.first_line} (from that line to {end})"


def _serve() -> None:
    """Write the parts that standard input asks for until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    make_tokenizer, settings, directory = pickle.load(sys.stdin.buffer)
    writer = PartWriter(make_tokenizer(), settings, directory)
    gc.freeze()  # libraries and tokenizer stay: no use in looking for cycles among them
    while True:
        try:
            number, unit = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[Any, tuple[str, ...]] = (writer.part(number, unit), ())
        except DataError as error:
            answer = (None, error.problems)
        try:
            pickle.dump(answer, answers)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # whoever asked was killed


if __name__ == "__main__":
    _serve()
