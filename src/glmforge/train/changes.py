"""What is no longer as it was when a run began, and what that does to the rest of it.

A resumed run with other settings, data or base weights is another run. Each difference is shown
with both values and its effect; the run goes on only with ``--allow-changes``, which notes them in
``changes.jsonl``. What the checkpoint itself cannot carry (ranks of adapters, ZeRO stage, number
format) is refused always. Settings that change neither weights nor data order are free.
"""

import contextlib
import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glmforge.config import RunConfig, load_config_file
from glmforge.errors import CheckpointError
from glmforge.plan.batch import BatchSizes
from glmforge.train.schedule import rate_at

# They change neither weights nor the order of the data.
_FREE = frozenset(
    """launch training.output_dir training.logging_steps training.save_steps training.eval_steps
    training.save_total_limit training.async_save training.report_to generation
    training.per_device_train_batch_size training.per_device_eval_batch_size
    training.gradient_accumulation_steps data.prepared_dir data.preprocessing_num_workers
    deepspeed""".split()
)
# Keys of the whole DeepSpeed config that only say how the rows of a step are shared.
_SHARING = frozenset(
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps".split()
)
# The checkpoint's tensors are made for them.
_FIXED = frozenset(
    """method freeze lora.r lora.target_modules lora.use_dora lora.loraplus_lr_ratio
    training.precision training.optim model.from_scratch
    deepspeed.zero_optimization.stage deepspeed.zero_optimization.offload_optimizer
    deepspeed.zero_optimization.offload_param deepspeed.fp16.enabled
    deepspeed.bf16.enabled""".split()
)


NOTES = "changes.jsonl"
_ROWS = {"data.train": "train", "data.validation": "validation"}
"""Settings that only say where rows are: the same rows at another place are no change."""
DATA = "the training data, tokenizer or template"
VALIDATION = "the validation data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between a run as it began and as it would go on."""

    what: str
    """A setting's dotted name, or what else differs."""
    before: str
    after: str
    effect: str = ""
    """What it does to the rest of the run, or how to avoid it."""
    fixed: bool = False
    """Whether the checkpoint cannot carry it."""

    def sentence(self) -> str:
        """Show both values and the effect."""
        effect = f" ({self.effect})" if self.effect else ""
        return f"{self.what} was {self.before} when the run began and is {self.after} now{effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What the run is now; its past lies in files."""

    config: RunConfig
    manifest: Mapping[str, Any]
    """As ``rundir.data_manifest`` returned it."""
    sizes: BatchSizes
    engine_config: Mapping[str, Any]
    """The whole DeepSpeed config."""
    total_steps: int
    step: int
    """Updates that are done."""


def changed_settings(past: Path, config: RunConfig) -> list[Change]:
    """List the settings that differ from those in `past` (``past.past_of``), and matter.

    config.yaml is read by this program's schema, so that settings which are newer than
    the run have their defaults on both sides.

    Raises:
        ConfigError: config.yaml holds settings that this program does not know.
    """
    old = load_config_file(past / "config.yaml").model_dump(mode="json")
    return _differences(old, config.model_dump(mode="json"), free=_FREE)


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], *, free: frozenset[str]
) -> list[Change]:
    old, new = _flat(before), _flat(after)
    return [
        Change(
            what=key, before=repr(old.get(key)), after=repr(new.get(key)), fixed=_in(key, _FIXED)
        )
        for key in sorted(old.keys() | new.keys())
        if not _in(key, free) and old.get(key) != new.get(key)
    ]


def all_changes(past: Path, now: Present) -> list[Change]:
    """List everything that differs: settings, rows a step, data, base weights, learning rates."""
    written = json.loads((past / "data.json").read_text(encoding="utf-8"))
    found = changed_settings(past, now.config)
    moved = [change for change in found if change.what == "model.model_name_or_path"]
    files = (written.get("model"), now.manifest.get("model"))
    if moved and files[0] is not None and files[0] == files[1]:
        found.remove(moved[0])  # the same files at another place
    kept = now.manifest.get("hashes", {})
    same = {part for part, rows in written.get("hashes", {}).items() if rows == kept.get(part)}
    found = [change for change in found if _ROWS.get(change.what) not in same]
    found += _changed_files(*files)
    engine = json.loads((past / "deepspeed.json").read_text(encoding="utf-8"))
    found += _changed_rows(int(engine["train_batch_size"]), now.sizes)
    found += _differences(
        {"deepspeed": {k: v for k, v in engine.items() if k not in _SHARING}},
        {"deepspeed": {k: v for k, v in now.engine_config.items() if k not in _SHARING}},
        free=frozenset(),
    )
    found += _changed_data(past, written, now.manifest)
    found += _changed_schedule(past, written.get("total_steps"), now)
    return found


def _changed_data(past: Path, written: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Compare the rows, each part by its own hash.

    An older data.json has one hash of both parts: validation is compared by its files there.
    """
    of_parts = "hashes" in written
    pairs = {
        VALIDATION: [_rows("validation", each, own_hash=of_parts) for each in (written, now)],
        DATA: [_rows("train", each, own_hash=of_parts) for each in (written, now)],
    }
    effects = {
        VALIDATION: "evaluations are not comparable with the earlier ones",
        DATA: f"other rows from here on; {past}/data.json names the files",
    }
    return [
        Change(what=what, before=before[1], after=after[1], effect=effects[what])
        for what, (before, after) in pairs.items()
        if before[0] != after[0]
    ]


def _rows(part: str, manifest: Mapping[str, Any], *, own_hash: bool) -> tuple[Any, str]:
    """Return what tells the rows of a part from others, and what people are shown of it."""
    count = manifest["examples"].get(part, 0)
    if own_hash:
        found = manifest["hashes"].get(part)
        return found, f"{count} examples (hash {found[:12]})" if found else "absent"
    if part == "train":
        return manifest["hash"], f"{count} examples (hash {manifest['hash'][:12]})"
    sums = [file.get("sha256") for file in manifest["files"].get(part, ())]
    shown = ", ".join(str(each)[:12] for each in sums)
    return sums, f"{len(sums)} file(s) (sha256 {shown})" if sums else "absent"


def _changed_files(
    before: Mapping[str, str] | None, after: Mapping[str, str] | None
) -> list[Change]:
    """The model's files, by size and the hash of their ends."""
    if before is None or after is None:
        return []
    names = [n for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    if not names:
        return []
    return [
        Change(
            what="the model's files",
            before=_listed(names, before),
            after=_listed(names, after),
            effect="an adapter is trained on a base that it was not trained on before",
        )
    ]


def _listed(names: Sequence[str], files: Mapping[str, str]) -> str:
    shown = ", ".join(f"{name} {files.get(name, 'absent')}" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changed_rows(before: int, sizes: BatchSizes) -> list[Change]:
    """The data order is a function of the rows a step."""
    if before == sizes.global_batch:
        return []
    per_step = sizes.micro_batch * sizes.world_size
    if before % per_step == 0:
        remedy = f"write training.gradient_accumulation_steps={before // per_step}"
    else:
        fitting = [n for n in range(1, before + 1) if before % (n * sizes.world_size) == 0]
        remedy = (
            f"with {sizes.world_size} process(es) use training.per_device_train_batch_size of "
            f"{', '.join(map(str, fitting))}"
            if fitting
            else f"{sizes.world_size} process(es) cannot share {before} rows: use another number"
        )
    return [
        Change(
            what="the number of rows a step",
            before=str(before),
            after=f"{sizes.global_batch} ({sizes.sentence()})",
            effect=f"the order of the data would change; {remedy}",
        )
    ]


def _changed_schedule(past: Path, steps_before: int | None, now: Present) -> list[Change]:
    """Show the jump of the learning rate, where the rest of its course is another."""
    if steps_before is None:
        return []
    old = load_config_file(past / "config.yaml").training
    done = (now.step, now.step + 1)
    before = [rate_at(old, steps_before, each) for each in done]
    after = [rate_at(now.config.training, now.total_steps, each) for each in done]
    jumps = [
        f"after {each} steps {one:.3e} -> {other:.3e}"
        for each, one, other in zip(done, before, after, strict=True)
    ]
    if steps_before == now.total_steps:
        differing = [n for n in range(len(done)) if before[n] != after[n]]
        return [
            Change(
                what=f"the learning rate after {done[n]} steps",
                before=f"{before[n]:.3e}",
                after=f"{after[n]:.3e}",
                effect=f"{', '.join(jumps)}; the run has {steps_before} steps as before",
            )
            for n in differing[:1]
        ]
    return [
        Change(
            what="the course of the learning rate",
            before=f"over {steps_before} steps",
            after=f"over {now.total_steps}",
            effect=f"{steps_before} -> {now.total_steps} steps; learning rate {', '.join(jumps)}",
        )
    ]


def check_changes(
    directory: Path, changes: Sequence[Change], *, allowed: bool, checkpoint: Path | None = None
) -> None:
    """Refuse changes that were not allowed, and those that cannot be.

    Args:
        directory: of the run.
        changes: found.
        allowed: whether the user has allowed changes.
        checkpoint: that the run would go on from.

    Raises:
        CheckpointError: every one of them, with the ways to go on.
    """
    fixed = [change for change in changes if change.fixed]
    if fixed or (changes and not allowed):
        shown = fixed if allowed else changes
        go_on = (
            "set it back, go on with the change by --allow-changes, or start another run in a "
            "new training.output_dir"
        )
        if fixed:
            ways = _other_run(fixed, checkpoint or directory)
            go_on = f"the checkpoints cannot carry this: set it back, or {ways}"
        raise CheckpointError([*(change.sentence() for change in shown), f"{directory}: {go_on}"])


def _other_run(fixed: Sequence[Change], source: Path) -> str:
    """Say how another run goes on with the weights, whatever shape its own trained ones have."""
    names = [change.what for change in fixed]
    if not any(name == "method" or name.startswith("lora.") for name in names):
        return f"start another run from its weights with --init-from {source}"
    was = next((change.before for change in fixed if change.what == "method"), "'lora'")
    merge = " --merge" if was in ("'lora'", "'qlora'") else ""
    return (
        f"start another run on its weights: glmforge export {source} OUT{merge}, then "
        "model.model_name_or_path=OUT in a new training.output_dir"
    )


def noted_changes(directory: Path, step: int) -> set[tuple[str, str]]:
    """Return (what, after) of the changes that were allowed at a step before.

    The run ended before its next checkpoint, and goes on from the same one: nobody has to allow
    the same again.
    """
    try:
        lines = (directory / NOTES).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return set()
    found = set()
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            if row["after_step"] == step:
                found.add((row["what"], row["after"]))
    return found


def note_changes(directory: Path, changes: Sequence[Change], step: int) -> None:
    """Append changes that are new to ``changes.jsonl``, with the step after which they hold."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = noted_changes(directory, step)
    with open(directory / NOTES, "a", encoding="utf-8") as file:
        for change in changes:
            if (change.what, change.after) in known:
                continue
            row = {"after_step": step, "time": now} | asdict(change)
            row.pop("fixed")
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _in(key: str, names: frozenset[str]) -> bool:
    """Whether a dotted setting, or a section it lies in, is among `names`."""
    parts = key.split(".")
    return any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1))


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name}."))
        else:
            flat[name] = value
    return flat
