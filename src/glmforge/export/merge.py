"""`glmforge export`: an adapter, or whole weights with the adapter merged in, in either layout.

A merge computes W + (alpha / r) B A in fp32 and casts once. Everything is written aside; the
directory takes its name only after a fresh process has opened it and its logits were compared:
our own process for the chatglm layout, one with stock transformers alone for the other.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import open_adapter
from glmforge.errors import ExportError
from glmforge.export import layouts
from glmforge.export.aside import written_aside
from glmforge.export.card import card, tokenizer_limits
from glmforge.export.proof import (
    Difference,
    check_ids,
    dialogue_prompts,
    difference,
    logits_in_fresh_process,
    logits_of,
    opened_by_stock_transformers,
)
from glmforge.export.sources import Source, find_source, open_weights
from glmforge.models import family_of, load_config, load_model, load_tokenizer
from glmforge.models.generation import write_stops
from glmforge.models.glm.tokenization_base import GLMTokenizer

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
    layout: str
    """"chatglm" or "transformers"."""
    dtype: str
    merge: Difference | None = None
    """Base + adapter against merged weights, both in fp32 in memory."""
    cast: Difference | None = None
    """Merged weights in fp32 against the same cast to the written dtype."""
    reopened: Difference
    """The weights in memory against the written directory, opened in a fresh process."""
    dialogues: int = 0
    """Dialogues whose ids by the written chat template, in stock transformers, equal ours."""
    limits: tuple[str, ...] = field(default=())
    """What the written tokenizer cannot do."""

    def lines(self) -> list[str]:
        """Sentences for people."""
        found = [f"{self.kind} ({self.dtype}, {self.layout} layout) written to {self.out}"]
        return found + self.proof()

    def proof(self) -> list[str]:
        """Sentences about what was compared."""
        found = []
        if self.merge is not None:
            found.append(f"merged vs base + adapter (fp32): {self.merge}")
        if self.cast is not None and self.cast.max_abs > 0:
            found.append(f"cast to {self.dtype} vs fp32: {self.cast}")
        where = "in a fresh process"
        if self.kind == "adapter":
            where = "on its base"
        elif self.layout == "transformers":
            where = "in a fresh process by stock transformers alone"
        found.append(f"reopened {where} vs memory: {self.reopened}")
        if self.dialogues:
            found.append(f"chat template: {self.dialogues} of {self.dialogues} dialogues, same ids")
        return found


def export(
    source: Path,
    out: Path,
    *,
    merge: bool = False,
    base: Path | None = None,
    dtype: str | None = None,
    layout: str | None = None,
    max_shard_size: str = "5GB",
) -> ExportReport:
    """Write the weights of a run, checkpoint, adapter or model directory to `out`.

    Args:
        source: a run directory, a checkpoint, an adapter or a model directory.
        out: the directory to make; it must not exist.
        merge: add the adapter to the base and write whole weights.
        base: the base model, where it is not at the place the adapter names.
        dtype: "bf16", "fp16" or "fp32" of the written weights; None keeps the base's.
        layout: "chatglm" (the original's names and files) or "transformers" (a class of stock
            transformers and a fast tokenizer); None keeps the base's.
        max_shard_size: largest weights file, in safetensors' words ("5GB").

    Raises:
        ExportError: nothing to export, `out` exists, an unknown dtype or layout, a model without
            a form in that layout, or the written weights do not give the logits they should (then
            nothing is left that looks finished).
    """
    if dtype is not None and dtype not in DTYPES:
        raise ExportError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    if layout is not None and layout not in layouts.LAYOUTS:
        raise ExportError(f"--layout {layout}: use one of {', '.join(layouts.LAYOUTS)}")
    found = find_source(source, base)
    config = load_config(found.model)
    wanted: layouts.Layout = layout or layouts.layout_of(config)  # type: ignore[assignment]
    layouts.check_layout(config, wanted)
    if found.adapter is not None and not merge:
        if dtype is not None:
            raise ExportError("--dtype does nothing for an adapter: add --merge or leave it out")
        return _finish(out, config, lambda target: _write_adapter(found, target, out, wanted))
    return _finish(
        out,
        config,
        lambda target: _write_whole(found, target, out, wanted, dtype, max_shard_size),
    )


def _finish(out: Path, config: Any, write: Callable[[Path], ExportReport]) -> ExportReport:
    """Run `write` on a temporary sibling; name it `out` only when it did not raise."""
    with written_aside(out) as target:
        report = write(target)
        (target / "export.json").write_text(
            json.dumps(asdict(report) | {"out": str(out)}, ensure_ascii=False, indent=1),
            encoding="utf-8",
        )
        text = card(
            title=family_of(config).title,
            layout=report.layout,
            origin=layouts.origin_of(config),
            kind=report.kind,
            dtype=report.dtype,
            proof=report.proof(),
            limits=report.limits,
            has_code=any(target.glob("*_chatglm.py")),
        )
        (target / "README.md").write_text(text, encoding="utf-8")
    return report


def _write_adapter(found: Source, target: Path, out: Path, layout: layouts.Layout) -> ExportReport:
    assert found.adapter is not None
    ids = [ids for _, ids in dialogue_prompts(load_tokenizer(found.model))]
    base = load_model(found.model)
    expected = logits_of(open_adapter(base, found.adapter), ids)
    base = load_model(found.model)
    if layout == layouts.layout_of(base.config):
        shutil.copytree(found.adapter, target)
    else:
        layouts.convert_adapter(found.adapter, target, base.config, layout)
    again = logits_of(open_adapter(layouts.to_layout(base, layout), target), ids)
    return ExportReport(
        out=out,
        kind="adapter",
        layout=layout,
        dtype="as trained",
        reopened=_within(expected, again, REOPEN_BOUND, "the written adapter"),
    )


def _write_whole(
    found: Source,
    target: Path,
    out: Path,
    layout: layouts.Layout,
    dtype: str | None,
    max_shard_size: str,
) -> ExportReport:
    tokenizer = load_tokenizer(found.model)
    dialogues = dialogue_prompts(tokenizer)
    ids = [ids for _, ids in dialogues]
    model = open_weights(found)
    written_dtype = DTYPES[dtype] if dtype else _dtype_of(found.model)
    merge = None
    if found.adapter is not None:
        wrapped = open_adapter(model, found.adapter)
        expected = logits_of(wrapped, ids)
        model = wrapped.merge_and_unload()
        merge = _within(expected, logits_of(model, ids), MERGE_BOUND, "the merged weights")
    exact = logits_of(model, ids)
    rounded = logits_of(model.to(written_dtype).float(), ids)
    model = layouts.to_layout(model.to(written_dtype), layout)
    write_stops(model, tokenizer)
    layouts.write_model(model, target, max_shard_size)
    layouts.write_tokenizer(tokenizer, target, model)
    if layout == "chatglm":
        layouts.copy_code(found.model, target)
    opened = _reopen(tokenizer, target, layout, dialogues)
    return ExportReport(
        out=out,
        kind="model",
        layout=layout,
        dtype=str(written_dtype).removeprefix("torch."),
        merge=merge,
        cast=difference(exact, rounded),
        reopened=_within(rounded, opened.logits, REOPEN_BOUND, "the written directory"),
        dialogues=opened.dialogues,
        limits=opened.limits,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reopened:
    logits: list[Any]
    dialogues: int = 0
    limits: tuple[str, ...] = ()


def _reopen(
    tokenizer: Any, target: Path, layout: layouts.Layout, dialogues: list[tuple[Any, list[int]]]
) -> _Reopened:
    """Open what was written as its users will, in a fresh process."""
    ids = [ids for _, ids in dialogues]
    if layout == "chatglm":
        return _Reopened(logits=logits_in_fresh_process(target, ids))
    # A tokenizer that was transformers' own before is written by transformers and not judged here.
    is_ours = isinstance(tokenizer, GLMTokenizer)
    stock = opened_by_stock_transformers(
        target, ids, [messages for messages, _ in dialogues] if is_ours else None
    )
    if not is_ours:
        return _Reopened(logits=stock.logits)
    check_ids(stock.dialogue_ids, ids)
    limits = tokenizer_limits(tokenizer.family, layouts.control_spellings(target))
    return _Reopened(logits=stock.logits, dialogues=len(ids), limits=limits)


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
