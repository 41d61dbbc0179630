"""The data of a run: prepared sets opened, split, mixed, packed; nothing of it depends on a GPU.

``prepare_sets`` makes (or opens) one prepared set for each source: rank 0 does it on all cores
while the others wait and then open it; the first rank of a machine that does not see the directory
does it there again. Split and weights choose records by number; packing asks only for lengths. A
million dialogues therefore cost each rank a few dozen megabytes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data import (
    Batch,
    BatchPlan,
    Example,
    PackedRows,
    eval_batches,
    pack,
    unpacked,
    write_skipped,
)
from glmforge.data.examples import Counts
from glmforge.data.files import directory_lines, refuse_shared
from glmforge.data.prepared import PreparedSet
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.selection import Joined
from glmforge.data.splitting import Split, hold_out, mix
from glmforge.data.unread import unread_line
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import ConfigError, DataError
from glmforge.models import family_of, load_config, load_tokenizer
from glmforge.plan.batch import BatchSizes
from glmforge.train.preparation import PreparationBar, TokenizerOf, worker_count
from glmforge.train.prompts import run_prompts
from glmforge.train.samples import SamplePrompt

Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Encoded examples and the rows made of them."""

    train: Sequence[Example]
    train_rows: PackedRows
    validation: Sequence[Example]
    validation_rows: PackedRows
    prompts: Sequence[SamplePrompt]
    sets: Mapping[str, Sequence[PreparedSet]]
    """The prepared sets behind them, by part ("train", "validation")."""
    packed: bool
    pad_id: int
    pad_to_multiple_of: int
    group_by_length: bool

    def plan(self, sizes: BatchSizes, seed: int) -> BatchPlan:
        """Return the order of rows for a global batch."""
        return BatchPlan(
            self.train,
            self.train_rows,
            global_batch=sizes.global_batch,
            seed=seed,
            packed=self.packed,
            pad_id=self.pad_id,
            pad_to_multiple_of=self.pad_to_multiple_of,
            order="grouped" if self.group_by_length else "shuffled",
        )

    @property
    def files(self) -> dict[str, list[dict[str, Any]]]:
        """The files read, by part: path, sha256 (None for a hub's data)."""
        return {
            part: [file for found in sets for file in found.manifest["files"]]
            for part, sets in self.sets.items()
        }

    def examples(self) -> dict[str, Sequence[Example]]:
        """Return the encoded examples by part ("train", "validation")."""
        found = {"train": self.train}
        return found | ({"validation": self.validation} if len(self.validation) else {})

    def eval_batches(self, ranks: Ranks, micro_batch: int) -> list[Batch]:
        """Return this rank's share of the validation rows."""
        return eval_batches(
            self.validation,
            self.validation_rows,
            rank=ranks.rank,
            world_size=ranks.world_size,
            micro_batch=micro_batch,
            packed=self.packed,
            pad_id=self.pad_id,
        )

    def write_skipped(self, directory: Path, say: Say) -> None:
        """Write skipped.jsonl where records were left out: which, and why."""
        sets = [found for part in self.sets.values() for found in part]
        number = sum(found.counts.left_out for found in sets)
        files = sum(found.counts.faulty_files for found in sets)
        if number or files:
            path = directory / "skipped.jsonl"
            write_skipped((problem for found in sets for problem in found.problems()), path)
            beside = f" and {files:,} files have faults" if files else ""
            say(f"data: {number:,} records were left out{beside}, each with its reason in {path}")


def prepare_data(
    config: RunConfig, tokenizer: Any, ranks: Ranks, say: Say, *, packed: bool
) -> TrainingData:
    """Read, check, encode, split, mix and pack the dialogues of `config`.

    Raises:
        DataError: files or records that break a rule, all at once; the same on every rank.
    """
    settings, seed = config.data, config.training.seed
    sets = prepare_sets(config, tokenizer, ranks, say)
    sources = sources_of(settings.train)
    train: Sequence[Sequence[Example]] = sets["train"]
    validation: Sequence[Example] = Joined(sets["validation"]) if sets["validation"] else ()
    split: Split | None = None
    if settings.validation_size is not None:
        split = hold_out(train, settings.validation_size, seed=seed)
        train, validation = split.train, split.validation
        records = int(split.validation.facts.starts.sum())
        say(f"validation: {records:,} records of data.train held out ({len(validation):,} rows)")
        if split.note:
            say(f"validation: {split.note}")
    mixed = mix([(part, weight) for part, (_, weight) in zip(train, sources)], seed=seed)
    if any(weight != 1 for _, weight in sources):
        said = ", ".join(f"{path} x {weight:g}" for path, weight in sources)
        say(f"train: {len(mixed):,} rows after weights ({said})")

    def rows_of(found: Sequence[Example]) -> PackedRows:
        if not packed:
            return unpacked(len(found))
        lengths = found.lengths if len(found) else ()  # type: ignore[attr-defined]
        return pack(lengths, settings.max_length, seed)

    return TrainingData(
        train=mixed,
        train_rows=rows_of(mixed),
        validation=validation,
        validation_rows=rows_of(validation),
        prompts=from_main(ranks, lambda: run_prompts(config, tokenizer, split)),
        sets=sets,
        packed=packed,
        pad_id=tokenizer.pad_token_id or 0,
        pad_to_multiple_of=settings.pad_to_multiple_of,
        group_by_length=settings.group_by_length,
    )


def prepare_sets(
    config: RunConfig, tokenizer: Any, ranks: Ranks, say: Say, *, rebuild: bool = False
) -> dict[str, list[PreparedSet]]:
    """Make the prepared set of every source, or open those that are there.

    A damaged set is refused, or made anew where ``rebuild`` says so.

    Raises:
        DataError: files or records that break a rule, all sources at once; the same on every rank.
    """

    def make() -> dict[str, list[PreparedSet]]:
        problems: list[str] = []
        sets: dict[str, list[PreparedSet]] = {"train": [], "validation": []}
        try:
            refuse_shared(
                *([path for path, _ in sources_of(getattr(config.data, part))] for part in sets)
            )
        except DataError as error:
            problems += error.problems
        for part, found in sets.items():
            for path, _ in sources_of(getattr(config.data, part)):
                try:
                    found.append(_prepared(path, config, tokenizer, say, rebuild))
                except DataError as error:
                    problems += error.problems
        if problems:
            raise DataError(list(dict.fromkeys(problems)))
        return sets

    sets = in_turns(ranks, make)
    hashes = [found.hash for part in sets.values() for found in part]
    if ranks.gather_objects(hashes) != [hashes] * ranks.world_size:
        raise DataError(
            "the machines of this run read different data or tokenizers under the same paths: give "
            "every machine the same files"
        )
    for line in _of_files(config, sets):
        say(line)
    for part, found in sets.items():
        if found:
            counts = Counts()
            for one in found:
                counts.add(one.counts)
            say(f"{part}: {counts}")
            if counts.unread:
                say(f"{part}: {unread_line(counts.unread)}")
    return sets


def _of_files(config: RunConfig, sets: Mapping[str, Sequence[PreparedSet]]) -> Iterator[str]:
    """What people should know of the files: which of them a directory gave."""
    for part in sets:
        for path, _ in sources_of(getattr(config.data, part)):
            for line in directory_lines(Path(path)):
                yield f"{part}: {line}"


def prepare_alone(config: RunConfig, *, rebuild: bool = True) -> list[Path]:
    """Make the prepared sets of a run in this process, and return their directories.

    A set that is there and damaged is made anew, with a line that says so, unless ``rebuild``
    is false.

    Raises:
        ConfigError: a path that does not exist, rows longer than the model's positions, or packing
            that its family cannot.
        DataError: files or records that break a rule.
    """
    check_max_length(config, load_config(config.model.model_name_or_path))
    is_packed(config, lambda line: None)
    tokenizer = load_tokenizer(config.model.model_name_or_path)
    alone = Ranks(world=World(), device=torch.device("cpu"))
    sets = prepare_sets(config, tokenizer, alone, stderr_line, rebuild=rebuild)
    return [found.directory for part in sets.values() for found in part]


def check_max_length(config: RunConfig, model_config: Any) -> None:
    """Refuse rows that are longer than the model has positions.

    Raises:
        ConfigError: they are.
    """
    directory = config.model.model_name_or_path
    positions = getattr(model_config, "max_position_embeddings", None)
    if positions is not None and config.data.max_length > positions:
        raise ConfigError(
            f"data.max_length is {config.data.max_length} tokens, but {directory} has "
            f"{positions} positions: write data.max_length={positions} or less"
        )


def stderr_line(line: str) -> None:
    """Print a line for people: progress goes to stderr."""
    print(line, file=sys.stderr, flush=True)


def _prepared(path: str, config: RunConfig, tokenizer: Any, say: Say, rebuild: bool) -> PreparedSet:
    data = config.data
    settings = PrepareSettings(
        max_length=data.max_length,
        labels=data.labels,
        truncation=data.truncation,
        columns=data.columns,
        repairs=tuple(data.repair),
    )
    with PreparationBar(path, say) as bar:
        return prepare(
            path,
            TokenizerOf(config.model.model_name_or_path, tokenizer),
            prepared_dir(config),
            settings,
            beside=[name for part in (data.train, data.validation) for name, _ in sources_of(part)],
            workers=worker_count(data.preprocessing_num_workers),
            on_error=data.on_error,
            rebuild=rebuild,
            progress=bar.advance,
            say=say,
        )


def prepared_dir(config: RunConfig) -> Path:
    """The directory of the prepared sets of a run."""
    if config.data.prepared_dir is not None:
        return Path(config.data.prepared_dir)
    return Path(config.training.output_dir).absolute().parent / ".prepared"


def is_packed(config: RunConfig, say: Say) -> bool:
    """Say whether rows are packed: as the config says, and where the model family can.

    Raises:
        ConfigError: packing is asked for and the family cannot.
    """
    family = family_of(load_config(config.model.model_name_or_path))
    reason = f"{family.title} has no attention that keeps the documents of a row apart"
    if config.data.packing is True and not family.packing:
        raise ConfigError(
            f"data.packing is true, but {reason}: write data.packing: auto (or false)"
        )
    if config.data.packing == "auto" and not family.packing:
        say(f"packing is off: {reason}")
    return config.data.packing is not False and family.packing


def in_turns(ranks: Ranks, make: Callable[[], T]) -> T:
    """Let rank 0 make something, then the first rank of every other machine, then all others.

    Raises:
        DataError: what one rank raised, on every rank.
    """
    made: list[T] = []
    for my_turn in (ranks.is_main, ranks.world.local_rank == 0, True):
        problems: Sequence[str] = ()
        if my_turn and not made:
            try:
                made.append(make())
            except DataError as error:
                problems = error.problems
        told = next(filter(None, ranks.gather_objects(problems)), None)
        if told:
            raise DataError(told)
    return made[0]


def from_main(ranks: Ranks, compute: Callable[[], T]) -> T:
    """Give every rank what rank 0 computes, or the DataError that it raises there."""
    outcome: tuple[T | None, Sequence[str]] = (None, ())
    if ranks.is_main:
        try:
            outcome = (compute(), ())
        except DataError as error:
            outcome = (None, error.problems)
    value, problems = ranks.agree(outcome)
    if problems:
        raise DataError(problems)
    return value
