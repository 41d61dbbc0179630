"""`glmforge evaluate`: one model on a file of dialogues: loss, generated answers, harness tasks.

The loss is that of training (every trained token once); answers are greedy, stop at the family's
stop ids and are scored as training's evaluations are (``data.measures``). Stop ids of another
vocabulary are refused before weights are read (case E03). Tasks are the lm-evaluation-harness's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import open_adapter, read_adapter, zero_notes
from glmforge.bin_files import refuse_not_finite
from glmforge.compare.harness import check_harness, run_tasks
from glmforge.compare.loss import ValidationRows, loss_of, refuse_not_finite_loss, validation_rows
from glmforge.compare.positions import positions_of, refuse_too_long
from glmforge.compare.prompts import Prompt, read_prompts
from glmforge.compare.subjects import run_of
from glmforge.data import generation_prompt
from glmforge.data.measures import score, usual_units
from glmforge.data.segments import IGNORED
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import ModelError, UsageError
from glmforge.export.sources import Source, base_notes, find_source, open_weights
from glmforge.models import load_model, load_tokenizer
from glmforge.models.batch_generation import Sampling, answer_batch
from glmforge.models.generation import stop_ids
from glmforge.models.stops import compare_stops

_USUAL_LENGTH = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """What one model measures on one file. None: not asked for, or nothing to compare with."""

    model: str
    data: tuple[str, ...]
    loss: float | None
    """Nats per trained token."""
    tokens: int
    """Trained tokens that the loss is over."""
    answers: int
    """Dialogues whose last question was answered."""
    stopped_share: float | None
    exact_match: float | None
    bleu_4: float | None
    rouge_l: float | None
    repetition: float | None
    text_units: str
    tasks: dict[str, dict[str, float]] = field(default_factory=dict)
    """lm-evaluation-harness: task → metric → value."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Sentences for people."""
        found = [f"{self.model} on {', '.join(self.data) or 'no dialogues'}"]
        if self.loss is not None:
            found.append(
                f"validation loss {self.loss:.4f} nats a token (perplexity "
                f"{math.exp(min(self.loss, 700.0)):.2f}) over {self.tokens:,} trained tokens"
            )
        if self.stopped_share is not None:
            scores = {
                "exact match": self.exact_match,
                "BLEU-4": self.bleu_4,
                "ROUGE-L": self.rouge_l,
                "repetition": self.repetition,
            }
            parts = [f"{name} {value:.3f}" for name, value in scores.items() if value is not None]
            stopped = round(self.stopped_share * self.answers)
            found.append(
                f"{self.answers} answers: {' | '.join(parts)} (on {self.text_units}) | {stopped} "
                f"stopped by themselves, {self.answers - stopped} cut by length"
            )
        found += [
            f"{task}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}"
            for task, values in self.tasks.items()
        ]
        return found + [f"note: {note}" for note in self.notes]


def evaluate_model(
    path: Path,
    data: Sequence[str],
    *,
    base: Path | None = None,
    max_length: int | None = None,
    max_new_tokens: int = 256,
    num_prompts: int | None = 100,
    batch_size: int = 4,
    dtype: torch.dtype | None = None,
    tasks: Sequence[str] = (),
    num_fewshot: int | None = None,
    limit: int | None = None,
) -> EvaluationReport:
    """Evaluate a model, run, checkpoint or adapter.

    Args:
        path: what `glmforge export` takes.
        data: files of dialogues; may be empty where tasks are given.
        base: the base, where it is not where the adapter says.
        max_length: longest row of the loss in tokens, where no run says it; None: 2,048 or less.
        max_new_tokens: longest answer.
        num_prompts: dialogues whose last question is answered; None answers all, 0 none.
        batch_size: rows that go through the model together.
        dtype: of the weights; by default bf16 on a GPU, fp32 on the CPU.
        tasks: names of lm-evaluation-harness tasks.
        num_fewshot: examples in the tasks' prompts; None is each task's own number.
        limit: documents of each task; None takes all.

    Raises:
        ModelError: stop ids of another vocabulary; weights, logits or a loss that are NaN.
        DataError: a data file cannot be read.
        UsageError: nothing to measure on; longer rows or answers than the model has positions;
            tasks are asked for and the harness is not installed, or does not know one.
    """
    if tasks:
        check_harness(tasks)
    found = find_source(path, base)
    tokenizer = load_tokenizer(found.model)
    notes = [*compare_stops(found.model, tokenizer), *_adapter_notes(found, path)]
    positions = positions_of([found.model])
    longest = _longest_row(path, max_length, positions)
    rows, prompts = _material(path, data, tokenizer, longest, batch_size, num_prompts)
    _refuse_nothing(path, rows, tasks)
    prompt_ids = [generation_prompt(p.messages, tokenizer, p.tools or None) for p in prompts]
    refuse_too_long(positions, prompts, prompt_ids, max_new_tokens)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _opened(found, dtype, device)
    loss, tokens = _loss(path, model, tokenizer, rows, device)
    scores = _scores(model, tokenizer, prompts, prompt_ids, batch_size, max_new_tokens)
    return EvaluationReport(
        model=str(path),
        data=rows.files if rows is not None else (),
        loss=loss,
        tokens=tokens,
        answers=len(prompts),
        tasks=run_tasks(model, tokenizer, tasks, batch_size, num_fewshot, limit) if tasks else {},
        notes=tuple(notes),
        **scores,
    )


def _adapter_notes(found: Source, path: Path) -> list[str]:
    if found.adapter is None:
        return []
    return [*zero_notes(read_adapter(found.adapter), str(path)), *base_notes(found)]


def _refuse_nothing(path: Path, rows: ValidationRows | None, tasks: Sequence[str]) -> None:
    if rows is None and not tasks:
        raise UsageError(f"{path}: nothing to measure it on: give --data FILE, or --tasks")


def _longest_row(path: Path, asked: int | None, positions: int | None) -> int:
    """How long a row of the loss may be (tokens)."""
    if asked is not None and positions is not None and asked > positions:
        raise UsageError(f"--max-length {asked}: {path} has {positions} positions; give less")
    return asked or min(_USUAL_LENGTH, positions or _USUAL_LENGTH)


def _material(
    path: Path,
    data: Sequence[str],
    tokenizer: Any,
    max_length: int,
    batch_size: int,
    num_prompts: int | None,
) -> tuple[ValidationRows | None, list[Prompt]]:
    """Return the rows of the loss and the questions to answer, both from the same files."""
    run = run_of(path)
    rows = validation_rows(
        list(data),
        [run] if run is not None else [],
        tokenizer,
        max_length=max_length,
        rows_per_batch=batch_size,
    )
    files = rows.files if rows is not None and num_prompts != 0 else ()
    prompts = [prompt for file in files for prompt in read_prompts(Path(file))]
    return rows, prompts if num_prompts is None else prompts[:num_prompts]


def _loss(
    path: Path, model: Any, tokenizer: Any, rows: ValidationRows | None, device: torch.device
) -> tuple[float | None, int]:
    if rows is None:
        return None, 0
    alone = Ranks(world=World(), device=device)
    loss = loss_of(lambda: model, rows, tokenizer.pad_token_id or 0, alone)
    refuse_not_finite_loss(loss, str(path), rows.origin)
    return loss, sum(int((example.labels != IGNORED).sum()) for example in rows.examples)


def _opened(found: Source, dtype: torch.dtype | None, device: torch.device) -> Any:
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    if found.shards is not None:
        return open_weights(found).to(device, dtype).eval()
    model: Any = load_model(found.model, dtype=dtype, device=device)
    refuse_not_finite(model.named_parameters(), found.model, ModelError)
    if found.adapter is not None:
        model = open_adapter(model, found.adapter)
    return model.eval()


def _scores(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    prompt_ids: Sequence[Sequence[int]],
    batch_size: int,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Answer every prompt greedily and score the answers that have a reference."""
    units = usual_units()
    if not prompts:
        names = ("stopped_share", "exact_match", "bleu_4", "rouge_l", "repetition")
        return {**dict.fromkeys(names), "text_units": units.name}
    stops = stop_ids(model, tokenizer)
    pairs: list[tuple[str, str | None]] = []
    stopped = 0
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        answers = answer_batch(
            model,
            tokenizer,
            prompt_ids[start : start + batch_size],
            stops=stops,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(),
        )
        stopped += sum(answer.stop_reason == "stop" for answer in answers)
        pairs += [(a.text, p.reference) for a, p in zip(answers, batch, strict=True)]
    found = score(pairs, units)
    return {
        "stopped_share": stopped / len(prompts),
        "exact_match": found.exact_match,
        "bleu_4": found.bleu_4,
        "rouge_l": found.rouge_l,
        "repetition": found.repetition,
        "text_units": units.name,
    }
