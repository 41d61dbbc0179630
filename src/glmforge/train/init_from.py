"""`--init-from`: a new run whose weights are another run's, with nothing else of it.

A new optimizer, step 0, a new run directory. Adapter runs (lora, qlora) start from an adapter,
the others from whole weights: a model directory, or the shards of a checkpoint, of this program or
of transformers' Trainer with DeepSpeed. What does not fit is refused before weights are read; what
was used is written to ``init_from.json``, from which a run that died before its first checkpoint
begins again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import AdapterFiles, add_lora, check_match, read_adapter, saved_name
from glmforge.config import RunConfig
from glmforge.config.paths import holds_run
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.zero import assign_from_main, full_shape
from glmforge.errors import AdapterError, CheckpointError
from glmforge.export.base_print import check_base
from glmforge.export.manifest import MANIFEST, files_of, named_by, problem_of
from glmforge.export.sources import Source, find_source, open_weights
from glmforge.models import new_model
from glmforge.models.hub import resolve_directory
from glmforge.train.checkpoint import check, name_of, newest_complete
from glmforge.train.foreign import check_whole, is_foreign_checkpoint, is_foreign_run, survey
from glmforge.train.prepare import ModelPlan, RunPlan, prepare_model
from glmforge.train.rundir import model_files, read_final, write_json

Say = Callable[[str], None]
NOTE = "init_from.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights that a new run starts from: an adapter, or whole ones."""

    given: str
    """What the user wrote."""
    place: Path
    """Where they lie."""
    adapter: AdapterFiles | None = None
    whole: Source | None = None
    skipped: tuple[str, ...] = ()
    """A sentence for each newer checkpoint of the run that was passed over."""


def wanted_weights(
    given: str | None, config: RunConfig, plan: ModelPlan, ranks: Ranks
) -> Weights | None:
    """Find what `--init-from` names, or what a run that begins again had begun from.

    Raises:
        CheckpointError, AdapterError, ExportError: it does not fit this run, and why.
    """
    note = Path(config.training.output_dir) / NOTE
    if given is None and note.exists():
        given = str(json.loads(note.read_text(encoding="utf-8"))["given"])
    if given is None:
        return None
    named = given
    return ranks.on_main(lambda: find_weights(named, config, plan))


def find_weights(given: str, config: RunConfig, plan: ModelPlan) -> Weights:
    """Find the weights that a path names and check them against the run's model.

    Args:
        given: a run, a checkpoint, an adapter directory or a model directory.
        config: of the new run.
        plan: of its model.

    Raises:
        CheckpointError: nothing there, or not whole.
        AdapterError: not what the method trains, or of another rank, other targets, another base.
    """
    place, skipped = _settle(Path(given))
    for directory in (place, place / "adapter"):
        if (directory / "adapter_config.json").is_file():
            _check_written(directory, given)
            files = read_adapter(directory)
            _check_adapter(files, directory, given, config, plan)
            return Weights(given=given, place=directory, adapter=files, skipped=skipped)
    if any(place.glob("*/*_model_states.pt")) and not any(place.glob("*.safetensors")):
        base = Path(config.model.model_name_or_path)
        whole = Source(adapter=None, model=base, shards=place)
    else:
        whole = find_source(place, None)
    if config.trains_adapter:
        raise AdapterError(
            f"--init-from {given}: holds whole weights, and method {config.method} starts from an "
            f"adapter: {_as_base(whole)}"
        )
    if whole.shards is None:
        _check_written(whole.model, given)
    return Weights(given=given, place=place, whole=whole, skipped=skipped)


def _as_base(whole: Source) -> str:
    """Say how an adapter can be trained on whole weights."""
    if whole.shards is None:
        return (
            "to train one on these weights leave --init-from out and write "
            f"model.model_name_or_path={whole.model}"
        )
    return (
        f"to train one on these weights join the shards (glmforge consolidate {whole.shards} OUT), "
        "leave --init-from out and write model.model_name_or_path=OUT"
    )


def _settle(path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the directory that holds weights, in a run the newest; checkpoints are verified.

    With it, a sentence for each newer one that is not whole.
    """
    if not path.is_dir():
        raise CheckpointError(f"--init-from {path}{named_by(path) or ': no such directory'}")
    if is_foreign_run(path):
        found = survey(path)
        if found.newest is None:
            raise CheckpointError(found.lines())
        return path / found.newest.name, tuple(
            line for line in found.lines() if line.startswith("skipped ")
        )
    if is_foreign_checkpoint(path):
        check_whole(path)
    elif (path / MANIFEST).exists():
        check(path)
    elif path.resolve().parent.name == "checkpoints":
        check(path)  # without a manifest: never finished
    elif holds_run(path) and not any((path / name).is_dir() for name in ("adapter", "model")):
        newest = newest_complete(path / "checkpoints")
        return newest.path, newest.skipped
    return path, ()


def _check_written(directory: Path, given: str) -> None:
    """Compare an adapter's weights with the manifest of the checkpoint that has the same ones.

    A checkpoint's own adapter is in its manifest; the last adapter of a finished run is, byte for
    byte, that of the last step's checkpoint. Without such a manifest nothing is known.

    Raises:
        CheckpointError: they are not what was written.
    """
    top = directory.resolve().parent
    final = read_final(top)
    written: Mapping[str, Mapping[str, Any]] = {}
    if final is not None and final["status"] == "complete":
        sealed = final.get("weights", {})
        written = {f"{directory.name}/{name}": entry for name, entry in sealed.items()}
        checkpoint = top / "checkpoints" / name_of(final["step"])
        remedy = f"start from the same step's checkpoint: --init-from {checkpoint}"
    else:
        checkpoint, remedy = top, "start from another checkpoint of the run"
    written = written or files_of(checkpoint)
    problems = [
        f"--init-from {given}: {problem}; {remedy}"
        for name in sorted(written)
        if name.startswith(f"{directory.name}/") and name.endswith(".safetensors")
        if (problem := problem_of(top / name, written[name])) is not None
    ]
    if problems:
        raise CheckpointError(problems)


def _check_adapter(
    files: AdapterFiles, directory: Path, given: str, config: RunConfig, plan: ModelPlan
) -> None:
    """Compare an adapter's settings, shapes and base with the run's."""
    if plan.lora is None:
        raise AdapterError(
            f"--init-from {given}: an adapter, and method {config.method} trains whole weights: "
            f"merge it first (glmforge export {directory} OUT --merge) and start from OUT"
        )
    ours, theirs = plan.lora, files.config
    targets = theirs.target_modules or ()
    pairs = {
        "r": (ours.r, theirs.r),
        "lora_alpha": (ours.lora_alpha, theirs.lora_alpha),
        "target_modules": (
            sorted(ours.target_modules),
            sorted([targets] if isinstance(targets, str) else targets),
        ),
        "use_rslora": (ours.use_rslora, theirs.use_rslora),
        "use_dora": (ours.use_dora, theirs.use_dora),
    }
    problems = [
        f"--init-from {given}: lora.{name} is {mine!r} and the adapter's is {its!r}: write "
        f"lora.{name}={json.dumps(its)}"
        for name, (mine, its) in pairs.items()
        if mine != its
    ]
    problems += _other_base(files, given, config)
    if problems:
        raise AdapterError(problems)
    check_base(directory, resolve_directory(config.model.model_name_or_path))
    with torch.device("meta"):
        empty = add_lora(new_model(plan.config), ours)
    check_match(empty, files.tensors, files.path)


def _other_base(files: AdapterFiles, given: str, config: RunConfig) -> list[str]:
    """Say so where the adapter names a base that is here and is not the run's."""
    named, base = files.config.base_model_name_or_path, config.model.model_name_or_path
    if not named or not Path(named).is_dir() or Path(named).resolve() == Path(base).resolve():
        return []
    theirs, ours = model_files(Path(named)), model_files(Path(base))
    weights = [n for n in theirs.keys() | ours.keys() if n.endswith((".safetensors", ".bin"))]
    if all(theirs.get(name) == ours.get(name) for name in weights):
        return []
    return [
        f"--init-from {given}: the adapter was trained on {named}, whose weights are not those of "
        f"{base}: write model.model_name_or_path={named}"
    ]


def starting_model(
    config: RunConfig, planned: RunPlan, ranks: Ranks, say: Say, weights: Weights | None
) -> Any:
    """Return the model of a run, with the weights that `--init-from` named put in; a collective.

    Raises:
        CheckpointError: the weights have other names or shapes than the model.
    """
    model = prepare_model(
        config, planned.model, planned.precision, ranks, say, planned.engine_config
    )
    if weights is None:
        return model
    for line in weights.skipped:
        say(f"--init-from {weights.given}: {line}")
    if weights.adapter is not None and ranks.is_main:
        checked = check_base(weights.place, resolve_directory(config.model.model_name_or_path))
        if checked.note is not None:
            say(f"--init-from {weights.given}: {checked.note}")
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad or weights.whole}
    names = {name: saved_name(name) if weights.adapter else name for name in trained}
    shapes = {name: tuple(full_shape(parameter)) for name, parameter in trained.items()}
    stored: dict[str, torch.Tensor] = {}

    def read() -> None:
        stored.update(_stored(weights))
        wrong = [name for name in trained if _shape(stored, names[name]) != shapes[name]]
        if wrong:
            raise CheckpointError(
                f"--init-from {weights.given}: {len(wrong)} of {len(trained)} tensors are missing "
                f"or of another shape, such as {wrong[0]}: {_shape(stored, names[wrong[0]])}, the "
                f"model needs {shapes[wrong[0]]}: it is another model"
            )

    ranks.on_main(read)
    for name, parameter in trained.items():
        assign_from_main(parameter, stored.get(names[name]), ranks)
    say(f"weights from {weights.place} (--init-from): a new optimizer, step 0")
    return model


def _stored(weights: Weights) -> dict[str, torch.Tensor]:
    if weights.adapter is not None:
        return dict(weights.adapter.tensors)
    assert weights.whole is not None
    return dict(open_weights(weights.whole).named_parameters())


def _shape(stored: dict[str, torch.Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(stored[name].shape) if name in stored else None


def note_weights(directory: Path, weights: Weights | None) -> None:
    """Write what a run began from, for the record and for beginning again."""
    if weights is None:
        return
    kind = "adapter" if weights.adapter else "weights"
    values = {"given": weights.given, kind: str(weights.place)}
    write_json(directory / NOTE, values | {"files": model_files(weights.place)})
