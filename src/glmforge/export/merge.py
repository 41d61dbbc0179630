"""`glmforge export`: an adapter, or whole weights with the adapter merged in.

A merge computes W + (alpha / r) B A in fp32 and casts once. Everything is written aside; the
directory takes its name only after a fresh process has opened it and its logits were compared.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import open_adapter
from glmforge.errors import ExportError
from glmforge.export.proof import (
    Difference,
    difference,
    logits_in_fresh_process,
    logits_of,
    prompt_ids,
)
from glmforge.export.sources import Source, find_source
from glmforge.models import load_model, load_tokenizer

MERGE_BOUND = 1e-3
"""Largest fp32 logit difference of base + adapter against merged, relative to the largest logit:
rounding of one extra addition per weight, far below any wrong merge."""
REOPEN_BOUND = 1e-4
"""The same for the written file against the merged weights in memory: only summation order."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was written and how it was proven."""

    out: Path
    kind: str
    """"adapter" or "model"."""
    dtype: str
    merge: Difference | None
    """Base + adapter against merged weights, both in fp32 in memory."""
    cast: Difference | None
    """Merged weights in fp32 against the same cast to the written dtype."""
    reopened: Difference
    """The weights in memory against the written directory, opened in a fresh process."""

    def lines(self) -> list[str]:
        """Sentences for people."""
        found = [f"{self.kind} ({self.dtype}) written to {self.out}"]
        if self.merge is not None:
            found.append(f"merged vs base + adapter (fp32): {self.merge}")
        if self.cast is not None and self.cast.max_abs > 0:
            found.append(f"cast to {self.dtype} vs fp32: {self.cast}")
        found.append(f"reopened in a fresh process vs memory: {self.reopened}")
        return found


def export(
    source: Path,
    out: Path,
    *,
    merge: bool = False,
    base: Path | None = None,
    dtype: str | None = None,
    max_shard_size: str = "5GB",
) -> ExportReport:
    """Write the weights of a run, checkpoint, adapter or model directory to `out`.

    Args:
        source: a run directory, a checkpoint, an adapter or a model directory.
        out: the directory to make; it must not exist.
        merge: add the adapter to the base and write whole weights.
        base: the base model, where it is not at the place the adapter names.
        dtype: "bf16", "fp16" or "fp32" of the written weights; None keeps the base's.
        max_shard_size: largest weights file, in safetensors' words ("5GB").

    Raises:
        ExportError: nothing to export, `out` exists, an unknown dtype, or the written weights do
            not give the logits they should (then nothing is left that looks finished).
    """
    if out.exists():
        raise ExportError(f"{out}: exists already; nothing was changed. Give another directory")
    if dtype is not None and dtype not in DTYPES:
        raise ExportError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    found = find_source(source, base)
    if found.adapter is not None and not merge:
        if dtype is not None:
            raise ExportError("--dtype does nothing for an adapter: add --merge or leave it out")
        return _finish(out, lambda target: _write_adapter(found, target, out))
    return _finish(out, lambda target: _write_whole(found, target, out, dtype, max_shard_size))


def _finish(out: Path, write: Any) -> ExportReport:
    """Run `write` on a temporary sibling; name it `out` only when it did not raise."""
    temporary = out.with_name(f".tmp-{out.name}")
    if temporary.exists():
        shutil.rmtree(temporary)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        report: ExportReport = write(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    (temporary / "export.json").write_text(
        json.dumps(asdict(report) | {"out": str(out)}, indent=1), encoding="utf-8"
    )
    temporary.rename(out)
    return report


def _write_adapter(found: Source, target: Path, out: Path) -> ExportReport:
    assert found.adapter is not None
    tokenizer = load_tokenizer(found.model)
    ids = prompt_ids(tokenizer)
    expected = logits_of(open_adapter(load_model(found.model), found.adapter), ids)
    shutil.copytree(found.adapter, target)
    again = logits_of(open_adapter(load_model(found.model), target), ids)
    return ExportReport(
        out=out,
        kind="adapter",
        dtype="as trained",
        merge=None,
        cast=None,
        reopened=_within(expected, again, REOPEN_BOUND, "the copied adapter"),
    )


def _write_whole(
    found: Source, target: Path, out: Path, dtype: str | None, max_shard_size: str
) -> ExportReport:
    tokenizer = load_tokenizer(found.model)
    ids = prompt_ids(tokenizer)
    model = load_model(found.model, dtype=torch.float32)
    written_dtype = DTYPES[dtype] if dtype else _dtype_of(found.model)
    merge = None
    if found.adapter is not None:
        wrapped = open_adapter(model, found.adapter)
        expected = logits_of(wrapped, ids)
        model = wrapped.merge_and_unload()
        merged = logits_of(model, ids)
        merge = _within(expected, merged, MERGE_BOUND, "the merged weights")
    exact = logits_of(model, ids)
    model.to(written_dtype).save_pretrained(str(target), max_shard_size=max_shard_size)
    tokenizer.save_pretrained(str(target))
    rounded = logits_of(model.float(), ids)
    again = logits_in_fresh_process(target, ids)
    return ExportReport(
        out=out,
        kind="model",
        dtype=str(written_dtype).removeprefix("torch."),
        merge=merge,
        cast=difference(exact, rounded),
        reopened=_within(rounded, again, REOPEN_BOUND, "the written directory"),
    )


def _within(expected: Any, actual: Any, bound: float, what: str) -> Difference:
    """Return the difference, refusing one beyond `bound` x the largest expected logit."""
    found = difference(expected, actual)
    largest = max(float(abs(row).max()) for row in expected)
    if found.max_abs > bound * max(1.0, largest):
        raise ExportError(
            f"{what} answers differently: {found} (bound {bound:g} of the largest logit "
            f"{largest:.3g}). Nothing was written"
        )
    return found


def _dtype_of(directory: Path) -> torch.dtype:
    """Return the dtype that config.json states (`torch_dtype` before transformers 5)."""
    values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32")
    return getattr(torch, name.removeprefix("torch."))
