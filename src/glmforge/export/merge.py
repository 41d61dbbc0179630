"""`glmforge export`: an adapter, or whole weights with the adapter merged in, in either layout.

A merge computes W + (alpha / r) B A in fp32 and casts once. Everything is written aside; the
directory takes its name only after a fresh process has opened it and its logits were compared:
our own process for the chatglm layout, one with stock transformers alone for the other.
"""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from glmforge.adapters import (
    open_adapter,
    peft_names,
    read_adapter,
    save_adapter_files,
    zero_alpha,
    zero_b,
)
from glmforge.errors import AdapterError, ExportError
from glmforge.export import layouts
from glmforge.export.aside import written_aside
from glmforge.export.base_print import (
    BaseState,
    convert_base_print,
    copy_base_print,
    write_base_print,
)
from glmforge.export.card import card, tokenizer_limits
from glmforge.export.identity import adapter_identity, mark_merged, refuse_second_merge
from glmforge.export.proof import (
    Difference,
    check_ids,
    dialogue_prompts,
    difference,
    logits_in_fresh_process,
    logits_of,
    opened_by_stock_transformers,
)
from glmforge.export.run_facts import RunFacts, run_facts
from glmforge.export.sources import Source, base_notes, find_source, open_weights
from glmforge.export.tensor_files import parse_size
from glmforge.models import family_of, load_config, load_tokenizer
from glmforge.models.dtypes import DTYPES
from glmforge.models.generation import write_stops
from glmforge.models.glm.tokenization_base import GLMTokenizer

MERGE_BOUND = 1e-4
"""Largest fp32 logit difference of base + adapter against merged, relative to the largest logit
where that is above 1: rounding of one extra addition per weight, far below any wrong merge."""
REOPEN_BOUND = 1e-4
"""The same for the written file against the merged weights in memory: only summation order."""


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
    opened_by: str = ""
    """Who opened it there, as the end of a sentence; empty for this program."""
    dialogues: int = 0
    """Dialogues whose ids by the written chat template, in stock transformers, equal ours."""
    limits: tuple[str, ...] = field(default=())
    """What the written tokenizer cannot do."""
    notes: tuple[str, ...] = ()
    """What else a reader should know, such as names that were put right."""
    run: RunFacts | None = None
    """The run that the weights are from."""
    base: str | None = None
    """The base that was merged into or that the adapter was proven on; None: whole weights."""
    base_state: str | None = None
    """What that base's weights are: see `BaseState`."""

    def lines(self) -> list[str]:
        """Sentences for people."""
        found = [f"{self.kind} ({self.dtype}, {self.layout} layout) written to {self.out}"]
        return [*found, *self.proof(), *self.notes]

    def proof(self) -> list[str]:
        """Sentences about what was compared."""
        found = []
        if self.merge is not None:
            found.append(f"merged vs base + adapter (fp32): {self.merge}")
        if self.cast is not None and self.cast.max_abs > 0:
            found.append(f"cast to {self.dtype} vs fp32: {self.cast}")
        found.append(f"reopened in a fresh process{self.opened_by} vs memory: {self.reopened}")
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
    max_shard_size: str | None = None,
    fix_names: bool = False,
    other_base: bool = False,
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
        max_shard_size: largest file of whole weights, such as "300MB"; None: "5GB".
        fix_names: put right the names of an adapter that another program wrote.
        other_base: take a base that the adapter was not trained on; its card will say so.

    Raises:
        AdapterError: an adapter's files are damaged, empty, or made for another base, or it
            changes nothing.
        ExportError: an adapter that is merged in already, nothing to export, `out` exists, an
            option that is unknown or would do nothing, a model without a form in that layout, or
            the written weights do not give the logits they should (then nothing is left that
            looks finished).
    """
    found = find_source(source, base, other_base=other_base)
    _check_options(found, merge, dtype, layout, max_shard_size, fix_names)
    config = load_config(found.model)
    wanted: layouts.Layout = layout or layouts.layout_of(config)  # type: ignore[assignment]
    layouts.check_layout(config, wanted)
    with written_aside(out) as target, tempfile.TemporaryDirectory() as scratch:
        checked = found.base_check
        notes = base_notes(found)
        if found.adapter is not None:
            if fix_names:
                found, note = _with_right_names(found, Path(scratch) / "adapter")
                notes = [note, *notes]
            _check_adapter(found, config, merge=merge)
        if found.adapter is not None and not merge:
            report = _write_adapter(found, target, out, wanted)
        else:
            report = _write_whole(found, target, out, wanted, dtype, max_shard_size or "5GB")
        report = replace(report, notes=tuple(notes), run=run_facts(source))
        if checked is not None:
            report = replace(report, base=str(found.model), base_state=str(checked.state))
        _write_about(report, target, config)
    return report


def _check_options(
    found: Source,
    merge: bool,
    dtype: str | None,
    layout: str | None,
    max_shard_size: str | None,
    fix_names: bool,
) -> None:
    """Refuse options that are none of what they may be, or that would do nothing."""
    problems = []
    if dtype is not None and dtype not in DTYPES:
        problems.append(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    if layout is not None and layout not in layouts.LAYOUTS:
        problems.append(f"--layout {layout}: use one of {', '.join(layouts.LAYOUTS)}")
    if max_shard_size is not None:
        parse_size(max_shard_size)
    if found.adapter is not None and not merge:
        values = {"--dtype": dtype, "--max-shard-size": max_shard_size}
        problems += [
            f"{option} does nothing for an adapter: add --merge or leave it out"
            for option, value in values.items()
            if value is not None
        ]
    if found.adapter is None:
        options = {"--merge": merge, "--fix-names": fix_names}
        problems += [
            f"{option} does nothing for whole weights: leave it out"
            for option, given in options.items()
            if given
        ]
    if problems:
        raise ExportError(problems)


def _write_about(report: ExportReport, target: Path, config: Any) -> None:
    """Write the report and the card beside the weights."""
    (target / "export.json").write_text(
        json.dumps(asdict(report) | {"out": str(report.out)}, ensure_ascii=False, indent=1),
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
        run=report.run,
        base=report.base,
        base_state=report.base_state,
        licences=layouts.licence_names(target),
    )
    (target / "README.md").write_text(text, encoding="utf-8")


def _check_adapter(found: Source, config: Any, *, merge: bool) -> None:
    """Refuse an adapter that changes nothing, or that the weights hold already."""
    assert found.adapter is not None
    files = read_adapter(found.adapter)
    if zero_b(files.tensors):
        raise AdapterError(
            f"{files.path}: every lora_B is zero, so the adapter changes nothing: it was saved "
            "before the first update, or its training failed. Export another checkpoint"
        )
    if zero_alpha(files.config):
        raise AdapterError(
            f"{found.adapter / 'adapter_config.json'}: lora_alpha is 0, so the adapter changes "
            "nothing: its product is multiplied by lora_alpha / r. Write the value it was trained "
            "with"
        )
    if merge:
        refuse_second_merge(found.adapter, found.model, config)


def _with_right_names(found: Source, directory: Path) -> tuple[Source, str]:
    """Write the adapter under PEFT's names into `directory`."""
    assert found.adapter is not None
    files = read_adapter(found.adapter)
    tensors, changed = peft_names(files.tensors)
    settings = json.loads((found.adapter / "adapter_config.json").read_text(encoding="utf-8"))
    save_adapter_files(directory, settings, tensors)
    copy_base_print(found.adapter, directory)
    note = f"names: {changed} of {len(tensors)} tensors renamed as PEFT does"
    return replace(found, adapter=directory), note


def _write_adapter(found: Source, target: Path, out: Path, layout: layouts.Layout) -> ExportReport:
    assert found.adapter is not None
    ids = [ids for _, ids in dialogue_prompts(load_tokenizer(found.model))]
    base: Any = open_weights(found)
    own_layout = layouts.layout_of(base.config)
    expected = logits_of(open_adapter(base, found.adapter), ids)
    if layout == own_layout:
        shutil.copytree(found.adapter, target)
        layouts.name_base(target, found.model)
    else:
        layouts.convert_adapter(found.adapter, target, base.config, layout)
    if found.base_check is not None and found.base_check.state is BaseState.OTHER:
        write_base_print(found.model, target)
    else:
        copy_base_print(found.adapter, target)
    if layout != own_layout:
        convert_base_print(target, layout)
    layouts.copy_licences(found.model, target)
    del base
    opened_by = " on its base"
    if layout == own_layout == "transformers":
        again = opened_by_stock_transformers(found.model, ids, None, target).logits
        opened_by = " on its base by stock transformers and PEFT alone"
    else:
        again = logits_in_fresh_process(found.model, ids, adapter=target, layout=layout)
    return ExportReport(
        out=out,
        kind="adapter",
        layout=layout,
        dtype="as trained",
        reopened=_within(expected, again, REOPEN_BOUND, "the written adapter"),
        opened_by=opened_by,
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
        exact = logits_of(model, ids)
        merge = _within(expected, exact, MERGE_BOUND, "the merged weights")
        mark_merged(model.config, adapter_identity(found.adapter))
    else:
        exact = logits_of(model, ids)
    rounded = exact
    if written_dtype != torch.float32:
        rounded = logits_of(model.to(written_dtype).float(), ids)
    model = layouts.to_layout(model.to(written_dtype), layout)
    write_stops(model, tokenizer)
    layouts.write_model(model, target, max_shard_size)
    layouts.write_tokenizer(tokenizer, target, model)
    layouts.copy_licences(found.model, target)
    if layout == "chatglm":
        layouts.copy_code(found.model, target)
    del model
    opened = _reopen(tokenizer, target, layout, dialogues)
    return ExportReport(
        out=out,
        kind="model",
        layout=layout,
        dtype=str(written_dtype).removeprefix("torch."),
        merge=merge,
        cast=difference(exact, rounded),
        reopened=_within(rounded, opened.logits, REOPEN_BOUND, "the written directory"),
        opened_by="" if layout == "chatglm" else " by stock transformers alone",
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
