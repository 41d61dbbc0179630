"""The package as a whole: what is installed, what is committed, and that the documents are true."""

import importlib
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version


@pytest.fixture(scope="module")
def project(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, Version]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pairs}


@pytest.fixture(scope="module")
def committed(root: Path) -> list[Path]:
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return [root / name for name in names if name and (root / name).is_file()]


def direct_requirements(project: dict) -> list[Requirement]:
    listed = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["dev"],
        *project["project"]["optional-dependencies"]["serve"],
        *project["build-system"]["requires"],
    ]
    return [Requirement(text) for text in listed]


def code_blocks(text: str) -> list[str]:
    """Lines of every fenced block, without comments and outer spaces."""
    lines = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S)).splitlines()
    return [bare for line in lines if (bare := line.split("#")[0].strip())]


def test_every_direct_dependency_has_a_pin_that_its_bound_admits(project, pins) -> None:
    faults = [
        str(requirement)
        for requirement in direct_requirements(project)
        if (name := requirement.name.lower()) not in pins
        or not requirement.specifier.contains(pins[name], prereleases=True)
    ]
    assert faults == []


def test_pins_fit_cpu_and_cuda_machines(pins) -> None:
    """No build suffix, and nothing that only one kind of torch brings along."""
    assert [str(version) for version in pins.values() if version.local] == []
    assert [name for name in pins if name.startswith(("nvidia", "cuda", "triton"))] == []


def test_no_committed_file_names_a_path_of_the_machine_it_was_written_on(committed) -> None:
    pattern = re.compile(r"(?<![\w.~$}*-])/(?:work|root|opt)/\w|/tmp/brief")
    faults = []
    for path in committed:
        text = path.read_bytes().decode("utf-8", errors="ignore")
        faults += [f"{path}: {match[0]}" for match in pattern.finditer(text)]
    own = f"{Path(__file__)}: "
    assert [fault for fault in faults if not fault.startswith(own)] == []


def test_every_console_script_can_be_imported_and_called(project) -> None:
    for target in project["project"]["scripts"].values():
        module, name = target.split(":")
        assert callable(getattr(importlib.import_module(module), name))


def test_python_m_glmforge_is_the_same_program(root: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "glmforge", "--help"], cwd=root, capture_output=True, text=True
    )
    assert (result.returncode, "train" in result.stdout) == (0, True), result.stderr


def test_import_glmforge_loads_neither_deepspeed_nor_the_command_line(warm_python) -> None:
    code = "import sys, glmforge; print([m for m in ('deepspeed', 'typer') if m in sys.modules])"
    result = warm_python.run([sys.executable, "-c", code])
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_every_layer_of_the_contract_is_drawn_in_the_architecture_page(root, project) -> None:
    """Same rooms, same order, line by line."""
    contract = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms = [re.findall(r"\w+", layer) for layer in contract]
    page = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = re.search(r"```text\n(.*?)```", page, flags=re.S)
    assert drawing is not None
    drawn = [re.findall(r"\w+", line.split("   ")[0]) for line in drawing[1].splitlines()]
    assert drawn == rooms


def test_pytest_leaves_no_folder_of_tests_out(root: Path, request: pytest.FixtureRequest) -> None:
    """Its default for folders not to enter has common names in it, such as dist."""
    patterns = request.config.getini("norecursedirs")
    folders = {
        part
        for path in (root / "tests").rglob("test_*.py")
        for part in path.parent.relative_to(root).parts
    }
    assert [name for name in folders if any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_both_readmes_show_the_same_commands(root: Path) -> None:
    english = code_blocks((root / "README.md").read_text(encoding="utf-8"))
    chinese = code_blocks((root / "README.zh-CN.md").read_text(encoding="utf-8"))
    assert chinese == english


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "examples/README.md"])
def test_every_command_in_the_documents_exists(root: Path, page: str) -> None:
    from typer.main import get_command

    from glmforge.cli.main import app

    commands = get_command(app).commands
    lines = code_blocks((root / page).read_text(encoding="utf-8"))
    used = {match[1] for line in lines if (match := re.search(r"\bglmforge (\w+)", line))}
    assert used - set(commands) == set()


def test_links_between_documents_lead_to_files(committed) -> None:
    faults = []
    for path in (path for path in committed if path.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not (path.parent / target).exists():
                faults.append(f"{path}: {target}")
    assert faults == []


def test_example_configs_fit_the_schema(root: Path) -> None:
    from glmforge.config.load import load_config_file

    examples = sorted((root / "examples").glob("*.yaml"))
    assert examples
    for example in examples:
        assert load_config_file(example, []).model.model_name_or_path


def test_no_two_test_files_have_one_name(root: Path) -> None:
    """pytest imports them by name alone: the long tier, which collects all, would stop."""
    names = [path.name for path in (root / "tests").rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
