"""`glmforge inspect DIR`: what a model directory is, or which checkpoints of a run are whole.

Of a model config.json and the headers of the weight files are read; checkpoints are hashed. Exit
status 1 where `load_model` would refuse the directory, or a checkpoint is not whole; the facts that
can be known are printed all the same. Of an adapter its two files are judged, without a model.
The work is in `glmforge.models.inspection`, `glmforge.train.run_survey` and `glmforge.adapters`.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from glmforge.cli.output import print_json


def inspect(
    model: Annotated[
        str, typer.Argument(help="A model, an adapter, a hub id, a run, or its checkpoint.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Print family, vocabulary, parameters, template, LoRA targets; of a run its checkpoints."""
    from glmforge.errors import ModelError
    from glmforge.models.inspection import inspect_model

    if (Path(model) / "adapter_config.json").is_file():
        _inspect_adapter(Path(model), as_json=as_json)
        return
    if _is_no_model(Path(model)):
        from glmforge.train.run_survey import run_facts

        found = run_facts(Path(model))
        if found is not None:
            if as_json:
                print_json(found)
            else:
                print(f"{found.directory}: {found.kind}", *found.lines, sep="\n")
            return
    facts = inspect_model(model)
    if as_json:
        print_json(facts)
    else:
        print("\n".join(_lines(facts)))
    if facts.problems:
        raise ModelError(list(facts.problems))


def _is_no_model(directory: Path) -> bool:
    return directory.is_dir() and not (directory / "config.json").is_file()


def _inspect_adapter(directory: Path, *, as_json: bool) -> None:
    from glmforge.adapters import read_adapter, zero_b

    files = read_adapter(directory)
    targets = files.config.target_modules or ()
    facts = {
        "adapter": str(directory),
        "tensors": len(files.tensors),
        "parameters": sum(tensor.numel() for tensor in files.tensors.values()),
        "r": files.config.r,
        "lora_alpha": files.config.lora_alpha,
        "target_modules": [targets] if isinstance(targets, str) else sorted(targets),
        "base_model_name_or_path": files.config.base_model_name_or_path,
        "changes_nothing": zero_b(files.tensors),
    }
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts))
    print("\n".join(f"{name:<{width}}  {value}" for name, value in facts.items()))


def _lines(facts: Any) -> list[str]:
    counts = facts.parameters
    groups = ", ".join(
        f"{name} {value:,}"
        for name in ("embedding", "attention", "mlp", "norm", "head", "other")
        if (value := getattr(counts, name))
    )
    weights = "none that could be read"
    if facts.weight_files:
        gib = facts.weight_bytes / 2**30
        weights = f"{facts.dtype}, {gib:,.2f} GiB in {facts.weight_files} file(s)"
    tokens = f", {facts.tokenizer_tokens:,} of them known to the tokenizer"
    rows = {
        "directory": facts.directory,
        "family": f"{facts.title} ({facts.family}): {facts.recognised_by}",
        "layout": facts.layout,
        "parameters": f"{counts.total:,} ({groups})",
        "weights": weights,
        "vocabulary": f"{facts.vocabulary_rows:,} rows" + tokens * bool(facts.tokenizer_tokens),
        "positions": f"{facts.max_positions:,} tokens; {facts.positions}",
        "template": f"{facts.template}; an answer ends at {_names(facts.stop_tokens)}",
        "LoRA targets": f"{_names(facts.lora_targets)} (may be {_names(facts.lora_modules)})",
        "packed rows": "yes" if facts.packing else "no",
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    return [*lines, *(f"note: {note}" for note in facts.notes)]


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "what its tokenizer says"
