"""scripts/setup.sh makes .venv, or says in one sentence why not; pip and python are stand-ins."""

import shutil
import subprocess
from pathlib import Path

import pytest

# Answers what setup.sh asks: a version, the venv module, `-m venv DIR` and `-m pip …`.
STAND_IN = """#!/bin/sh
case "$*" in
*version_info*) echo "{version}" ;;
*ensurepip*) exit {without_venv} ;;
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    echo "#!$3/bin/python" >"$3/bin/pip"
    echo "home = here" >"$3/pyvenv.cfg"
    ;;
"-m pip "*)
    echo "$*" >>pip.log
    exit "$(cat pip_status 2>/dev/null || echo 0)"
    ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, root: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "scripts/setup.sh"):
        shutil.copy(root / name, folder / name)
    return folder


def interpreter(folder: Path, version: str = "3.12.4", without_venv: bool = False) -> Path:
    path = folder / f"python {version}"
    path.write_text(STAND_IN.format(version=version, without_venv=int(without_venv)))
    path.chmod(0o755)
    return path


def setup(checkout: Path, python: Path | str) -> tuple[int, str]:
    """Exit status and everything said."""
    result = subprocess.run(
        ["sh", "scripts/setup.sh"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return result.returncode, result.stdout


def installs(checkout: Path) -> int:
    log = checkout / "pip.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


@pytest.mark.parametrize("version", ["2.7.18", "3.10.13", "3.14.0"])
def test_another_python_gives_one_sentence_and_makes_nothing(checkout, tmp_path, version) -> None:
    python = interpreter(tmp_path, version)
    status, said = setup(checkout, python)
    assert (status, said.count("\n")) == (1, 1)
    assert f"{python} is Python {version}" in said
    assert "3.11, 3.12 or 3.13 is needed" in said
    assert not (checkout / ".venv").exists()


def test_a_python_that_does_not_run_is_named(checkout) -> None:
    status, said = setup(checkout, "no-such-python")
    assert (status, said.count("\n")) == (1, 1)
    assert "PYTHON=no-such-python does not run" in said


def test_a_python_without_the_venv_module_gives_the_command_that_installs_it(
    checkout, tmp_path
) -> None:
    status, said = setup(checkout, interpreter(tmp_path, "3.11.2", without_venv=True))
    assert (status, said.count("\n")) == (1, 1)
    assert "apt install python3.11-venv" in said
    assert not (checkout / ".venv").exists()


def test_torch_goes_in_before_everything_else_and_under_the_pins(checkout, tmp_path) -> None:
    assert setup(checkout, interpreter(tmp_path))[0] == 0
    first, second = (checkout / "pip.log").read_text().splitlines()
    assert "--constraint constraints.txt torch" in first
    assert "--constraint constraints.txt --no-build-isolation --editable .[dev,serve]" in second


def test_a_second_call_does_and_says_nothing(checkout, tmp_path) -> None:
    python = interpreter(tmp_path)
    setup(checkout, python)
    assert setup(checkout, python) == (0, "")
    assert installs(checkout) == 2


def test_changed_pins_are_installed_into_the_same_environment(checkout, tmp_path) -> None:
    python = interpreter(tmp_path)
    setup(checkout, python)
    (checkout / ".venv" / "kept").touch()
    with (checkout / "constraints.txt").open("a") as pins:
        pins.write("new==1.0\n")
    assert setup(checkout, python)[0] == 0
    assert installs(checkout) == 4
    assert (checkout / ".venv" / "kept").exists()


def test_a_moved_folder_is_rebuilt_with_a_sentence(checkout, tmp_path) -> None:
    python = interpreter(tmp_path)
    setup(checkout, python)
    moved = checkout.rename(tmp_path / "moved")
    status, said = setup(moved, python)
    assert (status, installs(moved)) == (0, 4)
    assert "rebuilding .venv: it was made for another folder" in said


def test_an_environment_of_another_python_is_rebuilt_with_a_sentence(checkout, tmp_path) -> None:
    setup(checkout, interpreter(tmp_path, "3.11.2"))
    status, said = setup(checkout, interpreter(tmp_path, "3.12.4"))
    assert status == 0
    assert "rebuilding .venv: it has Python 3.11.2, and PYTHON=" in said


@pytest.mark.parametrize(("pip_status", "rebuilt"), [(1, False), (137, True)])
def test_a_failed_installation_is_taken_up_and_a_killed_one_begun_anew(
    checkout, tmp_path, pip_status, rebuilt
) -> None:
    python = interpreter(tmp_path)
    (checkout / "pip_status").write_text(str(pip_status))
    status, said = setup(checkout, python)
    assert status == 1
    assert "the installation stopped" in said
    (checkout / "pip_status").unlink()
    status, said = setup(checkout, python)
    assert status == 0
    assert ("its installation was cut off" in said) == rebuilt
    assert setup(checkout, python) == (0, "")


def test_a_folder_that_is_no_environment_is_never_deleted(checkout, tmp_path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "thesis.txt").write_text("years of work")
    status, said = setup(checkout, interpreter(tmp_path))
    assert (status, said.count("\n")) == (1, 1)
    assert "is not a Python environment" in said
    assert (checkout / ".venv" / "thesis.txt").exists()
