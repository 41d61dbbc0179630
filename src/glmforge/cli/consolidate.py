"""`glmforge consolidate CHECKPOINT OUT`: shards of DeepSpeed to one model or adapter.

For checkpoints of ours, of DeepSpeed and of transformers' Trainer; the work is in
`glmforge.export.consolidate`.
"""

from pathlib import Path
from typing import Annotated

import typer

from glmforge.cli.output import print_json


def consolidate(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint directory (with global_step* in it).")
    ],
    out: Annotated[Path, typer.Argument(help="Directory to make.")],
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Folder of shards, where there are several.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(help="Model that training began from, where nothing tells.")
    ] = None,
    with_base: Annotated[
        bool,
        typer.Option(
            "--with-base",
            help="LoRA: write the frozen base too; whole weights: take frozen tensors that the "
            "shards leave out from the base.",
        ),
    ] = False,
    adapter_config: Annotated[
        Path | None, typer.Option(help="adapter_config.json, where the checkpoint has none.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, bf16 or fp16.")] = "fp32",
    max_shard_size: Annotated[
        str | None, typer.Option(help="Largest file of whole weights (5GB without it).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Join a checkpoint's shards: one safetensors model, or one PEFT adapter."""
    from glmforge.export.consolidate import consolidate as run_consolidate

    report = run_consolidate(
        checkpoint,
        out,
        tag=tag,
        base=base,
        with_base=with_base,
        adapter_config=adapter_config,
        dtype=dtype,
        max_shard_size=max_shard_size,
    )
    if as_json:
        print_json(report)
    else:
        print("\n".join(report.lines()))
