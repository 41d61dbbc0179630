"""`glmforge consolidate`: DeepSpeed's shards to one safetensors model or one PEFT adapter.

Reads checkpoints of ours, of DeepSpeed and of transformers' Trainer, of any ZeRO stage and number
of ranks; never more than one tensor is in memory. Every tensor is counted against the model before
the first is written, and compared with the file after the last. Where tensors lie is shards.py's.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glmforge.adapters import (
    peft_names,
    read_adapter_config,
    refuse_other_rank,
    save_adapter_files,
    zero_b,
)
from glmforge.errors import ExportError
from glmforge.export.aside import written_aside
from glmforge.export.base_print import BASE_PRINT, check_base, copy_base_print
from glmforge.export.counting import (
    count_adapter,
    model_places,
    prepared_base,
    stored_in_base,
    write_settings,
)
from glmforge.export.manifest import MANIFEST, verify
from glmforge.export.run_facts import run_facts
from glmforge.export.shards import Place, Shards, find_tag, open_shards
from glmforge.export.sources import base_named_in, base_of_checkpoint
from glmforge.export.tensor_files import Planned, check_written, parse_size, write_tensors
from glmforge.models.dtypes import DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationReport:
    """What was read and written."""

    out: Path
    kind: str
    """"adapter" or "model"."""
    zero_stage: int
    """0, 1 (for 1 and 2) or 3."""
    world_size: int
    """Ranks that wrote the shards."""
    dtype: str
    tensors: int
    elements: int
    from_base: int
    """Tensors that were not in the shards and came from the base."""
    counted: bool = True
    """Whether the model was there to count the tensors against."""
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Sentences for people."""
        stage = {0: "no ZeRO", 1: "ZeRO-1/2", 3: "ZeRO-3"}[self.zero_stage]
        base = f" ({self.from_base} of them from the base)" if self.from_base else ""
        counted = "counted against the model and " if self.counted else ""
        return [
            f"{self.kind} ({self.dtype}) written to {self.out}",
            f"{self.tensors} tensors{base}, {self.elements:,} elements, each {counted}read back; "
            f"shards: {stage} on {self.world_size} rank(s)",
            *self.notes,
        ]


def consolidate(
    checkpoint: Path,
    out: Path,
    *,
    tag: str | None = None,
    base: Path | None = None,
    with_base: bool = False,
    adapter_config: Path | None = None,
    dtype: str = "fp32",
    max_shard_size: str | None = None,
) -> ConsolidationReport:
    """Join the shards of a checkpoint.

    Args:
        checkpoint: the directory with ``global_step*`` in it, or that folder.
        out: the directory to make.
        tag: which folder, where there are several and ``latest`` does not decide.
        base: the model directory the training began from, where the checkpoint does not tell.
        with_base: LoRA: write the frozen base too, into ``out/base``; whole weights: take frozen
            tensors that the shards leave out from the base.
        adapter_config: ``adapter_config.json`` of a LoRA run whose checkpoint has none.
        dtype: "fp32", "bf16" or "fp16" of all floating-point tensors.
        max_shard_size: largest file of whole weights, such as "300MB"; None: "5GB".

    Raises:
        AdapterError: the adapter's settings are of another adapter, or the base of another model.
        CheckpointError: files are missing, torn, or changed since they were written.
        ExportError: `out` exists, tensors are missing, unexpected or of another shape, or an
            option is unknown or would do nothing.
    """
    if dtype not in DTYPES:
        raise ExportError(f"--dtype {dtype}: use one of {', '.join(DTYPES)}")
    if max_shard_size is not None:
        parse_size(max_shard_size)
    folder = find_tag(checkpoint, tag)
    top = folder.parent
    if (top / MANIFEST).is_file():
        verify(top)
    shards = open_shards(folder)
    is_adapter = any(".lora_" in name for name in shards.trained)
    _check_options(is_adapter, with_base, adapter_config, max_shard_size)
    settings = _adapter_settings(top, adapter_config) if is_adapter else None
    found = base or base_of_checkpoint(top) or (settings and base_named_in(settings))
    size = max_shard_size or "5GB"
    with written_aside(out) as target:
        if settings is not None:
            report = _adapter(shards, target, out, settings, found, with_base, DTYPES[dtype], size)
        else:
            if found is None:
                raise ExportError(
                    f"{folder}: holds tensors but no config.json is beside it: give the model "
                    "directory that the training began from with --base DIR"
                )
            target.mkdir()
            report = _model(shards, target, out, found, with_base, DTYPES[dtype], size)
        facts = run_facts(top)
        noted = {"out": str(out), "run": facts and asdict(facts)}
        text = json.dumps(asdict(report) | noted, ensure_ascii=False, indent=1)
        (target / "consolidate.json").write_text(text + "\n", encoding="utf-8")
    return report


def _check_options(
    is_adapter: bool, with_base: bool, adapter_config: Path | None, max_shard_size: str | None
) -> None:
    """Refuse options that would do nothing."""
    problems = []
    if is_adapter and not with_base and max_shard_size is not None:
        problems.append(
            "--max-shard-size does nothing for an adapter: add --with-base or leave it out"
        )
    if not is_adapter and adapter_config is not None:
        problems.append("--adapter-config does nothing for whole weights: leave it out")
    if problems:
        raise ExportError(problems)


def _adapter_settings(top: Path, given: Path | None) -> Path:
    own = (top / "adapter_config.json", top / "adapter" / "adapter_config.json")
    for path in own if given is None else (given,):
        if path.is_file():
            return path
    raise ExportError(
        f"{given or top}: no adapter_config.json there. The shards hold LoRA weights but not their "
        "lora_alpha: give the run's file with --adapter-config FILE"
    )


def _adapter(
    shards: Shards,
    target: Path,
    out: Path,
    settings: Path,
    base: Path | None,
    with_base: bool,
    dtype: torch.dtype,
    max_shard_size: str,
) -> ConsolidationReport:
    trained = {name: shards.tensor(place).to(dtype) for name, place in shards.trained.items()}
    tensors, _ = peft_names(trained)
    config = read_adapter_config(settings)
    refuse_other_rank(shards.folder, settings, config, tensors)
    notes = [] if not zero_b(tensors) else ["every lora_B is zero: the adapter changes nothing yet"]
    values = json.loads(settings.read_text(encoding="utf-8"))
    checked = None
    if base is None:
        notes.append(
            "the base is not here: ranks were compared with adapter_config.json and nothing else; "
            "with --base DIR every tensor is counted against the model"
        )
    else:
        checked = check_base(_print_of(shards.folder.parent, settings), base)
        count_adapter(tensors, config, base, str(shards.folder))
        values["base_model_name_or_path"] = str(base)
    if with_base:
        notes.append(_frozen_base(shards, target / "base", base, max_shard_size))
        values["base_model_name_or_path"] = str(out / "base")
    if checked is not None and checked.note is not None:
        notes.append(checked.note)
    save_adapter_files(target, values, tensors)
    copy_base_print(_print_of(shards.folder.parent, settings), target)
    return ConsolidationReport(
        out=out,
        kind="adapter",
        zero_stage=shards.zero_stage,
        world_size=shards.world_size,
        dtype=str(dtype).removeprefix("torch."),
        tensors=len(tensors),
        elements=sum(tensor.numel() for tensor in tensors.values()),
        from_base=0,
        counted=base is not None,
        notes=tuple(notes),
    )


def _print_of(top: Path, settings: Path) -> Path:
    """Return where base.json of the run lies: in the checkpoint, in the run, beside the settings.

    Where it is in none of them, the checkpoint.
    """
    places = (top / "adapter", top, top.parent.parent, settings.parent)
    return next((place for place in places if (place / BASE_PRINT).is_file()), top)


def _frozen_base(shards: Shards, target: Path, base: Path | None, max_shard_size: str) -> str:
    """Write the base that LoRA left as it was, from the shards or else from its own files."""
    if base is None:
        raise ExportError("--with-base needs the base's configuration: give it with --base DIR")
    places = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): place
        for name, place in shards.places().items()
        if ".lora_" not in name
    }
    target.mkdir(parents=True)
    model = prepared_base(base, torch.float32)
    wanted, from_base = model_places(places, model, base, with_base=True, where=shards.folder)
    dtype = next(iter(wanted.values())).dtype
    _write_places(shards, wanted, target, dtype, max_shard_size)
    write_settings(model, base, target, dtype)
    return f"the frozen base lies in base/ ({from_base} of {len(wanted)} tensors from {base})"


def _model(
    shards: Shards,
    target: Path,
    out: Path,
    base: Path,
    with_base: bool,
    dtype: torch.dtype,
    max_shard_size: str,
) -> ConsolidationReport:
    model = prepared_base(base, dtype)
    wanted, from_base = model_places(
        shards.places(), model, base, with_base=with_base, where=shards.folder
    )
    elements = _write_places(shards, wanted, target, dtype, max_shard_size)
    notes = write_settings(model, base, target, dtype)
    return ConsolidationReport(
        out=out,
        kind="model",
        zero_stage=shards.zero_stage,
        world_size=shards.world_size,
        dtype=str(dtype).removeprefix("torch."),
        tensors=len(wanted),
        elements=elements,
        from_base=from_base,
        notes=tuple(notes),
    )


def _write_places(
    shards: Shards,
    wanted: Mapping[str, Any],
    target: Path,
    dtype: torch.dtype,
    max_shard_size: str,
) -> int:
    """Write tensors as they come, read the files back; return the number of elements."""

    def reader(place: Any) -> Any:
        def read() -> Tensor:
            return shards.tensor(place) if isinstance(place, Place) else stored_in_base(place)

        return read

    planned = {
        name: Planned(
            dtype=dtype if place.dtype.is_floating_point else place.dtype,
            shape=tuple(place.shape),
            read=reader(place),
        )
        for name, place in wanted.items()
    }
    checksums = write_tensors(target, planned, max_shard_size=max_shard_size)
    check_written(target, checksums)
    return sum(each.num_bytes // each.dtype.itemsize for each in planned.values())
