"""The data of a tuned model's run, read again: what it trained on, held out and validated with.

A run directory names files, it holds no copies; they are read as the run read them (columns,
repairs, labels, truncation), and what was held out is found by the same rule and seed.
"""

from collections.abc import Sequence
from typing import Any

from glmforge.config import RunConfig
from glmforge.config.paths import sources_of
from glmforge.data import Example, load_examples
from glmforge.data.splitting import Split, hold_out


def examples_of(paths: str | Sequence[str], run: RunConfig, tokenizer: Any) -> Sequence[Example]:
    """Encode files as a run would.

    Raises:
        DataError: a file is not there, or has faults that the run does not skip.
    """
    data = run.data
    return load_examples(
        paths,
        tokenizer,
        max_length=data.max_length,
        labels=data.labels,
        truncation=data.truncation,
        on_error=data.on_error,
        columns=data.columns,
        repairs=data.repair,
    ).examples


def split_of(run: RunConfig, tokenizer: Any) -> Split | None:
    """Return how a run split its training data; None where it did not.

    Raises:
        DataError: a file is not there any more.
    """
    size = run.data.validation_size
    if size is None:
        return None
    sets = [examples_of(path, run, tokenizer) for path, _ in sources_of(run.data.train)]
    return hold_out(sets, size, seed=run.training.seed)


def validation_of(run: RunConfig, tokenizer: Any) -> tuple[Sequence[str], Sequence[Example]] | None:
    """Return a run's validation rows with their files, none where they were held out.

    Raises:
        DataError: a file is not there any more.
    """
    split = split_of(run, tokenizer)
    if split is not None:
        return (), split.validation
    paths = [path for path, _ in sources_of(run.data.validation)]
    return (paths, examples_of(paths, run, tokenizer)) if paths else None
