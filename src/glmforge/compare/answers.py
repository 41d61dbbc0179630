"""Answers of every model to every prompt: batched, shared out over ranks, kept as they come.

A batch is the unit of everything: which prompts make it depends on the prompts and the batch size
alone, so that an answer does not depend on how many ranks there are or where a comparison was
interrupted. Each finished batch is one line of a file, found again by a hash of all that it
depends on; nothing is generated twice.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glmforge.distributed.collectives import Ranks
from glmforge.errors import ModelError
from glmforge.models.batch_generation import Sampling, answer_batch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """A way to decode, the same for every model: its name in the report, and its settings."""

    name: str
    sampling: Sampling

    @property
    def is_drawn(self) -> bool:
        """Whether tokens are drawn with a seed."""
        return self.sampling.seed is not None


def decodings(
    *, beams: int | None, seeds: int, temperature: float, repetition_penalty: float, top_p: float
) -> list[Decoding]:
    """List the ways to decode: greedy always, beams and drawn answers as asked."""
    found = [Decoding(name="greedy", sampling=Sampling())]
    if beams is not None:
        found.append(Decoding(name=f"beam-{beams}", sampling=Sampling(num_beams=beams)))
    for seed in range(1, seeds + 1):
        drawn = Sampling(
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
        )
        found.append(Decoding(name=f"sample-{seed}", sampling=drawn))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """An answer as it was given: its text, its length in tokens, "stop" or "length"."""

    text: str
    tokens: int
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is asked: prompt ids in order, and the settings that all models share."""

    prompt_ids: Sequence[Sequence[int]]
    stops: Sequence[int]
    max_new_tokens: int
    batch_size: int

    def batches(self) -> list[list[int]]:
        """Numbers of the prompts of each batch; prompts of like lengths go together."""
        order = sorted(range(len(self.prompt_ids)), key=lambda n: (-len(self.prompt_ids[n]), n))
        starts = range(0, len(order), self.batch_size)
        return [order[start : start + self.batch_size] for start in starts]


class Kept:
    """The file of finished batches of one rank, and those of all ranks that were there before."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._directory = directory
        self._path = directory / f"rank-{rank}.jsonl"
        self._rows: dict[str, list[Given]] = {}

    def load(self) -> None:
        """Read what earlier runs have left; a line torn by an interruption is passed over."""
        for path in sorted(self._directory.glob("rank-*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                self._rows[row["key"]] = [Given(**answer) for answer in row["answers"]]

    def known(self) -> dict[str, list[Given]]:
        """Every finished batch by its key."""
        return self._rows

    def add(self, key: str, answers: Sequence[Given], about: Mapping[str, Any]) -> None:
        """Write a finished batch down."""
        self._rows[key] = list(answers)
        self._directory.mkdir(parents=True, exist_ok=True)
        row = {"key": key, **about, "answers": [asdict(answer) for answer in answers]}
        with self._path.open("a", encoding="utf-8") as file:
            # A line of its own even after a torn one.
            file.write("\n" + json.dumps(row, ensure_ascii=True) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A model that is asked: its name, a hash of its weights, and how to get at it.

    ``model`` is called only where an answer is missing; ``tokenizer`` is that of all models.
    """

    name: str
    identity: str
    model: Callable[[], Any]
    tokenizer: Any


def ask(
    who: Asked, work: Work, ways: Sequence[Decoding], kept: Kept, ranks: Ranks, say: Say
) -> dict[str, list[Given]]:
    """Ask one model everything; return its answers by decoding, in the order of the prompts.

    Args:
        who: the model.
        work: prompts and settings.
        ways: how to decode.
        kept: finished batches, loaded; the same on every rank.
        ranks: batches are dealt to them in turn.
        say: prints a line of progress.

    Raises:
        ModelError: the model's logits are NaN.
    """
    batches = work.batches()
    units = [
        (way, number, _key(who.identity, work, way, number))
        for way in ways
        for number in range(len(batches))
    ]
    known = ranks.agree(kept.known())
    missing = [unit for unit in units if unit[2] not in known]
    if missing:
        kept_before = f" ({len(units) - len(missing)} kept)" if len(missing) < len(units) else ""
        say(f"{who.name}: {len(missing)} batches of up to {work.batch_size} prompts{kept_before}")
    mine = missing[ranks.rank :: ranks.world_size]
    made: dict[str, list[Given]] = {}
    for way, number, key in mine:
        try:
            answers = answer_batch(
                who.model(),
                who.tokenizer,
                [work.prompt_ids[place] for place in batches[number]],
                stops=work.stops,
                max_new_tokens=work.max_new_tokens,
                sampling=_for_batch(way.sampling, number),
            )
        except ModelError as error:
            raise ModelError(f"{who.name}: {error}") from error
        made[key] = [
            Given(text=found.text, tokens=len(found.token_ids), stop_reason=found.stop_reason)
            for found in answers
        ]
        kept.add(key, made[key], {"model": who.name, "decoding": way.name, "batch": number})
    for part in ranks.gather_objects(made):
        known = {**known, **part}
    answers_by_way: dict[str, list[Given | None]] = {
        way.name: [None] * len(work.prompt_ids) for way in ways
    }
    for way, number, key in units:
        for place, answer in zip(batches[number], known[key], strict=True):
            answers_by_way[way.name][place] = answer
    return {way: [item for item in row if item is not None] for way, row in answers_by_way.items()}


def _for_batch(sampling: Sampling, number: int) -> Sampling:
    """The same settings, with a seed of its own for each batch."""
    if sampling.seed is None:
        return sampling
    values = asdict(sampling) | {"seed": sampling.seed * 100_003 + number}
    return Sampling(**values)


def _key(identity: str, work: Work, way: Decoding, number: int) -> str:
    facts = [
        identity,
        [list(work.prompt_ids[place]) for place in work.batches()[number]],
        list(work.stops),
        work.max_new_tokens,
        asdict(_for_batch(way.sampling, number)),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
