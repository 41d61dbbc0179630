"""Launches cases of `cases.py` on several gloo ranks and hands their results to the tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


class Launcher:
    """Runs cases, each on its wanted number of ranks, and remembers their results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, ranks: int, *names: str) -> dict[str, object]:
        out = self._directory / f"ranks{ranks}"
        missing = [name for name in names if not (out / f"{name}.json").exists()]
        if missing:
            script = Path(__file__).parent / "launch.py"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            done = subprocess.run(
                [*command, "--nproc_per_node", str(ranks), str(script), str(out), *missing],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=540,
                check=False,
            )
            errors = [path.read_text() for path in sorted(out.glob("*.error"))]
            assert done.returncode == 0, "\n".join(errors) or done.stderr[-4000:]
        return {name: json.loads((out / f"{name}.json").read_text()) for name in names}


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    return Launcher(tmp_path_factory.mktemp("dist"))
