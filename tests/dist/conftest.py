"""Launches cases of `*cases.py` on several gloo ranks and hands their results to the tests."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest


class Launcher:
    """Runs cases, each on its wanted number of ranks, and remembers their results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._server: subprocess.Popen[str] | None = None

    def __call__(self, ranks: int, *names: str) -> dict[str, object]:
        out = self._directory / f"ranks{ranks}"
        missing = [name for name in names if not (out / f"{name}.json").exists()]
        if missing:
            good = self._launch({"ranks": ranks, "out": str(out), "names": missing})
            errors = [path.read_text() for path in sorted(out.glob("*.error"))]
            printed = (self._directory / "printed").read_text(errors="replace")
            assert good, "\n".join(errors) or printed[-4000:]
        return {name: json.loads((out / f"{name}.json").read_text()) for name in names}

    def _launch(self, request: dict[str, object]) -> bool:
        if self._server is None:
            with (self._directory / "printed").open("w") as printed:
                self._server = subprocess.Popen(
                    [sys.executable, "-u", str(Path(__file__).parent / "launch.py")],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=printed,
                    text=True,
                )
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return self._server.stdout.readline() == "0\n"

    def close(self) -> None:
        """End the process that ranks are forked from."""
        if self._server is not None:
            self._server.communicate()


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Generator[Launcher, None, None]:
    launcher = Launcher(tmp_path_factory.mktemp("dist"))
    yield launcher
    launcher.close()
