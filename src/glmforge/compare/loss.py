"""Loss on validation dialogues: the same rows for every model, nats per trained token.

The rows are those of `--validation`, or of the validation files of a tuned model's run. Each is
read once over all ranks; the loss is the models' own sum, as in training. `compare` keeps it row by
row, for an interval around a difference.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.compare.run_data import validation_of
from glmforge.config import RunConfig
from glmforge.data import Example, eval_batches, load_examples, unpacked
from glmforge.data.selection import hash_of
from glmforge.distributed.collectives import Ranks
from glmforge.errors import DataError, ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRows:
    """Encoded validation dialogues; ``files`` is empty where they were held out of training."""

    files: tuple[str, ...]
    origin: str
    examples: Sequence[Example]
    rows_per_batch: int


def validation_rows(
    files: Sequence[str],
    runs: Sequence[RunConfig],
    tokenizer: Any,
    *,
    max_length: int,
    rows_per_batch: int,
    say: Callable[[str], None] | None = None,
) -> ValidationRows | None:
    """Read validation dialogues; None where nothing names any.

    Args:
        files: what the user names, encoded as the first run encodes; without them the validation
            data of the first run that has some.
        runs: of the tuned models.
        tokenizer: of all models.
        max_length: longest row in tokens, where no run says it.
        rows_per_batch: rows that go through a model together.
        say: is told where a run's data cannot be read any more; None makes that an error.

    Raises:
        DataError: a file cannot be read, or records are faulty.
    """
    if files:
        examples = _named(files, runs[0] if runs else None, tokenizer, max_length)
        return ValidationRows(
            files=tuple(files),
            origin=", ".join(files),
            examples=examples,
            rows_per_batch=rows_per_batch,
        )
    for run in runs:
        try:
            found = validation_of(run, tokenizer)
        except DataError as error:
            if say is None:
                raise
            say(f"no validation loss: the run's data cannot be read ({error}); name --validation")
            return None
        if found is not None:
            named, rows = found
            return ValidationRows(
                files=tuple(named),
                origin=", ".join(named) or "held out of the training data",
                examples=rows,
                rows_per_batch=rows_per_batch,
            )
    return None


def _named(
    files: Sequence[str], run: RunConfig | None, tokenizer: Any, max_length: int
) -> Sequence[Example]:
    """Rows of the user's own files: the run's columns and repairs are of other files."""
    if run is None:
        return load_examples(list(files), tokenizer, max_length=max_length).examples
    return load_examples(
        list(files),
        tokenizer,
        max_length=run.data.max_length,
        labels=run.data.labels,
        truncation=run.data.truncation,
        on_error=run.data.on_error,
    ).examples


def kept_losses(path: Path, identity: str, rows: ValidationRows) -> list[float] | None:
    """Return a model's loss of each row from a file of finished ones; None where it has none.

    Args:
        path: one JSON object a line; need not be there.
        identity: a hash of the model's weights.
        rows: what the losses are of.
    """
    key = _loss_key(identity, rows)
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.endswith("}") and (row := json.loads(line))["key"] == key:
                return [float(nll) for nll in row["nll"]]
    return None


def keep_losses(path: Path, identity: str, rows: ValidationRows, losses: Sequence[float]) -> None:
    """Add a model's losses to the file of finished ones, which is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        line = json.dumps({"key": _loss_key(identity, rows), "nll": list(losses)})
        file.write("\n" + line + "\n")


def refuse_not_finite_loss(loss: float, who: str, where: str) -> float:
    """Return a loss that is a number.

    Args:
        loss: nats.
        who: the model.
        where: what the loss is of.

    Raises:
        ModelError: it is NaN or infinite.
    """
    if not math.isfinite(loss):
        raise ModelError(
            f"{who}: its loss on {where} is {loss}: its logits hold NaN or infinity, because "
            "weights do or this precision overflows; take an earlier checkpoint, or --dtype bf16 "
            "or fp32 instead of fp16"
        )
    return loss


def _loss_key(identity: str, rows: ValidationRows) -> str:
    return f"rows {identity} {hash_of(rows.examples)}"


def trained_tokens(rows: ValidationRows) -> list[int]:
    """Return how many tokens of each row have a label."""
    return [int((example.labels != -100).sum()) for example in rows.examples]


@torch.no_grad()
def row_losses(
    model: Callable[[], Any], rows: ValidationRows, pad_id: int, ranks: Ranks
) -> list[float]:
    """Return the summed nll (nats) of each row, on every rank; rows go through one by one."""
    mine = []
    with torch.compiler.set_stance("force_eager"):
        for example in rows.examples[ranks.rank :: ranks.world_size]:
            (batch,) = eval_batches(
                [example],
                unpacked(1),
                rank=0,
                world_size=1,
                micro_batch=1,
                packed=False,
                pad_id=pad_id,
            )
            inputs = batch.to(ranks.device).model_inputs()
            mine.append(float(model()(**inputs, num_items_in_batch=1.0).loss.double()))
    parts = ranks.gather_objects(mine)
    return [parts[n % len(parts)][n // len(parts)] for n in range(len(rows.examples))]


@torch.no_grad()
def loss_of(model: Callable[[], Any], rows: ValidationRows, pad_id: int, ranks: Ranks) -> float:
    """Return a model's mean nll over all trained tokens of the rows, in nats."""
    batches = eval_batches(
        rows.examples,
        unpacked(len(rows.examples)),
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_batch=rows.rows_per_batch,
        packed=False,
        pad_id=pad_id,
    )
    nll, tokens = 0.0, 0
    with torch.compiler.set_stance("force_eager"):
        for batch in batches:
            inputs = batch.to(ranks.device).model_inputs()
            nll += float(model()(**inputs, num_items_in_batch=1.0).loss.double())
            tokens += batch.trained_tokens
    sums = ranks.gather_floats([nll, float(tokens)])
    return sum(row[0] for row in sums) / max(1.0, sum(row[1] for row in sums))
