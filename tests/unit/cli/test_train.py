"""`glmforge train`: what it checks, when it starts processes, and when it is a rank itself."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

import glmforge.train
from glmforge.cli import train as command
from glmforge.cli.main import main
from glmforge.config import RunConfig

TORCHRUN = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Stands for the result of a run."""

    output_dir: Path
    step: int


class Program:
    """Runs `glmforge train` in a directory where everything is in place; training is recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.launched: list[tuple[list[str], dict[str, object]]] = []
        self.trained: list[tuple[RunConfig, str | None]] = []
        self.options: list[dict[str, object]] = []
        monkeypatch.setattr(command, "launch_local", self._launch)
        monkeypatch.setattr(glmforge.train, "train", self._train)

    def _launch(self, argv: list[str], **options: object) -> int:
        self.launched.append((argv, options))
        return 0

    def _train(self, config: RunConfig, resume: str | None = None, **options: object) -> Result:
        self.trained.append((config, resume))
        self.options.append(options)
        return Result(output_dir=Path(config.training.output_dir), step=4)

    def __call__(self, *argv: str, **variables: str) -> SimpleNamespace:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)
        self._monkeypatch.setattr(sys, "argv", ["glmforge", *argv])
        code = main()
        printed = self._capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err)


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Program:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (place / "m").mkdir()
    (place / "m" / "config.json").write_text("{}")
    (place / "m" / "model.safetensors").write_bytes(b"w")
    (place / "t.jsonl").write_text("{}\n")
    (place / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    (place / "c.yaml").write_text(
        "model: {model_name_or_path: m}\ndata: {train: t.jsonl}\ntraining: {output_dir: run}\n"
    )
    return Program(monkeypatch, capsys)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[], list[Path]]:
    return lambda: sorted(tmp_path.rglob("*"))


def test_one_process_trains_here(program: Program) -> None:
    result = program("train", "c.yaml", "training.seed=3", "--resume", "auto")
    assert (result.code, result.out, result.err) == (0, "", "")
    ((config, resume),) = program.trained
    assert (config.training.seed, resume) == (3, "auto")
    assert program.launched == []


def test_json_prints_the_result(program: Program) -> None:
    result = program("train", "c.yaml", "--json")
    assert json.loads(result.out) == {"output_dir": "run", "step": 4}


def test_several_processes_are_launched_with_the_same_settings(program: Program) -> None:
    result = program(
        "train", "c.yaml", "training.seed=3", "--nproc", "2", "--master-port", "29555",
        "--deepspeed", "ds.json", "--json", "--resume", "auto",
    )  # fmt: skip
    assert result.code == 0
    assert program.trained == []
    ((argv, options),) = program.launched
    assert argv[:6] == [
        "train", "c.yaml", 'deepspeed="ds.json"', "training.seed=3", "launch.nproc=2",
        "launch.master_port=29555",
    ]  # fmt: skip
    assert sorted(argv[6:]) == ["--json", "--resume", "auto"]
    assert options.pop("record") == Path("run")
    assert options == {"nproc": 2, "gpus": None, "master_addr": None, "master_port": 29555}


def test_the_plan_is_kept_to_unless_the_user_says_otherwise(program: Program) -> None:
    """The options reach the training, and every rank that is started."""
    program("train", "c.yaml")
    program("train", "c.yaml", "--ignore-plan")
    assert [options["ignore_plan"] for options in program.options] == [False, True]
    program("train", "c.yaml", "--nproc", "2", "--ignore-plan", "--preflight")
    ((argv, options),) = program.launched
    assert {"--ignore-plan", "--preflight"} <= set(argv)
    assert options["record"] is None  # a try leaves the run directory alone


def test_a_deepspeed_map_is_refused_before_processes_start(program: Program) -> None:
    """All at once: the equation for two processes, and a key that DeepSpeed does not know."""
    result = program(
        "train", "c.yaml", "--nproc", "2", "training.gradient_accumulation_steps=1",
        "training.per_device_train_batch_size=2",
        "deepspeed={train_batch_size: 32, zero_stage: 2}",
    )  # fmt: skip
    assert result.code == 1
    assert program.launched == []
    assert "train_batch_size is 32, but 2 per_device_train_batch_size x 1" in result.err
    assert "deepspeed.zero_stage is no key of DeepSpeed" in result.err


def test_the_config_may_ask_for_processes_and_an_option_counts_more(program: Program) -> None:
    program("train", "c.yaml", "launch.nproc=4")
    program("train", "c.yaml", "launch.nproc=4", "--nproc", "2")
    program("train", "c.yaml", "--gpus", "0,1")
    assert [options["nproc"] for _, options in program.launched] == [4, 2, None]
    assert program.launched[2][1]["gpus"] == "0,1"


def test_a_key_on_the_command_line_changes_the_deepspeed_file(program: Program) -> None:
    """The option names the file, whatever the order of the two."""
    Path("z3.json").write_text('{"zero_optimization": {"stage": 3}, "gradient_clipping": 1.0}')
    program("train", "c.yaml", "--deepspeed", "z3.json", "deepspeed.zero_optimization.stage=1")
    config = program.trained[0][0]
    assert config.deepspeed == {"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0}


def test_large_data_is_prepared_before_ranks_start(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[list[str]] = []

    def refuse(argv: list[str]) -> int:
        assert program.launched == []
        prepared.append(argv)
        return len(prepared) - 1

    monkeypatch.setattr(command, "run_without_gpus", refuse)
    program("train", "c.yaml", "--nproc", "2")
    assert prepared == [], "small data is left to rank 0"
    program.launched.clear()
    monkeypatch.setattr(command, "BYTES_PREPARED_FIRST", 1)
    program("train", "c.yaml", "training.seed=3", "--nproc", "2")
    expected = [
        "data",
        "prepare",
        "c.yaml",
        "training.seed=3",
        "launch.nproc=2",
        "--quiet",
        "--no-rebuild",
    ]
    assert prepared == [expected]
    assert len(program.launched) == 1
    program.launched.clear()
    assert program("train", "c.yaml", "--nproc", "2").code == 1, "its refusal ends the command"
    assert program.launched == []


def test_what_the_launcher_passes_to_a_rank_is_accepted_there(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("train", "c.yaml", "--nproc", "2", "--deepspeed", "ds.json")
    ((argv, _),) = program.launched
    ours = TORCHRUN | {"GLMFORGE_LAUNCHER": "glmforge"}
    assert program(*argv, **ours).code == 0
    ((config, _),) = program.trained
    assert config.launch.nproc == 2
    assert config.deepspeed == "ds.json"


@pytest.mark.parametrize("option", ["--local_rank=0", "--local-rank=0"])
@pytest.mark.parametrize("first", [True, False])
def test_the_local_rank_of_launchers_is_accepted_anywhere(
    program: Program, option: str, first: bool
) -> None:
    argv = ["train", "c.yaml"]
    argv = [option, *argv] if first else [*argv, option]
    assert program(*argv, **TORCHRUN).code == 0
    assert len(program.trained) == 1


def test_under_a_launcher_this_process_trains_and_rank_0_alone_prints(program: Program) -> None:
    assert program("train", "c.yaml", "--json", **TORCHRUN).out != ""
    assert program("train", "c.yaml", "--json", RANK="1", LOCAL_RANK="1").out == ""
    assert len(program.trained) == 2
    assert program.launched == []


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--nproc", "2"], "--nproc"),
        (["--gpus", "0"], "--gpus"),
        (["--nproc", "2", "--master-port", "1234"], "--nproc, --master-port"),
    ],
)
def test_launch_options_under_a_foreign_launcher_are_refused(
    program: Program, argv: list[str], named: str
) -> None:
    result = program("train", "c.yaml", *argv, **TORCHRUN)
    assert result.code == 2
    assert f"error: rank 0: {named}: torchrun has started this program with 2 process(es)" in (
        result.err
    )
    assert program.trained == []


def test_launch_settings_that_a_foreign_launcher_overrules_are_refused(program: Program) -> None:
    assert program("train", "c.yaml", "launch.nproc=2", **TORCHRUN).code == 0
    result = program("train", "c.yaml", "launch.nproc=4", "launch.gpus=0", **TORCHRUN)
    assert result.code == 1
    assert "launch.nproc is 4, but torchrun has started the processes and decides (2)" in result.err
    assert "launch.gpus is '0'" in result.err


@pytest.mark.parametrize("processes", [[], ["--nproc", "2"]])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train=none.jsonl"], "data.train 'none.jsonl' does not exist"),
        (["training.leraning_rate=1"], "unknown key training.leraning_rate, did you mean learnin"),
        (["training.seed=abc"], "training.seed is 'abc' (a text): expected a whole number"),
        (["deepspeed=none.json"], "deepspeed 'none.json' cannot be read"),
        (["training.seed=x", "model.model_name_or_path=none"], "error: 2 problems:\n1. "),
    ],
)
def test_bad_input_is_one_message_before_anything_starts(
    program: Program,
    files: Callable[[], list[Path]],
    overrides: list[str],
    message: str,
    processes: list[str],
) -> None:
    before = files()
    result = program("train", "c.yaml", *overrides, *processes)
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert message in result.err
    assert "Traceback" not in result.err
    assert (program.launched, program.trained) == ([], [])
    assert files() == before


def test_a_missing_config_is_one_message(program: Program) -> None:
    result = program("train", "other.yaml")
    assert result.code == 1
    assert result.err == "error: config file 'other.yaml' does not exist; check the path\n"


def test_a_model_without_weights_and_an_occupied_directory_are_named_together(
    program: Program,
) -> None:
    Path("m/model.safetensors").unlink()
    Path("run").mkdir()
    Path("run/metrics.jsonl").write_text("")
    result = program("train", "c.yaml")
    assert result.code == 1
    assert "1. c.yaml:1: model.model_name_or_path 'm' has no weights" in result.err
    assert "2. c.yaml:3: training.output_dir 'run' already holds a run" in result.err


def test_a_start_from_anothers_weights_reaches_the_run_and_its_ranks(program: Program) -> None:
    """--init-from and --allow-changes are the run's, in this process or in the ranks it starts."""
    assert program("train", "c.yaml", "--init-from", "other").code == 0
    assert program.options[-1]["init_from"] == "other"
    assert program("train", "c.yaml", "--resume", "auto", "--allow-changes").code == 0
    assert program.options[-1]["allow_changes"] is True
    assert program("train", "c.yaml", "--nproc", "2", "--init-from", "other").code == 0
    argv, _ = program.launched[-1]
    assert argv[argv.index("--init-from") + 1] == "other"
    start = ("train", "c.yaml", "--nproc", "2", "--resume", "auto", "--allow-changes")
    assert program(*start).code == 0
    assert {"--resume", "--allow-changes"} <= set(program.launched[-1][0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--resume", "auto", "--init-from", "x"), "give one of them"),
        (("--allow-changes",), "--allow-changes belongs to --resume"),
    ],
)
def test_starts_that_contradict_each_other_are_refused(
    program: Program, options: tuple[str, ...], said: str
) -> None:
    """Before anything is started."""
    result = program("train", "c.yaml", *options)
    assert result.code == 2
    assert said in result.err
    assert program.trained == []
