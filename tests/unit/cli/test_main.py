"""The program as a user meets it: commands, exit statuses, one message for each error."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import glmforge.export
import glmforge.train.demo
from glmforge.cli.main import main
from glmforge.errors import (
    CheckpointError,
    GlmForgeError,
    LaunchError,
    RankFailed,
    Stopped,
    UsageError,
)

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program in this process; returns its exit status and what it printed."""

    def call(*argv: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["glmforge", *argv])
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)

    return call


def test_help_lists_the_commands_that_exist(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for command in (
        "demo",
        "train",
        "data",
        "inspect",
        "export",
        "chat",
        "serve",
        "tokenizer",
        "plan",
        "doctor",
    ):
        assert f"  {command} " in result.out
    for command in ("report", "diagnose"):
        assert f"  {command} " not in result.out


@pytest.mark.parametrize(
    "command",
    ["demo", "train", "data check", "inspect", "export", "chat", "serve", "tokenizer train"],
)
def test_every_command_has_help_and_the_launcher_options_stay_out_of_it(
    run: Run, command: str
) -> None:
    result = run(*command.split(), "--help")
    assert result.code == 0
    assert "Usage: glmforge" in result.out
    assert "local" not in result.out.replace("locally", "")


def test_help_config_explains_every_setting(run: Run) -> None:
    result = run("train", "--help-config")
    assert result.code == 0
    assert "training.learning_rate: a number > 0  [default 5.0e-05]" in result.out


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").out.count(".") >= 1


@pytest.mark.parametrize(
    "argv",
    [
        ["trian"],
        ["train"],
        ["train", "c.yaml", "--nprocs", "2"],
        ["train", "c.yaml", "--nproc", "0"],
    ],
)
def test_a_wrong_command_line_is_status_2(run: Run, argv: list[str]) -> None:
    result = run(*argv)
    assert result.code == 2
    assert "Usage: " in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckpointError("no run in it"), 1),
        (UsageError("not so"), 2),
        (RankFailed("rank 1 of 2 died"), 4),
        (Stopped("stopped after step 3"), 75),
    ],
)
def test_each_kind_of_error_is_one_message_and_its_status(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: GlmForgeError, code: int
) -> None:
    def fail(*args: object) -> int:
        raise error

    monkeypatch.setattr(glmforge.train.demo, "run_demo", fail)
    result = run("demo")
    said = str(error) if isinstance(error, Stopped) else f"error: {error}"  # no error: it was asked
    assert (result.code, result.out, result.err) == (code, "", f"{said}\n")


def test_several_problems_are_numbered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> int:
        raise LaunchError(["one", "two"])

    monkeypatch.setattr(glmforge.train.demo, "run_demo", fail)
    assert run("demo").err == "error: 2 problems:\n1. one\n2. two\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "while writing: No space left on device"),
        (OSError(28, "No space left on device", "m.jsonl"), "m.jsonl: No space left on device"),
        (PermissionError(13, "Permission denied", "m.jsonl"), "m.jsonl: Permission denied"),
    ],
)
def test_a_full_disk_is_the_machines_trouble_not_a_bug(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    def fail(*args: object) -> int:
        raise error

    monkeypatch.setattr(glmforge.train.demo, "run_demo", fail)
    result = run("demo")
    assert (result.code, result.err) == (1, f"error: {said}; nothing more was written\n")


def test_an_unknown_error_is_our_bug_with_what_to_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(glmforge.train.demo, "run_demo", fail)
    result = run("demo", "--nproc", "1")
    assert result.code == 3
    assert "Traceback" in result.err
    assert "ZeroDivisionError: by nought" in result.err
    assert "this is a bug in glmforge, not a mistake of yours" in result.err
    assert "command: glmforge demo --nproc 1" in result.err


def test_ctrl_c_is_status_130_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(glmforge.train.demo, "run_demo", fail)
    result = run("demo")
    assert result.code == 130
    assert "Traceback" not in result.err


def test_the_status_of_the_demo_is_the_programs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    def record(*args: object) -> int:
        calls.append(args)
        return 75

    monkeypatch.setattr(glmforge.train.demo, "run_demo", record)
    assert run("demo", "--out", "d", "--nproc", "3").code == 75
    assert run("demo").code == 75
    assert calls == [(Path("d"), 3), (None, 2)]


def test_export_passes_its_options_on_and_prints_the_report(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, object]] = []

    def record(*args: object, **options: object) -> SimpleNamespace:
        calls.append((args, options))
        return SimpleNamespace(lines=lambda: ["written", "equal"])

    monkeypatch.setattr(glmforge.export, "export", record)
    result = run("export", "run", "out", "--merge", "--base", "b", "--dtype", "bf16")
    assert (result.code, result.out) == (0, "written\nequal\n")
    options = {"merge": True, "base": Path("b"), "dtype": "bf16", "layout": None}
    options |= {"max_shard_size": None, "fix_names": False, "other_base": False}
    assert calls == [((Path("run"), Path("out")), options)]


def test_chat_as_json_needs_prompts(run: Run) -> None:
    result = run("chat", "model", "--json")
    assert (result.code, result.err) == (
        2,
        "error: --json needs --prompt: a conversation is for people\n",
    )


def test_tokenizer_train_writes_a_vocabulary_and_overwrites_none(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    row = '{"messages": [{"role": "user", "content": "hello there"}, '
    row += '{"role": "assistant", "content": "general answer"}]}\n'
    data.write_text(row * 8)
    argv = ["tokenizer", "train", str(data), "--out", str(tmp_path / "t"), "--vocab-size", "280"]
    result = run(*argv)
    assert result.code == 0, result.err
    assert (tmp_path / "t" / "tokenizer.model").exists()
    again = run(*argv)
    assert again.code == 1
    assert "a tokenizer.model is there already" in again.err


def test_half_set_launcher_variables_are_one_message(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    result = run("train", "c.yaml")
    assert result.code == 1
    assert result.err.startswith("error: the environment says RANK=0, but WORLD_SIZE, LOCAL_RANK")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['glmforge', '--help']\n"
        "from glmforge.cli.main import main\n"
        "main()\n"
        "assert not {'torch', 'transformers', 'deepspeed', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
