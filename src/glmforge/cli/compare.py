"""`glmforge compare`: did it get better? Two models before and after, or two runs step by step.

With `--base` and `--tuned` the same prompts go through all models and a report is written; with
`--runs` the recorded numbers of two runs stand side by side. The work is in `glmforge.compare`,
the page in `glmforge.ui`.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmforge.cli.given import flag_of, given_options, refuse_idle
from glmforge.cli.imports import heavy_imports
from glmforge.cli.output import print_json
from glmforge.distributed.env import World, read_secret, read_world
from glmforge.errors import UsageError
from glmforge.launch import launch_local

if TYPE_CHECKING:
    from glmforge.compare.report import Report
    from glmforge.compare.setup import Request

Runs = Annotated[
    tuple[Path, Path] | None,
    typer.Option(help="Two run directories, side by side.", metavar="A B", show_default=False),
]
Rows = Annotated[int, typer.Option(min=2, help="Most steps in the table (--json has all).")]
Base = Annotated[Path | None, typer.Option(help="The model before: a model directory.")]
Tuned = Annotated[
    list[Path] | None,
    typer.Option(help="After: a run, checkpoint, adapter or model; may be given several times."),
]
Prompts = Annotated[
    Path | None, typer.Option(help="Questions: a text file, a line each, or any dialogue file.")
]
References = Annotated[
    bool | None,
    typer.Option(
        "--references/--no-references",
        help="Compare with the prompt file's answers; without it where there are some.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="The page; .md and .json come beside it.")]
NewTokens = Annotated[int, typer.Option(min=1, help="Longest answer (tokens).")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts answered together.")]
Beams = Annotated[int | None, typer.Option(min=2, help="Answer by beam search too (beams).")]
Seeds = Annotated[int, typer.Option(min=0, help="Draw so many answers to each prompt too.")]
Temperature = Annotated[float, typer.Option(min=0.01, help="Of drawn answers.")]
TopP = Annotated[float, typer.Option(min=0.01, max=1.0, help="Of drawn answers.")]
Penalty = Annotated[float, typer.Option(min=1.0, help="Repetition penalty of drawn answers.")]
FormatRegex = Annotated[
    str | None, typer.Option(help="Form of a right answer: a regular expression for all of it.")
]
FormatSchema = Annotated[
    Path | None, typer.Option(help="Form of a right answer: a JSON Schema (file).")
]
Validation = Annotated[
    list[str] | None,
    typer.Option(help="Dialogues for the loss; without it those of the tuned model's run."),
]
General = Annotated[
    bool,
    typer.Option("--general/--no-general", help="Ask the general set too: what was forgotten?"),
]
Precision = Annotated[
    str | None, typer.Option("--dtype", help="bf16, fp16 or fp32; without it bf16 on a GPU.")
]
NumProcesses = Annotated[int | None, typer.Option(min=1, help="Processes on this machine.")]
Gpus = Annotated[str | None, typer.Option(help="GPUs such as 0,2.")]
JudgeUrl = Annotated[
    str | None,
    typer.Option(help="An OpenAI-compatible endpoint as judge, such as http://127.0.0.1:8000/v1."),
]
JudgeModel = Annotated[str | None, typer.Option(help="Name of the judge's model.")]
JudgeKey = Annotated[
    str | None, typer.Option(help="Environment variable with the judge's key.", metavar="NAME")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def compare(
    context: typer.Context,
    runs: Runs = None,
    rows: Rows = 20,
    base: Base = None,
    tuned: Tuned = None,
    prompts: Prompts = None,
    references: References = None,
    out: Out = Path("report.html"),
    max_new_tokens: NewTokens = 256,
    batch_size: BatchSize = 8,
    beams: Beams = None,
    seeds: Seeds = 0,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    repetition_penalty: Penalty = 1.2,
    format_regex: FormatRegex = None,
    format_schema: FormatSchema = None,
    validation: Validation = None,
    general: General = True,
    dtype: Precision = None,
    nproc: NumProcesses = None,
    gpus: Gpus = None,
    judge_url: JudgeUrl = None,
    judge_model: JudgeModel = None,
    judge_key_env: JudgeKey = None,
    as_json: AsJson = False,
) -> None:
    """Compare models before and after tuning (--base, --tuned), or two runs (--runs)."""
    options = context.params
    given = given_options(context)
    _refuse_idle(options, given)
    if runs is not None:
        _compare_runs(runs, rows, as_json)
        return
    if base is None or not tuned or prompts is None:
        raise UsageError(
            "compare what? Models: --base DIR --tuned RUN --prompts FILE. Two runs: --runs A B"
        )
    if out.suffix not in (".html", ".htm"):
        raise UsageError(f"--out {out}: the report is a page, give a name that ends with .html")
    if (judge_url is None) != (judge_model is None):
        raise UsageError("--judge-url and --judge-model: a judge needs both")
    world = read_world()
    if world.launcher == "none" and ((nproc or 1) > 1 or gpus is not None):
        argv = _arguments({name: value for name, value in options.items() if name in given})
        raise typer.Exit(launch_local(argv, nproc=nproc, gpus=gpus))
    request = _request(options)
    _check_room(out, request.kept_dir)
    report = _compared(request, world)
    if report is not None:
        _write(report, out, as_json)


def _refuse_idle(options: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse what would do nothing.

    Raises:
        UsageError: names the options.
    """
    if options["runs"] is not None:
        others = [name for name in options if name not in ("runs", "rows", "as_json")]
        reason = "no part of --runs, which reads two run directories and prints; leave it out"
        refuse_idle(given, others, reason)
        if options["as_json"]:
            refuse_idle(given, ["rows"], "--json has all steps; leave it out")
        return
    refuse_idle(given, ["rows"], "only with --runs A B")
    if not options["seeds"]:
        drawn = ("temperature", "top_p", "repetition_penalty")
        refuse_idle(given, drawn, "of drawn answers, and none are drawn; add --seeds N")
    if options["judge_url"] is None and options["judge_model"] is None:
        refuse_idle(given, ["judge_key_env"], "a judge needs --judge-url and --judge-model")


def _compare_runs(runs: tuple[Path, Path], rows: int, as_json: bool) -> None:
    from glmforge.compare.runs import compare_runs, comparison_lines

    found = compare_runs(*runs)
    if as_json:
        print_json(found)
    else:
        print("\n".join(comparison_lines(found, most_steps=rows)))


def _request(options: Mapping[str, Any]) -> "Request":
    from glmforge.compare.answers import decodings
    from glmforge.compare.checks import format_of
    from glmforge.compare.judge import judge_of
    from glmforge.compare.setup import Request
    from glmforge.models.dtypes import DTYPES

    if options["dtype"] not in (None, *DTYPES):
        raise UsageError(f"--dtype {options['dtype']}: use one of {', '.join(DTYPES)}")
    judge = None
    if options["judge_url"] is not None:
        judge = judge_of(
            options["judge_url"], options["judge_model"], options["judge_key_env"], read_secret
        )
    return Request(
        base=options["base"],
        tuned=options["tuned"],
        prompts=options["prompts"],
        kept_dir=options["out"].with_suffix(".answers"),
        ways=decodings(
            beams=options["beams"],
            seeds=options["seeds"],
            temperature=options["temperature"],
            top_p=options["top_p"],
            repetition_penalty=options["repetition_penalty"],
        ),
        references=options["references"],
        validation=options["validation"] or (),
        general=options["general"],
        max_new_tokens=options["max_new_tokens"],
        batch_size=options["batch_size"],
        dtype=options["dtype"],
        form=format_of(options["format_regex"], options["format_schema"]),
        judge=judge,
    )


def _check_room(out: Path, kept_dir: Path) -> None:
    """Look whether page and answers can be written: hours later would be too late.

    Nothing is made yet, as the comparison may still be refused.

    Raises:
        UsageError: the page cannot be written there.
    """
    top = next(path for path in (kept_dir, *kept_dir.absolute().parents) if path.exists())
    if not top.is_dir() or not os.access(top, os.W_OK):
        why = "not writable" if top.is_dir() else "a file"
        raise UsageError(f"--out {out}: {kept_dir} cannot be made ({top} is {why})")
    if out.is_dir() or (out.exists() and not os.access(out, os.W_OK)):
        raise UsageError(f"--out {out}: cannot be written; give another place")


def _compared(request: "Request", world: World) -> "Report | None":
    with heavy_imports():
        from glmforge.compare.run import compare_models
        from glmforge.distributed.collectives import Ranks, pick_device, process_group

    def say(line: str) -> None:
        if world.rank == 0:
            typer.echo(line, err=True)

    if world.world_size == 1:
        return compare_models(request, Ranks(world=world, device=pick_device(world)), say)
    with process_group(world) as ranks:
        return compare_models(request, ranks, say)


def _write(report: "Report", out: Path, as_json: bool) -> None:
    """Write the page, the Markdown and the JSON, and print the verdict."""
    from glmforge.compare.markdown import markdown
    from glmforge.compare.report import report_values, write_json
    from glmforge.compare.verdict import in_one_line
    from glmforge.ui.compare_page import compare_page

    out.parent.mkdir(parents=True, exist_ok=True)
    pages = {out: compare_page(report), out.with_suffix(".md"): markdown(report)}
    for path, text in pages.items():
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
    write_json(report, out.with_suffix(".json"))
    if as_json:
        print_json(report_values(report))
        return
    for model in report.tuned:
        print(f"{model.name}: {in_one_line(model.verdict)[0]}")
    print(f"report: {out} (also {out.with_suffix('.md')}, {out.with_suffix('.json')})")


def _arguments(options: Mapping[str, Any]) -> list[str]:
    """The command line of each rank: ours without what says how many there are."""
    argv = ["compare"]
    for name, value in options.items():
        if name in ("runs", "rows", "nproc", "gpus") or value is None:
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            no = f"--no-{name}" if name in ("references", "general") else None
            argv += [flag] if value else [no] if no else []
        else:
            for item in value if isinstance(value, list) else [value]:
                argv += [flag, str(item)]
    return argv
