"""`run`: Python programs in processes of their own that need not load torch and transformers first.

For tests whose promise is what a new process sees (files and nothing else), not how Python starts
it. Each such promise also has a test with a process started in the plain way.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


class WarmPython:
    """Starts warm_server.py at the first call; `run` stands in for `subprocess.run`."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        command: Sequence[str],
        *,
        capture_output: bool = True,
        text: bool = True,
        check: bool = False,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run `[sys.executable, …]` to its end in a child of the server; both outputs as text."""
        assert command[0] == sys.executable
        assert capture_output
        assert text
        if self._server is None:
            script = str(Path(__file__).with_name("warm_server.py"))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._server = subprocess.Popen([sys.executable, script], **pipes, text=True)
        with tempfile.TemporaryDirectory() as scratch:
            out, err = Path(scratch) / "out", Path(scratch) / "err"
            request = {"argv": command[1:], "out": str(out), "err": str(err)}
            request |= {"cwd": str(cwd or Path.cwd()), "env": dict(os.environ)}
            print(json.dumps(request), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            done = subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())
        if check:
            done.check_returncode()
        return done

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
