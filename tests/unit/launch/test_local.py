"""The launcher, with small programs in place of training: how ranks end decides how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmforge.errors import LaunchError, RankFailed
from glmforge.launch import watch
from glmforge.launch.gpus import Placement
from glmforge.launch.local import launch_local, run_ranks, run_without_gpus, threads_per_rank

WAIT = "import time; time.sleep(60)"


def ranks(*programs: str, gpus: tuple[str, ...] | None = None, record: Path | None = None) -> int:
    """Run one small Python program a rank; each sees `rank` and modules os, sys, signal, time."""
    cases = "\n".join(
        f"if rank == {rank}:\n" + "\n".join(f"    {line}" for line in program.splitlines())
        for rank, program in enumerate(programs)
    )
    code = f"import os, sys, signal, time\nrank = int(os.environ['RANK'])\n{cases}\n"
    placement = Placement(nproc=len(programs), gpus=gpus)
    command = [sys.executable, "-c", code]
    return run_ranks(command, placement, "127.0.0.1", 29999, record=record)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what the launcher waits, so that the tests do not."""
    monkeypatch.setattr(watch, "ALONE_SECONDS", 0.3)
    monkeypatch.setattr(watch, "TERM_SECONDS", 0.3)


def test_ranks_that_end_well_make_0() -> None:
    assert ranks("pass", "pass") == 0


def test_ranks_get_the_variables_of_torch_and_of_read_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    names += ["GLMFORGE_LAUNCHER", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"]
    program = f"open(r'{tmp_path}/' + str(rank), 'w').write(' '.join(map(os.environ.get, {names})))"
    assert ranks(program, program, gpus=("4", "7")) == 0
    threads = str(threads_per_rank(2))
    for rank in "01":
        expected = [rank, rank, "2", "2", "127.0.0.1", "29999", "glmforge", "4,7", threads]
        assert (tmp_path / rank).read_text().split(" ") == expected


def test_cores_are_shared_out_unless_the_user_said_how_many_threads() -> None:
    assert threads_per_rank(1) == len(os.sched_getaffinity(0))
    assert threads_per_rank(10_000) == 1


@pytest.mark.parametrize("code", [1, 2, 75, 130])
def test_an_exit_status_with_a_meaning_is_passed_on(impatient: None, code: int) -> None:
    assert ranks(f"sys.exit({code})", f"sys.exit({code})") == code


def test_a_rank_that_ends_without_a_word_is_named(
    impatient: None, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ranks(WAIT, "sys.exit(1)") == 1
    assert "launch: rank 1 of 2 ended with exit status 1\n" in capfd.readouterr().err


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_rank_other_than_0_ended_of_is_written_down(
    impatient: None, tmp_path: Path, rank: int
) -> None:
    """Out of memory on one card: rank 0 waits for it and never learns why. Its own it writes."""
    (tmp_path / "config.yaml").write_text("method: lora\n")
    programs = [WAIT, WAIT]
    programs[rank] = "sys.exit(1)"
    assert ranks(*programs, record=tmp_path) == 1
    assert (tmp_path / "final.json").exists() == (rank == 1)
    if rank == 1:
        final = json.loads((tmp_path / "final.json").read_text())
        assert (final["status"], final["rank"], final["code"]) == ("failed", 1, 1)


def test_a_killed_rank_is_named_with_its_signal_and_ends_the_others(impatient: None) -> None:
    begin = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        ranks(WAIT, "os.kill(os.getpid(), signal.SIGKILL)")
    assert time.monotonic() - begin < 10
    message = str(caught.value)
    assert message.startswith("rank 1 of 2 died of signal 9 (SIGKILL): ended by the system")
    assert "memory (RAM) was full" in message
    assert "It was the first to fail, on " in message
    assert message.endswith("; the other ranks were ended. It had printed nothing")


def test_the_last_twenty_lines_of_the_first_failing_rank_are_shown(impatient: None) -> None:
    """Those of the rank that died, not of the others."""
    talk = "for n in range(30): print('line', n, file=sys.stderr, flush=True)"
    with pytest.raises(RankFailed) as caught:
        ranks(WAIT, f"{talk}\nos.kill(os.getpid(), signal.SIGBUS)")
    message = str(caught.value)
    assert "died of signal 7 (SIGBUS)" in message
    assert "/dev/shm is full" in message
    shown = message.partition("Its last lines:\n")[2].splitlines()
    assert shown == [f"  line {number}" for number in range(10, 30)]


def test_a_rank_that_had_printed_nothing_is_shown_with_the_lines_of_another(
    impatient: None, tmp_path: Path
) -> None:
    """In a run rank 0 alone prints, and tells how far all ranks were; final.json says whose."""
    (tmp_path / "config.yaml").write_text("method: lora\n")
    talk = f"print('step 7/9', file=sys.stderr, flush=True)\nopen(r'{tmp_path}/said', 'w').close()"
    wait = f"while not os.path.exists(r'{tmp_path}/said'): time.sleep(0.01)"
    with pytest.raises(RankFailed) as caught:
        ranks(
            f"{talk}\n{WAIT}",
            f"{wait}\nos.kill(os.getpid(), signal.SIGKILL)",
            record=tmp_path,
        )
    message = str(caught.value)
    assert message.startswith("rank 1 of 2 died of signal 9")
    assert message.endswith(". It had printed nothing; the last lines of rank 0:\n  step 7/9")
    final = json.loads((tmp_path / "final.json").read_text())
    assert (final["rank"], final["last_lines_of_rank"]) == (1, 0)
    assert final["last_lines"] == ["step 7/9"]


def test_nothing_is_said_of_lines_that_went_to_the_terminal(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 keeps a terminal: the user has seen what it printed."""
    monkeypatch.setattr(watch, "wants_tail", lambda rank: rank != 0)
    with pytest.raises(RankFailed) as caught:
        ranks("os.kill(os.getpid(), signal.SIGKILL)", "pass")
    assert str(caught.value).endswith("; the other ranks were ended")


def test_the_promised_times_add_up_to_less_than_30_seconds() -> None:
    assert watch.ALONE_SECONDS + watch.TERM_SECONDS + watch.KILL_SECONDS < 30


def test_ranks_that_ignore_sigterm_are_killed(impatient: None) -> None:
    stubborn = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAIT}"
    with pytest.raises(RankFailed, match="rank 1 of 2 ended with exit status 9"):
        ranks(stubborn, "time.sleep(0.3)\nsys.exit(9)")


def test_what_a_dead_rank_started_is_ended_too(impatient: None, tmp_path: Path) -> None:
    program = (
        "import subprocess\n"
        f"worker = subprocess.Popen([sys.executable, '-c', '{WAIT}'])\n"
        f"open(r'{tmp_path}/pid', 'w').write(str(worker.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with pytest.raises(RankFailed):
        ranks(program)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < end:  # SIGKILL is sent; dying takes a moment
        time.sleep(0.01)
    assert not _runs(pid)


def test_a_crash_that_follows_a_kill_is_not_taken_for_the_cause() -> None:
    """The peer of a killed rank fails in its collective, sometimes a moment earlier to see."""
    with pytest.raises(RankFailed, match="rank 1 of 2 died of signal 9"):
        ranks("sys.exit(3)", "time.sleep(0.15)\nos.kill(os.getpid(), signal.SIGKILL)")


REPORT = """
sys.argv = ["glmforge"]  # the program itself does not import torch to say something
from glmforge.distributed.env import read_world
from glmforge.launch.failures import tell
tell(read_world(), {code}, {text!r})
{then}
"""


def test_the_first_report_is_shown_and_no_other(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    said = f"open(r'{tmp_path}/said', 'w').close()\nsys.exit(1)"
    first = REPORT.format(code=1, text="error: rank 0: bad row", then=said)
    wait = f"while not os.path.exists(r'{tmp_path}/said'): time.sleep(0.01)"
    later = wait + REPORT.format(code=1, text="error: later", then="sys.exit(1)")
    assert ranks(first, later) == 1
    assert capfd.readouterr().err == "error: rank 0: bad row\n"


def test_the_crash_of_a_peer_is_not_shown_beside_the_report_of_the_cause(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cause = "time.sleep(0.3)" + REPORT.format(code=1, text="error: rank 0: bad", then="sys.exit(1)")
    crash = REPORT.format(code=3, text="Traceback ...", then="sys.exit(3)")
    assert ranks(cause, crash) == 1
    assert capfd.readouterr().err == "error: rank 0: bad\n"


def test_our_own_bug_is_shown_and_ends_the_launcher_with_3(
    impatient: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """4 is for ranks that die."""
    crash = REPORT.format(code=3, text="Traceback ...", then="sys.exit(3)")
    assert ranks(crash, WAIT) == 3
    shown, _, rest = capfd.readouterr().err.partition("\n")
    assert shown == "Traceback ..."
    assert rest.startswith("error: rank 0 of 2 ended with exit status 3. It was the first to fail")
    assert "Its last lines" not in rest


def test_a_rank_that_reported_but_hangs_while_ending_is_ended(impatient: None) -> None:
    hangs = REPORT.format(code=1, text="error: no", then=WAIT)
    begin = time.monotonic()
    assert ranks(hangs, WAIT) == 1
    assert time.monotonic() - begin < 10


def test_ranks_that_stop_with_a_checkpoint_are_given_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watch, "ALONE_SECONDS", 0.0)
    slow = f"time.sleep(1)\nopen(r'{tmp_path}/saved', 'w').close()\nsys.exit(75)"
    assert ranks("sys.exit(75)", slow) == 75
    assert (tmp_path / "saved").exists()


LAUNCHER = """
import signal
import sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and stays so
sys.path.insert(0, {folder!r})
sys.argv = ["glmforge"]
from test_local import ranks
import glmforge.launch.requests as requests
import glmforge.launch.watch as watch
watch.ALONE_SECONDS = watch.TERM_SECONDS = 0.3
requests.AGAIN_SECONDS, watch.PATIENCE_SECONDS = 1.0, {patience}
sys.exit(ranks({program!r}, {program!r}))
"""
COUNT = """
seen = []
def note(number, frame):
    seen.append(number)
    open(os.path.join({folder!r}, f"{{rank}}.got"), "a").write(f"{{number}} ")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, note)
open(os.path.join({folder!r}, f"{{rank}}.ready"), "w").close()
end = time.time() + 30
while time.time() < end and not (seen and {leaves}):
    time.sleep(0.05)
time.sleep(0.3)
sys.exit(75)
"""


def start_launcher(folder: Path, *, leaves: bool, patience: float = 600) -> "subprocess.Popen[str]":
    program = COUNT.format(folder=str(folder), leaves=leaves)
    code = LAUNCHER.format(folder=str(Path(__file__).parent), program=program, patience=patience)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    end = time.monotonic() + 30
    while not all((folder / f"{rank}.ready").exists() for rank in (0, 1)):
        assert time.monotonic() < end
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGUSR1, signal.SIGUSR1),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_a_signal_reaches_every_rank_once_and_they_may_save(
    tmp_path: Path, sent: signal.Signals, received: signal.Signals
) -> None:
    process = start_launcher(tmp_path, leaves=True)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 75
    promised = "ranks that train stop after this step with a checkpoint"  # others promise nothing
    assert f"launch: {sent.name} passed on; {promised}" in err
    assert [(tmp_path / f"{rank}.got").read_text() for rank in (0, 1)] == [f"{received:d} "] * 2


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    process = start_launcher(tmp_path, leaves=False)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "launch: killed at the second Ctrl-C" in err


def test_a_second_sigterm_kills_but_not_the_same_one_twice(tmp_path: Path) -> None:
    """`timeout` signals a process and its group; a scheduler or a user asks again later."""
    process = start_launcher(tmp_path, leaves=False)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.2)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "SIGTERM passed on" in err
    assert "(once more: kill)" in err
    assert "launch: killed at the second SIGTERM" in err


def test_the_first_sigterm_after_slurms_warning_leaves_a_save_alone(tmp_path: Path) -> None:
    """SIGUSR1 two minutes before the end, then SIGTERM at the end."""
    process = start_launcher(tmp_path, leaves=False)
    process.send_signal(signal.SIGUSR1)
    time.sleep(1.2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.communicate()


def test_ranks_that_do_not_stop_in_their_time_are_killed(tmp_path: Path) -> None:
    """Such as a rank that waits for another machine, which is gone."""
    process = start_launcher(tmp_path, leaves=False, patience=1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "launch: killed 1 s after SIGTERM, with no end of the step or its checkpoint" in err


def test_ranks_end_with_a_killed_launcher(tmp_path: Path) -> None:
    """They get SIGTERM from the kernel, as if it had been passed on."""
    process = start_launcher(tmp_path, leaves=True)
    process.kill()
    process.communicate()
    end = time.monotonic() + 10
    while not all((tmp_path / f"{rank}.got").exists() for rank in (0, 1)):
        assert time.monotonic() < end
        time.sleep(0.05)
    # Once for each thread of the launcher that ends (prctl(2)); a run takes the first.
    assert set((tmp_path / "0.got").read_text().split()) == {f"{signal.SIGTERM:d}"}


def test_nothing_starts_where_the_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=f"port {port} is in use"):
            launch_local(["train", "c.yaml"], nproc=2, master_port=port)


def _runs(pid: int) -> bool:
    """Say whether a process runs (one that has ended and waits to be collected does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def test_the_program_can_run_apart_and_without_gpus(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert run_without_gpus(["--version"]) == 0
    assert run_without_gpus(["data", "check", "nowhere.jsonl"]) == 1
    printed = capfd.readouterr()
    assert "nowhere.jsonl: no such file" in printed.err
    assert "rank" not in printed.err
