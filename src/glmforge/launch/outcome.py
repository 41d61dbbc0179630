"""How a launch ended: which rank failed first, what that means, and where it is written.

Owns the verdict over all ranks of this machine (and what other machines told), its words, and the
entry in the run's final.json. Processes are ``watch.py``'s.
"""

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from glmforge.errors import RankFailed
from glmforge.launch.endings import BUG, INTERRUPTED, PASSED_ON, STOPPED, ending_in_words, urgency
from glmforge.launch.failures import Report
from glmforge.launch.link import Failure
from glmforge.launch.watch import RankProcess, Watched


def conclude(
    ranks: Sequence[RankProcess],
    watched: Watched,
    reports: Mapping[int, Report],
    total: int,
    *,
    heard: Failure | None = None,
    record: Path | None = None,
) -> int:
    """Turn how the ranks ended into an exit status or an error; show the first one's report.

    Args:
        ranks: of this machine, all ended.
        watched: signals that came meanwhile.
        reports: what failing ranks said.
        total: ranks of all machines.
        heard: the first failure of another machine, which ended the ranks here.
        record: the run directory; a dead rank is written into its final.json.

    Raises:
        RankFailed: a rank or a machine died.
    """
    if watched.killed is not None:
        say(f"launch: killed {watched.killed}")
        return INTERRUPTED
    first = first_failure(ranks, reports)
    if heard is not None and (first is None or urgency(first.code) >= urgency(heard.code)):
        return _conclude_heard(heard, total, record)
    if first is None:
        return 0
    if watched.signal is not None and first.code in (-watched.signal, INTERRUPTED):
        name = signal.Signals(watched.signal).name
        say(f"launch: ended by {name} outside of training; no checkpoint was written for it")
        return INTERRUPTED
    if first.text:
        say(first.text)
    words = f"rank {first.rank} of {total} {ending_in_words(first.code)}"
    host = socket.gethostname()
    if first.code in PASSED_ON:
        if not first.text and first.code != STOPPED:
            say(f"launch: {words}")
        if first.rank != 0 and first.code not in (STOPPED, INTERRUPTED) and not _has_end(record):
            # Rank 0 writes its own failures down; of this one it knows nothing.
            lines = first.text.splitlines()
            _record(record, rank=first.rank, code=first.code, host=host, words=words, lines=lines)
        return first.code
    speaker, lines = (first.rank, []) if first.text else _last_words(ranks, first.rank)
    _record(
        record, rank=first.rank, code=first.code, host=host, words=words, lines=lines, of=speaker
    )
    # Rank 0's own words may have gone to the terminal past us: they are above.
    unseen = any(item.rank == first.rank and item.tail is None for item in ranks)
    shown = "" if first.text or unseen else _shown(lines, first.rank, speaker)
    return _ended(
        first.code,
        f"{words}. It was the first to fail, on {host}; the other ranks were ended{shown}",
    )


def _last_words(ranks: Sequence[RankProcess], rank: int) -> tuple[int, list[str]]:
    """Return a rank's last lines, or those of the first rank here that has any, and whose they are.

    Ranks other than 0 print next to nothing in a run: rank 0 tells how far all of them were.
    """
    own_first = sorted(ranks, key=lambda item: (item.rank != rank, item.rank))
    for item in own_first:
        if item.tail is not None and (lines := item.tail.last_lines()):
            return item.rank, lines
    return rank, []


def _shown(lines: Sequence[str], rank: int, speaker: int) -> str:
    """Put last lines under a message."""
    if not lines:
        return ". It had printed nothing"
    title = (
        ". Its last lines:"
        if speaker == rank
        else f". It had printed nothing; the last lines of rank {speaker}:"
    )
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _ended(code: int, text: str) -> int:
    """Return the status of a run that a bug ended; any other end of a rank is its death.

    Raises:
        RankFailed: a rank died.
    """
    if code != BUG:
        raise RankFailed(text)
    say(f"error: {text}")
    return BUG


def _conclude_heard(heard: Failure, total: int, record: Path | None) -> int:
    """Conclude from another machine's failure.

    Raises:
        RankFailed: a rank died there, or the machine went away.
    """
    if heard.rank < 0:
        _record(record, rank=None, code=heard.code, host=heard.host, words=heard.text)
        raise RankFailed(f"{heard.text}. The ranks of this machine were ended")
    words = f"rank {heard.rank} of {total} {ending_in_words(heard.code)}"
    if heard.code in PASSED_ON:
        say(f"launch: {words} on {heard.host}, whose output says why")
        return heard.code
    _record(record, rank=heard.rank, code=heard.code, host=heard.host, words=words)
    has = "report" if heard.code == BUG else "last lines"
    return _ended(
        heard.code,
        f"{words}. It was the first to fail, on {heard.host}, whose output has its {has}; the "
        "ranks of this machine were ended",
    )


def first_failure(ranks: Sequence[RankProcess], reports: Mapping[int, Report]) -> Report | None:
    """Find the rank whose failure caused the others'; what it said counts over how it ended."""
    failures = [
        reports.get(item.rank)
        or Report(rank=item.rank, code=item.code or 0, time_ns=item.ended_ns, text="")
        for item in ranks
        if item.rank in reports or (item.code and not item.ended_by_us)
    ]
    return min(failures, key=lambda report: (urgency(report.code), report.time_ns), default=None)


def _has_end(directory: Path | None) -> bool:
    return directory is not None and (directory / "final.json").is_file()


def _goes_on(directory: Path) -> bool:
    """Whether another run holds the directory (``train.run_lock``): its end is not ours."""
    try:
        descriptor = os.open(directory / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _record(
    directory: Path | None,
    *,
    rank: int | None,
    code: int,
    host: str,
    words: str,
    lines: Sequence[str] = (),
    of: int | None = None,
) -> None:
    """Write how the run ended into its directory, where the run had begun to write one."""
    if directory is None or not (directory / "config.yaml").is_file() or _goes_on(directory):
        return
    values = {
        "status": "failed",
        "rank": rank,
        "host": host,
        "code": code,
        "problem": words,
        "last_lines": list(lines),
        "last_lines_of_rank": of,
    }
    temporary = directory / ".tmp-final.json"
    temporary.write_text(json.dumps(values, ensure_ascii=False, indent=1), encoding="utf-8")
    temporary.replace(directory / "final.json")


def say(line: str) -> None:
    """Print a line for the user."""
    print(line, file=sys.stderr, flush=True)
