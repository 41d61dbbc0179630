"""Several machines: two launchers on one machine (127.0.0.2) with small programs as ranks."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glmforge.errors import LaunchError
from glmforge.launch import rollcall
from glmforge.launch.hostfile import find_this_host, read_hostfile
from glmforge.launch.nodes import DEFAULT_PORT, NodeSettings, node_settings
from glmforge.launch.ports import free_port

ADDRESS = "127.0.0.2"
LAUNCHER = """
import sys
sys.argv = ["glmforge"]
from pathlib import Path
from glmforge.errors import GlmForgeError
from glmforge.launch import link, rollcall, watch
from glmforge.launch.nodes import NodeSettings, run_node
rollcall.MEETING_SECONDS = {patience}
watch.ALONE_SECONDS = watch.TERM_SECONDS = 0.3
link.PING_SECONDS, link.SILENCE_SECONDS = 0.2, {silence}
settings = NodeSettings(num_nodes={num_nodes}, node={node}, address={address!r}, port={port},
                        nproc={nproc}, hosts={hosts!r})
record = {record!r}
try:
    code = run_node([sys.executable, "-c", {program!r}], settings, gpus=None,
                    alike={alike!r}, judge=lambda ranks: None,
                    record=Path(record) if record else None)
except GlmForgeError as error:
    print(f"error: {{error}}", file=sys.stderr)
    code = error.exit_code
sys.exit(code)
"""
RANK = "import os, sys, time, signal\nrank = int(os.environ['RANK'])\n"


class Machines:
    """Starts launchers as if each were on a machine of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        node: int,
        program: str,
        *,
        num_nodes: int = 2,
        nproc: int = 1,
        patience: float = 30,
        record: str = "",
        alike: dict[str, str] | None = None,
        hosts: tuple[str, ...] = (),
        silence: float = 30,
    ) -> "subprocess.Popen[str]":
        code = LAUNCHER.format(
            node=node,
            num_nodes=num_nodes,
            nproc=nproc,
            patience=patience,
            address=ADDRESS,
            port=self.port,
            program=RANK + program,
            record=record,
            alike=alike or {},
            hosts=hosts,
            silence=silence,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self.started.append(process)
        return process


@pytest.fixture
def machines():
    found = Machines()
    yield found
    for process in found.started:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_two_machines_meet_and_their_ranks_count_on(machines: Machines, tmp_path: Path) -> None:
    """2 processes there, 1 here: ranks 0 to 2, local ranks from 0, one meeting point."""
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    program = f"open(r'{tmp_path}/' + str(rank), 'w').write(' '.join(map(os.environ.get, {names})))"
    one, two = machines(0, program, nproc=2), machines(1, program)
    assert (ended(one)[0], ended(two)[0]) == (0, 0)
    seen = [(tmp_path / str(rank)).read_text().split() for rank in range(3)]
    assert [row[:4] for row in seen] == [
        ["0", "0", "3", "2"],
        ["1", "1", "3", "2"],
        ["2", "0", "3", "1"],
    ]
    assert {(row[4], row[5]) for row in seen} == {(ADDRESS, seen[0][5])}


def test_every_machine_prints_its_ranks_and_where_they_meet(machines: Machines) -> None:
    """Node, host, ranks, meeting point."""
    one, two = machines(0, "pass"), machines(1, "pass")
    said = ended(one)[1], ended(two)[1]
    for node in (0, 1):
        assert (
            f"launch: node {node} of 2 ({socket.gethostname()}): ranks {node} to {node} of 2"
            in (said[node])
        )


def test_a_machine_that_never_comes_is_named(machines: Machines) -> None:
    """Node 2 of 3; the others say the same and end."""
    one = machines(0, "pass", num_nodes=3, patience=3)
    two = machines(1, "pass", num_nodes=3, patience=30)
    for code, err in (ended(one), ended(two)):
        assert code == 1
        assert f"node 2 of 3 did not come to {ADDRESS}:{machines.port} within 3 s" in err
        assert "Start the same command there with --node-rank 2" in err


def test_a_missing_machine_of_a_hostfile_is_named_as_it_is_there(machines: Machines) -> None:
    """worker-2, not only node 1."""
    code, err = ended(machines(0, "pass", patience=0.5, hosts=(ADDRESS, "worker-2")))
    assert code == 1
    assert f"node 1 (worker-2) of 2 did not come to {ADDRESS}:{machines.port}" in err


def test_a_taken_rendezvous_is_refused_with_its_own_option(machines: Machines) -> None:
    """--master-port has no part in it, and no other port is looked for."""
    with socket.create_server((ADDRESS, machines.port)):
        code, err = ended(machines(0, "pass"))
    assert code == 1
    assert f"port {machines.port} is in use on this machine" in err
    assert "name another in --rdzv HOST:PORT, the same on all machines" in err
    assert "--master-port" not in err


@pytest.mark.parametrize(
    ("address", "local", "expected"),
    [
        ("127.0.0.2", "127.0.0.1", "127.0.0.2"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("node-0", "10.0.0.1", "node-0"),
        ("node-0", "127.0.1.1", ""),
    ],
)
def test_node_0_listens_where_others_reach_it(
    monkeypatch: pytest.MonkeyPatch, address: str, local: str, expected: str
) -> None:
    """Its own name may be a loopback address in its /etc/hosts: at all addresses then."""
    monkeypatch.setattr(rollcall, "local_address_towards", lambda address: local)
    assert rollcall._listening(address) == expected


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        (b"HTTP/1.0 400 Bad request syntax\r\n", "it said 'HTTP/1.0 400 Bad request syntax'"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "it said 'SSH-2.0-OpenSSH_9.6'"),
        (b"17\n", "it said '17'"),
        (b"\xff\xfe\n", "it said"),
        (b"", "it said nothing"),
    ],
)
def test_another_program_at_the_rendezvous_is_told(
    machines: Machines, said: bytes, quoted: str
) -> None:
    """Quoted, and --rdzv is named: no traceback, and no word of a node 0 that never was."""
    with socket.create_server((ADDRESS, machines.port)) as server:
        one = machines(1, "pass", patience=2)
        connection, _ = server.accept()
        with connection:
            if said:
                connection.sendall(said)
            code, err = ended(one)
    assert code == 1
    assert f"another program than node 0 answers at {ADDRESS}:{machines.port}: {quoted}" in err
    assert "--rdzv" in err


def test_who_came_and_was_refused_is_not_called_missing(machines: Machines) -> None:
    """Node 0 tells to mend what it was refused for."""
    one = machines(0, "pass", patience=4, alike={"training.seed": "1"})
    other = machines(1, "pass", alike={"training.seed": "2"})
    assert ended(other)[0] == 1
    code, err = ended(one)
    assert code == 1
    assert "node 1 of 2 came to" in err
    assert "mend what it was refused for" in err
    assert "did not come to" not in err


def test_without_node_0_the_others_say_so(machines: Machines) -> None:
    """Nobody listens at the rendezvous."""
    code, err = ended(machines(1, "pass", patience=1))
    assert code == 1
    assert f"node 0 does not answer at {ADDRESS}:{machines.port}" in err


def test_a_wrong_node_rank_is_refused_and_the_right_one_may_still_come(machines: Machines) -> None:
    """Two machines say 0; corrected, the run goes on."""
    one = machines(0, "pass")
    wrong = machines(2, "pass")
    code, err = ended(wrong)
    assert code == 1
    assert "--node-rank 2 is not one of 0 to 1" in err
    other_count = machines(1, "pass", num_nodes=4)
    words = f"--nnodes is 4 on node 1 ({socket.gethostname()}) and 2 on node 0"
    assert words in ended(other_count)[1]
    assert ended(machines(1, "pass"))[0] == 0
    code, err = ended(one)
    assert code == 0
    assert "launch: refused" in err


def test_a_machine_with_other_settings_is_refused_and_told_which(machines: Machines) -> None:
    """Each would train by its own learning rate: both values, on both machines."""
    one = machines(0, "pass", alike={"training.seed": "1", "training.learning_rate": "5e-05"})
    other = machines(1, "pass", alike={"training.seed": "1", "training.learning_rate": "0.5"})
    code, err = ended(other)
    host = socket.gethostname()
    words = (
        f"training.learning_rate is 0.5 on node 1 ({host}) and 5e-05 on node 0 ({host}): start "
        "the same command with the same config everywhere"
    )
    assert code == 1
    assert words in err
    right = machines(1, "pass", alike={"training.seed": "1", "training.learning_rate": "5e-05"})
    assert ended(right)[0] == 0
    code, err = ended(one)
    assert code == 0
    assert words in err


def test_two_machines_with_one_rank_number_are_told(machines: Machines) -> None:
    """The second one to say 1."""
    one = machines(0, "pass", num_nodes=3, patience=5)
    machines(1, "pass", num_nodes=3)
    time.sleep(2)
    code, err = ended(machines(1, "pass", num_nodes=3))
    assert code == 1
    assert "--node-rank 1 is taken by" in err
    assert "refused" in ended(one)[1]


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_ends_the_ranks_of_both_machines(machines: Machines, dying: int) -> None:
    """Exit status 4 on both; the machine where it died shows its last lines."""
    program = (
        f"if rank == {dying}:\n    print('about to fall', file=sys.stderr, flush=True)\n"
        "    time.sleep(0.5)\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    )
    begin = time.monotonic()
    started = machines(0, program), machines(1, program)
    results = [ended(process) for process in started]
    assert time.monotonic() - begin < 30
    assert [code for code, _ in results] == [4, 4]
    assert "Its last lines:\n  about to fall" in results[dying][1]
    assert f"rank {dying} of 2 died of signal 9" in results[1 - dying][1]
    assert "the ranks of this machine were ended" in results[1 - dying][1]


def test_a_bug_on_one_machine_ends_both_with_3(machines: Machines) -> None:
    """4 is for ranks that die."""
    program = "sys.exit(3) if rank == 1 else time.sleep(60)"
    one, two = machines(0, program), machines(1, program)
    code, err = ended(one)
    assert code == 3
    assert "rank 1 of 2 ended with exit status 3" in err
    assert "whose output has its report" in err
    assert ended(two)[0] == 3


def test_a_machine_that_goes_away_ends_the_other(machines: Machines, tmp_path: Path) -> None:
    """Its launcher is killed, its ranks with it."""
    program = f"open(r'{tmp_path}/' + str(rank), 'w').close()\ntime.sleep(60)"
    one, two = machines(0, program), machines(1, program)
    end = time.monotonic() + 30
    while not all((tmp_path / str(rank)).exists() for rank in (0, 1)):
        assert time.monotonic() < end
        time.sleep(0.05)
    two.send_signal(signal.SIGKILL)
    code, err = ended(one)
    assert code == 4
    assert "node 1" in err
    assert "went away without a word" in err


def test_a_machine_that_is_no_longer_heard_of_ends_the_other(
    machines: Machines, tmp_path: Path
) -> None:
    """A connection stays open when the network goes away, as it does to a launcher that stands."""
    (tmp_path / "config.yaml").write_text("method: lora\n")
    program = f"open(r'{tmp_path}/' + str(rank), 'w').close()\ntime.sleep(60)"
    one = machines(0, program, silence=3, record=str(tmp_path))
    two = machines(1, program, silence=3)
    end = time.monotonic() + 30
    while not all((tmp_path / str(rank)).exists() for rank in (0, 1)):
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(4)  # nothing happens, for longer than the silence that counts
    assert one.poll() is None
    two.send_signal(signal.SIGSTOP)
    code, err = ended(one)
    assert code == 4
    assert f"node 1 ({socket.gethostname()}) is no longer heard of: nothing came" in err
    assert "for 3 s; the network between the machines is down" in err
    final = json.loads((tmp_path / "final.json").read_text())
    assert final["status"] == "failed"
    assert "no longer heard of" in final["problem"]


def test_a_stop_with_a_checkpoint_reaches_both(machines: Machines) -> None:
    """Exit status 75 on both machines."""
    one, two = machines(0, "sys.exit(75)"), machines(1, "sys.exit(75)")
    assert (ended(one)[0], ended(two)[0]) == (75, 75)


def test_a_dead_rank_is_written_into_the_run_directory(machines: Machines, tmp_path: Path) -> None:
    """final.json, where the run had written its config."""
    (tmp_path / "config.yaml").write_text("method: lora\n")
    fall = "print('x', file=sys.stderr)\nsys.stderr.flush()\nos.kill(os.getpid(), signal.SIGBUS)"
    assert ended(machines(0, fall, num_nodes=1, record=str(tmp_path)))[0] == 4
    final = json.loads((tmp_path / "final.json").read_text())
    assert final["status"] == "failed"
    assert (final["rank"], final["code"]) == (0, -signal.SIGBUS)
    assert "/dev/shm is full" in final["problem"]
    assert final["last_lines"] == ["x"]


def test_options_about_machines_are_checked_together() -> None:
    """Each that is missing is named."""
    with pytest.raises(LaunchError) as caught:
        node_settings(nnodes=2, node_rank=None, rdzv=None, hostfile=None, nproc=None)
    assert len(caught.value.problems) == 2
    with pytest.raises(LaunchError, match="--node-rank 2 is not one of 0 to 1"):
        node_settings(nnodes=2, node_rank=2, rdzv="a", hostfile=None, nproc=None)
    with pytest.raises(LaunchError, match="'x' is no port"):
        node_settings(nnodes=2, node_rank=1, rdzv="a:x", hostfile=None, nproc=None)
    assert node_settings(nnodes=1, node_rank=None, rdzv=None, hostfile=None, nproc=2) is None
    found = node_settings(nnodes=2, node_rank=1, rdzv="host-0", hostfile=None, nproc=4)
    assert found == NodeSettings(num_nodes=2, node=1, address="host-0", port=DEFAULT_PORT, nproc=4)


def test_a_hostfile_is_read_and_every_bad_line_named(tmp_path: Path) -> None:
    """DeepSpeed only warns of a missing one and trains on this machine alone."""
    file = tmp_path / "hosts"
    with pytest.raises(LaunchError, match="cannot be read"):
        read_hostfile(file)
    file.write_text("# machines\nworker-1 slots=8\nworker-2 slots = 4  # older\n\n")
    assert [(host.name, host.slots) for host in read_hostfile(file)] == [
        ("worker-1", 8),
        ("worker-2", 4),
    ]
    file.write_text("worker-1 slots=8\nworker-1 slots=8\nworker-2\nworker-3 slots=0\n")
    with pytest.raises(LaunchError) as caught:
        read_hostfile(file)
    assert len(caught.value.problems) == 3
    file.write_text("# none\n")
    with pytest.raises(LaunchError, match="no machine is in it"):
        read_hostfile(file)


def test_a_hostfile_says_how_many_machines_and_which_this_is(tmp_path: Path) -> None:
    """By name, or by --node-rank where several lines are this machine."""
    file = tmp_path / "hosts"
    file.write_text(f"other.invalid slots=2\n{socket.gethostname()} slots=1\n")
    found = node_settings(nnodes=None, node_rank=None, rdzv=None, hostfile=file, nproc=None)
    assert found == NodeSettings(
        num_nodes=2,
        node=1,
        address="other.invalid",
        port=DEFAULT_PORT,
        nproc=1,
        world_size=3,
        hosts=("other.invalid", socket.gethostname()),
    )
    file.write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1\n")
    with pytest.raises(LaunchError, match="2 lines are this machine"):
        find_this_host(read_hostfile(file), file)
    found = node_settings(nnodes=None, node_rank=1, rdzv=None, hostfile=file, nproc=None)
    assert found is not None
    assert (found.node, found.address) == (1, "127.0.0.2")
