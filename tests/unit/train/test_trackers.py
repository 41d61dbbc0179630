"""W&B, SwanLab and MLflow behind one interface: rank 0 only, no point twice, never in the way."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch

from glmforge.assets import asset_path
from glmforge.config import config_from_mapping
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import ConfigError, TrainingError
from glmforge.train.methods import check_requirements
from glmforge.train.trackers import names_of, open_trackers
from small_models import TINY_MODEL

CPU = torch.device("cpu")
ENGINE = {"zero_optimization": {"stage": 2}}


def config(report_to, directory="run"):
    return config_from_mapping(
        {
            "model": {"model_name_or_path": str(TINY_MODEL)},
            "data": {"train": str(asset_path("demo/train.jsonl"))},
            "training": {"output_dir": str(directory), "report_to": report_to},
        }
    )


@pytest.fixture
def services(monkeypatch):
    """Stand-ins for the three packages, which note their calls."""
    calls = []

    def module(name, **members):
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        for key, value in members.items():
            setattr(made, key, value)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def noting(name):
        return lambda *args, **kwargs: calls.append((name, args, kwargs))

    run = SimpleNamespace(log=noting("wandb.log"), finish=noting("wandb.finish"))

    def start(name, result):
        def init(**kwargs):
            calls.append((name, (), kwargs))
            return result

        return init

    module(
        "wandb",
        init=start("wandb.init", run),
        Table=lambda columns, data: (columns, data),
        Error=type("Error", (Exception,), {}),
    )
    module(
        "swanlab",
        init=start("swanlab.init", None),
        log=noting("swanlab.log"),
        Text=lambda text: ("text", text),
        finish=noting("swanlab.finish"),
    )
    mlflow_run = SimpleNamespace(info=SimpleNamespace(run_id="abc"))
    module(
        "mlflow",
        set_experiment=noting("mlflow.set_experiment"),
        start_run=start("mlflow.start_run", mlflow_run),
        log_params=noting("mlflow.log_params"),
        log_metrics=noting("mlflow.log_metrics"),
        log_text=noting("mlflow.log_text"),
        end_run=noting("mlflow.end_run"),
        exceptions=SimpleNamespace(MlflowException=type("MlflowException", (Exception,), {})),
    )
    return calls


def opened(tmp_path, names, *, start=None, rank=0, said=None):
    ranks = Ranks(world=World(rank=rank), device=CPU)
    return open_trackers(
        config(names, tmp_path),
        tmp_path,
        ranks,
        start=start,
        is_shown=lambda step: True,
        say=(said if said is not None else []).append,
    )


def names(calls):
    return [name for name, _, _ in calls]


def test_one_name_or_several_or_none():
    """As in TrainingArguments."""
    assert names_of(config("wandb")) == ("wandb",)
    assert names_of(config(["tensorboard", "mlflow", "mlflow"])) == ("tensorboard", "mlflow")
    assert names_of(config("none")) == ()
    assert names_of(config([])) == ()
    with pytest.raises(ConfigError, match=r"training\.report_to is 'wandbb' \(a text\): expected"):
        config("wandbb")


@pytest.mark.parametrize("nothing", ["none", []])
def test_a_run_without_trackers_opens_none(services, tmp_path, nothing):
    """What training.report_to documents as none opens, takes numbers and closes."""
    found = opened(tmp_path, nothing)
    found.scalars({"train/loss": 2.0}, 1)
    found.close()
    assert services == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_an_error_before_the_run(monkeypatch):
    """With the command that installs it."""
    for name in ("wandb", "swanlab", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"which is not installed: pip install swanlab, or leave"):
        check_requirements(config(["tensorboard", "swanlab"]), CPU, ENGINE)


def test_wandb_gets_settings_curves_and_answers(services, tmp_path):
    """One run a directory, that a resumed run goes on with."""
    found = opened(tmp_path, "wandb")
    found.scalars({"train/loss": 2.0}, 1)
    found.texts({"samples/0": "hello"}, 1)
    found.close()
    assert names(services) == ["wandb.init", "wandb.log", "wandb.log", "wandb.finish"]
    init = services[0][2]
    assert init["config"]["training.learning_rate"] == 5e-5
    assert (init["name"], init["resume"]) == (tmp_path.name, "allow")
    assert services[1][1:] == (({"train/loss": 2.0},), {"step": 1})
    assert services[3][2] == {"exit_code": 0}


@pytest.mark.parametrize(
    ("name", "log"),
    [("wandb", "wandb.log"), ("swanlab", "swanlab.log"), ("mlflow", "mlflow.log_metrics")],
)
def test_a_resumed_run_goes_on_in_the_same_curve_without_doubled_points(
    services, tmp_path, name, log
):
    """Killed after step 6, resumed from step 4: 5 and 6 are not sent again."""
    first = opened(tmp_path, name)
    for step in range(1, 7):
        first.scalars({"train/loss": 1.0}, step)
    first.scalars({"eval/eval_loss": 1.0}, 4)
    identity = json.loads((tmp_path / "trackers.json").read_text())[name]["id"]
    services.clear()
    again = opened(tmp_path, name, start=4)
    for step in range(5, 9):
        again.scalars({"train/loss": 1.0}, step)
    again.scalars({"eval/eval_loss": 1.0}, 8)
    sent = [(args, kwargs) for called, args, kwargs in services if called == log]
    steps = [kwargs.get("step") for _, kwargs in sent]
    assert steps == [7, 8, 8]
    started = services[0][2]
    assert identity in (started.get("id"), started.get("run_id"))


def test_a_run_from_its_beginning_is_a_new_one(services, tmp_path):
    """What an attempt before its first checkpoint left is no curve to go on with."""
    opened(tmp_path, "wandb").scalars({"train/loss": 1.0}, 3)
    before = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    opened(tmp_path, "wandb").scalars({"train/loss": 1.0}, 1)
    after = json.loads((tmp_path / "trackers.json").read_text())["wandb"]
    assert after["id"] != before["id"]
    assert after["steps"] == {"train": 1}


def test_mlflow_gets_settings_as_texts_and_answers_as_files(services, tmp_path):
    """Parameters once, at the beginning only: they cannot be written twice."""
    found = opened(tmp_path, "mlflow")
    found.texts({"samples/0": "hello"}, 12)
    found.close()
    (settings,) = [args[0] for name, args, _ in services if name == "mlflow.log_params"]
    assert settings["training.seed"] == "42"
    assert ("mlflow.log_text", ("hello", "samples/0/step-000012.md"), {}) in services
    services.clear()
    opened(tmp_path, "mlflow", start=12)
    assert "mlflow.log_params" not in names(services)


def test_other_ranks_open_nothing(services, tmp_path):
    """Only rank 0 writes."""
    opened(tmp_path, ["wandb", "swanlab", "mlflow", "tensorboard"], rank=1).close()
    assert services == []
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_does_not_start_ends_the_run_with_the_remedy(
    services, tmp_path, monkeypatch
):
    """Not logged in, and no terminal to ask on."""

    def init(**kwargs):
        raise sys.modules["wandb"].Error("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(sys.modules["wandb"], "init", init)
    with pytest.raises(TrainingError, match="does not start: Error: No API key") as caught:
        opened(tmp_path, "wandb")
    assert "WANDB_MODE=offline" in str(caught.value)


@pytest.mark.parametrize("error", ["MlflowException", "ConnectionError"])
def test_a_service_that_fails_later_is_dropped_with_a_line(services, tmp_path, monkeypatch, error):
    """The network is gone: the other trackers and the run go on."""
    said = []
    found = opened(tmp_path, ["mlflow", "swanlab"], said=said)
    kind = sys.modules["mlflow"].exceptions.MlflowException
    kind = ConnectionError if error == "ConnectionError" else kind

    def fail(*args, **kwargs):
        raise kind("no route to host")

    monkeypatch.setattr(sys.modules["mlflow"], "log_metrics", fail)
    services.clear()
    found.scalars({"train/loss": 1.0}, 1)
    found.scalars({"train/loss": 1.0}, 2)
    assert names(services) == ["swanlab.log", "swanlab.log"]
    (line,) = said
    assert line.startswith(f"mlflow gets nothing more of this run ({error}: no route to host)")


def test_a_failing_run_is_closed_as_failed(services, tmp_path):
    """What the service shows is how the run ended."""
    found = opened(tmp_path, ["wandb", "mlflow"])
    try:
        raise TrainingError("the loss is not finite")
    except TrainingError:
        found.close()
    ends = {name: kwargs for name, _, kwargs in services if "finish" in name or "end_run" in name}
    assert ends == {"wandb.finish": {"exit_code": 1}, "mlflow.end_run": {"status": "FAILED"}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"wandb": 3}', '{"wandb": {"id": "a"}}'])
def test_a_torn_memory_of_the_services_is_named_and_not_guessed(services, tmp_path, text):
    """A new run id would begin a second curve in silence."""
    path = tmp_path / "trackers.json"
    path.write_text(text)
    with pytest.raises(TrainingError, match=r"trackers\.json: cannot be read .* delete it"):
        opened(tmp_path, "wandb", start=4)
    assert path.read_text() == text
