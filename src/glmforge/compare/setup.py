"""What is compared, and everything about it that can be known or refused before weights are read.

A `Request` is what the user asks; `set_up` makes a `Setup` of it: models found, prompts encoded
once for all of them, stop ids agreed on, tokenizers held against each other, validation rows read.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from glmforge.compare.answers import Decoding, Work
from glmforge.compare.checks import Format
from glmforge.compare.judge import Judge
from glmforge.compare.loss import ValidationRows, validation_rows
from glmforge.compare.positions import positions_of, refuse_too_long
from glmforge.compare.prompts import Prompt, general_prompts, read_prompts, without_references
from glmforge.compare.seen import mark_seen
from glmforge.compare.subjects import Subject, find_subjects
from glmforge.data import generation_prompt
from glmforge.distributed.collectives import Ranks
from glmforge.errors import DataError, UsageError
from glmforge.models import load_config, load_tokenizer
from glmforge.models.generation import stop_ids
from glmforge.models.stops import compare_stops, configured_stops

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compare and how.

    ``references``: compare with the file's reference answers (True: there must be some; None:
    where there are). ``kept_dir`` keeps answers, losses and judgments as they come.
    ``max_length`` bounds validation rows (tokens) where no run says it.
    """

    base: Path
    tuned: Sequence[Path]
    prompts: Path
    kept_dir: Path
    ways: Sequence[Decoding]
    references: bool | None = None
    validation: Sequence[str] = ()
    general: bool = True
    max_new_tokens: int = 256
    batch_size: int = 8
    max_length: int = 2048
    dtype: str | None = None
    form: Format | None = None
    judge: Judge | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything known before weights are read.

    The user's prompts come before those of the general set; the general set is asked greedily
    only, with work of its own.
    """

    subjects: Sequence[Subject]
    tokenizer: Any
    prompts: Sequence[Prompt]
    work: Work
    general_work: Work
    rows: ValidationRows | None
    notes: Sequence[str]


def set_up(request: Request, dtype: str, ranks: Ranks, say: Say) -> Setup:
    """Find and check everything that a comparison needs.

    Raises:
        GlmForgeError: a model, a prompt file or validation data cannot be used, or a model was not
            made from the base.
    """
    subjects = find_subjects(request.base, request.tuned, dtype)
    tokenizer = load_tokenizer(request.base)
    runs = [subject.run for subject in subjects if subject.run is not None]
    notes: list[str] = []

    def heed(note: str) -> None:
        say(note)
        notes.append(note)

    def prompts_of() -> list[Prompt]:
        prompts = _prompts(request)
        return mark_seen(prompts, runs, tokenizer, heed)

    prompts = ranks.on_main(prompts_of)
    prompt_ids = _encoded(prompts, tokenizer)
    positions = positions_of(_directory(subject) for subject in subjects)
    refuse_too_long(positions, prompts, prompt_ids, request.max_new_tokens)
    for subject in subjects:
        for note in subject.notes:
            heed(note)
        directory = _directory(subject)
        if subject.source is not None and subject.source.adapter is not None:
            continue
        for note in compare_stops(directory, tokenizer):
            heed(note)
        if directory != request.base:
            _check_same_ids(subject, directory, prompts, prompt_ids)
    work = Work(
        prompt_ids=prompt_ids[: sum(prompt.group == "asked" for prompt in prompts)],
        stops=_stops(request.base, tokenizer),
        max_new_tokens=request.max_new_tokens,
        batch_size=request.batch_size,
    )
    general = dataclasses.replace(work, prompt_ids=prompt_ids[len(work.prompt_ids) :])
    rows = validation_rows(
        request.validation,
        runs,
        tokenizer,
        max_length=min(request.max_length, positions or request.max_length),
        rows_per_batch=request.batch_size,
        say=heed,
    )
    return Setup(
        subjects=subjects,
        tokenizer=tokenizer,
        prompts=prompts,
        work=work,
        general_work=general,
        rows=rows,
        notes=notes,
    )


def _directory(subject: Subject) -> Path:
    """Where a model's config and tokenizer are."""
    return subject.path if subject.source is None else subject.source.model


def _prompts(request: Request) -> list[Prompt]:
    asked = read_prompts(request.prompts)
    if request.references and all(prompt.reference is None for prompt in asked):
        raise UsageError(
            f"--references: no prompt of {request.prompts} has a reference answer; give dialogues "
            'with answers, or {"prompt": ..., "reference": ...}'
        )
    if request.references is False:
        asked = without_references(asked)
    if not request.general:
        return asked
    general = general_prompts()
    taken = {prompt.id for prompt in general}
    problems = [
        f"{prompt.source}: the id {prompt.id!r} is one of the general set's; choose another"
        for prompt in asked
        if prompt.id in taken
    ]
    if problems:
        raise DataError(problems)
    return [*asked, *general]


def _encoded(prompts: Sequence[Prompt], tokenizer: Any) -> list[list[int]]:
    return [generation_prompt(p.messages, tokenizer, p.tools or None) for p in prompts]


def _stops(base: Path, tokenizer: Any) -> list[int]:
    """The ids that end an answer: the family's and the base's own, for every model."""
    config = load_config(base)
    own = configured_stops(base) or getattr(config, "eos_token_id", None)
    model = SimpleNamespace(config=config, generation_config=SimpleNamespace(eos_token_id=own))
    return stop_ids(model, tokenizer)


def _check_same_ids(
    subject: Subject, directory: Path, prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]
) -> None:
    """Refuse a model whose own tokenizer makes other ids of the prompts.

    Raises:
        UsageError: names the model and the first prompt.
    """
    own = load_tokenizer(directory)
    for prompt, wanted, found in zip(prompts, ids, _encoded(prompts, own), strict=True):
        if list(found) != list(wanted):
            raise UsageError(
                f"{subject.path}: its tokenizer makes other ids of prompt {prompt.id!r} "
                f"({len(found)} tokens) than the base's ({len(wanted)}): it was not made from this "
                "base, or its tokenizer or chat template was changed. Compare models of one base"
            )
