"""Where a run's curves go besides metrics.jsonl: TensorBoard, W&B, SwanLab, MLflow.

One small interface (`Tracker`), one fan-out (`Trackers`) that only rank 0 has. What a service has
got is remembered in trackers.json, so that a resumed run goes on in the same curve and sends no
point twice. A service that fails later is dropped with a line: the run and its own records go on.
"""

import importlib
import importlib.util
import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from glmforge.config import RunConfig
from glmforge.distributed.collectives import Ranks
from glmforge.errors import GlmForgeError, TrainingError
from glmforge.train.tensorboard import Say, TensorBoard

PROJECT = "glmforge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a user needs to know of a service: its package, and what to do where it cannot start."""

    package: str
    remedy: str


SERVICES = {
    "wandb": Service(package="wandb", remedy="log in (wandb login), or set WANDB_MODE=offline"),
    "swanlab": Service(
        package="swanlab", remedy="log in (swanlab login), or set SWANLAB_MODE=offline"
    ),
    "mlflow": Service(package="mlflow", remedy="look at MLFLOW_TRACKING_URI"),
}


class Tracker(Protocol):
    """Shows the numbers and answers of a run. Called on rank 0 only."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves."""

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Show texts (Markdown)."""

    def close(self, *, failed: bool) -> None:
        """Send what is left."""


def names_of(config: RunConfig) -> tuple[str, ...]:
    """Return the trackers of a run, each once; of ``none`` there are none."""
    wanted = config.training.report_to
    if wanted == "none":
        return ()
    return tuple(dict.fromkeys([wanted] if isinstance(wanted, str) else wanted))


def tracker_problems(config: RunConfig) -> list[str]:
    """Name the packages that `training.report_to` needs and that are not installed."""
    missing = [
        SERVICES[name].package
        for name in names_of(config)
        if name in SERVICES and not _is_installed(SERVICES[name].package)
    ]
    return [
        f"training.report_to names {package}, which is not installed: pip install {package}, or "
        "leave it out"
        for package in missing
    ]


def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


class Wandb:
    """Weights & Biases: one run a run directory."""

    def __init__(self, name: str, identity: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Start or go on with the run `identity`."""
        self._module: Any = importlib.import_module("wandb")
        self._run = self._module.init(
            project=PROJECT,
            name=name,
            id=identity,
            resume="allow",
            config=dict(settings),
            dir=str(folder),
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves."""
        self._run.log(dict(values), step=step)

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Show texts as a table."""
        rows = [[name, text] for name, text in texts.items()]
        self._run.log({"samples": self._module.Table(columns=["name", "text"], data=rows)}, step)

    def close(self, *, failed: bool) -> None:
        """Send what is left."""
        self._run.finish(exit_code=int(failed))


class SwanLab:
    """SwanLab: one experiment a run directory."""

    def __init__(self, name: str, identity: str, settings: Mapping[str, Any], folder: Path) -> None:
        """Start or go on with the experiment `identity`."""
        del folder
        self._module: Any = importlib.import_module("swanlab")
        self._run = self._module.init(
            project=PROJECT,
            experiment_name=name,
            id=identity,
            resume="allow",
            config=dict(settings),
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves."""
        self._module.log(dict(values), step=step)

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Show texts."""
        shown = {name: self._module.Text(text) for name, text in texts.items()}
        self._module.log(shown, step=step)

    def close(self, *, failed: bool) -> None:
        """Send what is left."""
        del failed
        self._module.finish()


class MLflow:
    """MLflow: one run of the experiment ``glmforge`` a run directory, where the tracking URI is."""

    def __init__(
        self, name: str, identity: str | None, settings: Mapping[str, Any], folder: Path
    ) -> None:
        """Start a run, or go on with the run `identity`."""
        del folder
        self._module: Any = importlib.import_module("mlflow")
        if identity is None:
            self._module.set_experiment(PROJECT)
            self.identity = self._module.start_run(run_name=name).info.run_id
            self._module.log_params({key: str(value)[:500] for key, value in settings.items()})
        else:
            self.identity = self._module.start_run(run_id=identity).info.run_id

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves."""
        self._module.log_metrics(dict(values), step=step)

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Keep texts as files of the run."""
        for name, text in texts.items():
            self._module.log_text(text, f"{name}/step-{step:06d}.md")

    def close(self, *, failed: bool) -> None:
        """End the run."""
        self._module.end_run(status="FAILED" if failed else "FINISHED")


class Remembering:
    """A service that gets no point twice: what it has got is written down before it is sent.

    A run killed in between so loses a point of the service's curve and never doubles one.
    """

    def __init__(self, name: str, run: Path, settings: Mapping[str, Any], *, anew: bool) -> None:
        """Start the service, or go on with what trackers.json says.

        Raises:
            TrainingError: the service does not start; says what to do.
        """
        self._name, self._path = name, run / "trackers.json"
        known = {} if anew else _read(self._path).get(name, {})
        self._steps: dict[str, int] = known.get("steps", {})
        self._identity: str | None = known.get("id")
        title = run.absolute().name
        try:
            if name == "mlflow":
                mlflow = MLflow(title, self._identity, settings, run)
                self._identity, self._tracker = mlflow.identity, mlflow
            else:
                self._identity = self._identity or secrets.token_hex(11)[:21]
                kind: Any = {"wandb": Wandb, "swanlab": SwanLab}[name]
                self._tracker = kind(title, self._identity, settings, run)
        except Exception as error:
            raise TrainingError(
                f"training.report_to names {name}, which does not start: "
                f"{type(error).__name__}: {error}; {SERVICES[name].remedy}, or leave it out "
                "(training.report_to=tensorboard)"
            ) from error
        self._remember()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves, unless they have it."""
        kind = next(iter(values), "").split("/")[0]
        if self._is_new(kind, step):
            self._tracker.scalars(values, step)

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Show texts, unless they are shown."""
        if self._is_new("samples", step):
            self._tracker.texts(texts, step)

    def close(self, *, failed: bool) -> None:
        """Send what is left."""
        self._tracker.close(failed=failed)

    def _is_new(self, kind: str, step: int) -> bool:
        if step <= self._steps.get(kind, -1):
            return False
        self._steps[kind] = step
        self._remember()
        return True

    def _remember(self) -> None:
        everything = _read(self._path) | {self._name: {"id": self._identity, "steps": self._steps}}
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(everything, indent=1), encoding="utf-8")
        temporary.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    """Read trackers.json; without it no service has got anything.

    Raises:
        TrainingError: it cannot be read.
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {name: {"id": each["id"], "steps": each["steps"]} for name, each in found.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainingError(
            f"{path}: cannot be read ({error}), so that it is not known which curves of the "
            "services of training.report_to are this run's: delete it, and they begin anew there"
        ) from error


def _failures(name: str) -> tuple[type[BaseException], ...]:
    """Return the errors by which a tracker fails later without being our bug."""
    module = sys.modules.get(name)
    own = getattr(module, "Error", None) or getattr(
        getattr(module, "exceptions", None), "MlflowException", None
    )
    return (OSError, own) if own is not None else (OSError,)


class Trackers:
    """All trackers of a run as one; one that fails is dropped with a line, and the run goes on."""

    def __init__(self, trackers: Mapping[str, Tracker], say: Say) -> None:
        self._trackers = dict(trackers)
        self._say = say

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to several curves everywhere."""
        self._each(lambda tracker: tracker.scalars(values, step))

    def texts(self, texts: Mapping[str, str], step: int) -> None:
        """Show texts everywhere."""
        self._each(lambda tracker: tracker.texts(texts, step))

    def close(self) -> None:
        """Send what is left everywhere."""
        failed = sys.exc_info()[0] is not None  # closed on the way out of a failing run
        self._each(lambda tracker: tracker.close(failed=failed))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except _failures(name) as error:
                del self._trackers[name]
                self._say(
                    f"{name} gets nothing more of this run ({type(error).__name__}: {error}); "
                    "training goes on, and metrics.jsonl has every number"
                )


def open_trackers(
    config: RunConfig,
    directory: Path,
    ranks: Ranks,
    *,
    start: int | None,
    is_shown: Callable[[int], bool],
    say: Say,
) -> Trackers:
    """Open the trackers of `training.report_to` on rank 0; a collective, empty on other ranks.

    Args:
        config: of the run.
        directory: of the run.
        ranks: all ranks.
        start: the step that a resumed run goes on from; None for a run from its beginning.
        is_shown: says whether a step's numbers are shown.
        say: prints a line for people.

    Raises:
        TrainingError: a service does not start; on every rank.
    """
    found: dict[str, Tracker] = {}
    failure: GlmForgeError | None = None
    settings = flat_settings(config.model_dump(mode="json"))
    for name in names_of(config) if ranks.is_main else ():
        try:
            if name == "tensorboard":
                found[name] = TensorBoard(
                    directory, start=start, settings=settings, is_shown=is_shown, say=say
                )
            else:
                found[name] = Remembering(name, directory, settings, anew=start is None)
        except TrainingError as error:
            failure = error
            break
    failure = ranks.agree(failure)
    if failure is not None:
        Trackers(found, say).close()
        raise failure
    return Trackers(found, say)


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
