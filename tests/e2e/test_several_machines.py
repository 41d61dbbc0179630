"""A run on two machines, played by two launchers on loopback addresses of one."""

import signal
import socket
from collections.abc import Callable

from e2e_project import Project

Wait = Callable[[Callable[[], bool], float], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        return int(probe.getsockname()[1])


def test_two_machines_train_together_and_one_that_is_killed_ends_the_other(
    project: Project, wait_for: Wait
) -> None:
    """They meet at 127.0.0.2, print the plan each, and end with status 4 when a rank is killed."""
    hosts = project.directory / "hosts"
    hosts.write_text("127.0.0.2 slots=1\n127.0.0.3 slots=1\n")
    project.settings["training"]["max_steps"] = 100_000
    project.write()
    options = ("--hostfile", "hosts", "--rdzv", f"127.0.0.2:{free_port()}")
    started = [
        project.start("glmforge", "train", "c.yaml", *options, "--node-rank", str(node))
        for node in (0, 1)
    ]
    try:
        metrics = project.directory / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 200)
        started[1].send_signal(signal.SIGKILL)
        _, said = started[0].communicate(timeout=60)
        assert started[0].returncode == 4, said
        assert "launch: node 0 of 2" in said
        assert "ranks 0 to 0 of 2" in said
        assert "node 1" in said
        assert "went away" in said or "died" in said
        _, told = started[1].communicate(timeout=60)
        for node, words in enumerate((said, told)):
            plan = [line for line in words.splitlines() if "): plan: " in line]
            assert len(plan) == 5, words
            assert all(line.startswith(f"node {node} of 2 (") for line in plan)
    finally:
        for process in started:
            process.kill()
            process.communicate()
