"""`glmforge data check`, `preview`, `prepare`: look at dialogues and prepare them before training.

The first two take files, or `--config` for what a run would read; exit status 1 of `check` means
that training on the set would be a mistake. `prepare` makes a run's prepared sets on a machine that
needs no GPU. The work is in `glmforge.data` and `glmforge.train.training_data`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from glmforge.cli.arguments import Settings
from glmforge.errors import GlmForgeError, UsageError

app = typer.Typer(
    help="Check, preview and prepare training data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Files = Annotated[list[Path] | None, typer.Argument(help="Data files, directories or hub names.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="Take them from a run config.")]
Model = Annotated[
    Path | None, typer.Option("--model", help="Model directory whose tokenizer is used.")
]
MaxLength = Annotated[int | None, typer.Option(min=8, help="Longest row (tokens).")]
Labels = Annotated[str | None, typer.Option(help="all_turns, last_turn or official.")]
Truncation = Annotated[str | None, typer.Option(help="What happens to a dialogue too long.")]
Repair = Annotated[
    list[str] | None, typer.Option(help="merge, trim, flatten or gbk; may be repeated.")
]
Column = Annotated[list[str] | None, typer.Option(help="OUR_FIELD=THEIR_FIELD; may be repeated.")]

PAGE_ROWS = 2000
"""Rows that one preview page holds; a browser shows so many at once without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    train: list[str]
    validation: list[str]
    model: Path | None
    max_length: int
    labels: str
    truncation: str
    columns: Mapping[str, str] = field(default_factory=dict)
    repair: tuple[str, ...] = ()

    def options(self) -> Any:
        """How the files are read.

        Raises:
            DataError: a path does not exist, or a validation file is trained on too.
        """
        from glmforge.data.files import refuse_shared
        from glmforge.data.sources import ReadOptions

        refuse_shared(self.train, self.validation)
        beside = (*self.train, *self.validation)
        return ReadOptions(columns=self.columns, repairs=self.repair, beside=beside)

    def tokenizer(self) -> Any:
        """The model's tokenizer, or None."""
        if self.model is None:
            return None
        from glmforge.models import load_tokenizer

        return load_tokenizer(self.model)

    def within_positions(self, *, chosen: bool) -> "_Inputs":
        """Rows no longer than the model has positions; by default as long as both allow.

        Raises:
            UsageError: a length that was chosen is longer.
        """
        if self.model is None or not (self.model / "config.json").is_file():
            return self
        from glmforge.models import load_config

        positions = getattr(load_config(self.model), "max_position_embeddings", None)
        if positions is None or self.max_length <= positions:
            return self
        if chosen:
            raise UsageError(
                f"rows of {self.max_length} tokens are longer than the {positions} positions of "
                f"{self.model}: max_length {positions} or less"
            )
        return replace(self, max_length=positions)


def _inputs(
    files: list[Path] | None,
    config: Path | None,
    given: dict[str, Any],
) -> _Inputs:
    """Join what the command line and the config say; the command line wins."""
    if bool(files) == (config is not None):
        raise UsageError("give data files, or --config with a run config")
    inputs = _Inputs(
        train=[str(path) for path in files or []],
        validation=[],
        model=None,
        max_length=2048,
        labels="all_turns",
        truncation="drop_last_turns",
    )
    if config is not None:
        from glmforge.config import load_config_file
        from glmforge.config.paths import sources_of

        run = load_config_file(config)
        inputs = _Inputs(
            train=[path for path, _ in sources_of(run.data.train)],
            validation=[path for path, _ in sources_of(run.data.validation)],
            model=Path(run.model.model_name_or_path),
            max_length=run.data.max_length,
            labels=run.data.labels,
            truncation=run.data.truncation,
            columns=run.data.columns,
            repair=tuple(run.data.repair),
        )
    said = {name: value for name, value in given.items() if value is not None}
    chosen = config is not None or "max_length" in said
    return replace(inputs, **said).within_positions(chosen=chosen)


@contextmanager
def _errors_as_json(wanted: bool) -> Iterator[None]:
    """Print an error that leaves no report as JSON, where that is what a program reads."""
    try:
        yield
    except GlmForgeError as error:
        if not wanted:
            raise
        from glmforge.cli.output import print_json

        print_json({"error": list(error.problems), "blocks": True})
        raise typer.Exit(error.exit_code) from error


def _columns(pairs: list[str] | None) -> dict[str, str] | None:
    if not pairs:
        return None
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise UsageError(f"--column {wrong[0]}: write OUR_FIELD=THEIR_FIELD")
    return dict(pair.split("=", 1) for pair in pairs)


@app.command()
def check(
    files: Files = None,
    config: ConfigFile = None,
    model: Model = None,
    validation: Annotated[
        list[Path] | None, typer.Option(help="Held-out files, to find what they share.")
    ] = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    truncation: Truncation = None,
    repair: Repair = None,
    column: Column = None,
    show: Annotated[int, typer.Option(min=0, help="Problems written out.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Say whether training on FILES would be a mistake, and what to fix first."""
    held_out = [str(path) for path in validation] if validation else None
    given = {"model": model, "validation": held_out, "max_length": max_length,
             "labels": labels, "truncation": truncation, "columns": _columns(column),
             "repair": tuple(repair) if repair else None}  # fmt: skip
    inputs = _inputs(files, config, given)
    from glmforge.cli.output import print_json
    from glmforge.data.quality import examine
    from glmforge.data.quality_text import report_lines, report_values
    from glmforge.data.sources import iterate
    from glmforge.data.verdict import blocks

    with _errors_as_json(as_json):
        options = inputs.options()
        report = examine(
            iterate(inputs.train, replace(options, go_on=True)),
            validation=iterate(inputs.validation, options),
            tokenizer=inputs.tokenizer(),
            max_length=inputs.max_length,
            labels=inputs.labels,  # type: ignore[arg-type]  # checked by limit_of
            truncation=inputs.truncation,  # type: ignore[arg-type]
        )
    if as_json:
        print_json(report_values(report))
    else:
        _print_files(inputs.train)
        print("\n".join(report_lines(report, problems=show)))
    if blocks(report):
        raise typer.Exit(1)


def _print_files(paths: list[str]) -> None:
    """Say which files are read where that is not what was written, and which are not."""
    from glmforge.data.sources import data_files, names_of, passed_over

    files_read = data_files(paths)
    called = names_of(files_read)
    names = [called[file] for file in files_read]
    if names != [Path(path).name for path in paths]:
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        print(f"{len(names)} files: {', '.join(names[:12])}{more}")
    directories = [Path(path) for path in paths if Path(path).is_dir()]
    others = [file.name for place in directories for file in passed_over(place)]
    if others:
        more = f" and {len(others) - 12} more" if len(others) > 12 else ""
        print(f"not read, by their names: {', '.join(others[:12])}{more}")


@app.command()
def preview(
    files: Files = None,
    config: ConfigFile = None,
    model: Model = None,
    max_length: MaxLength = None,
    labels: Labels = None,
    truncation: Truncation = None,
    repair: Repair = None,
    column: Column = None,
    row: Annotated[int, typer.Option(min=1, help="First row to show, from 1.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="How many rows.")] = 3,
    flag: Annotated[str | None, typer.Option(help="Only rows with this flag.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Write the token ids too.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write one page with up to 2,000 rows from --row on.")
    ] = None,
) -> None:
    """Show rows token by token, trained spans coloured, in the terminal or as a page."""
    given = {"model": model, "max_length": max_length, "labels": labels, "truncation": truncation,
             "columns": _columns(column), "repair": tuple(repair) if repair else None}  # fmt: skip
    inputs = _inputs(files, config, given)
    if inputs.model is None:
        raise UsageError("preview needs a tokenizer: --model DIRECTORY")
    from itertools import islice

    from glmforge.data.preview import Chosen, preview_rows, terminal
    from glmforge.data.preview_page import preview_page
    from glmforge.data.sources import iterate

    options = inputs.options()
    rows = preview_rows(
        iterate(inputs.train, options),
        inputs.tokenizer(),
        max_length=inputs.max_length,
        labels=inputs.labels,  # type: ignore[arg-type]  # checked by limit_of
        truncation=inputs.truncation,  # type: ignore[arg-type]
    )
    chosen = Chosen(rows, flag)
    if html is not None:
        shown = list(islice(chosen, row - 1, row - 1 + PAGE_ROWS))
        if not shown:
            raise UsageError(chosen.nothing_at(row))
        try:
            html.write_text(preview_page(shown, ", ".join(inputs.train)), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"--html {html}: cannot be written ({error.strerror}); name a file in a directory "
                "that exists and may be written"
            ) from error
        more = f", the first {PAGE_ROWS:,}: choose others with --row" if next(chosen, None) else ""
        print(f"page with {len(shown):,} rows written to {html}{more}")
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    found = None
    for found in islice(chosen, row - 1, row - 1 + count):
        console.print(terminal(found, ids=ids))
    if found is None:
        raise UsageError(chosen.nothing_at(row))


@app.command()
def prepare(
    config: Annotated[Path, typer.Argument(help="The run config (YAML).", show_default=False)],
    overrides: Settings = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the directories.")] = False,
    rebuild: Annotated[
        bool, typer.Option(help="Make a damaged set anew, or refuse it as train does.")
    ] = True,
) -> None:
    """Make the prepared sets that a run of CONFIG will use, so that its ranks start at once."""
    from glmforge.config import load_config_file
    from glmforge.train.training_data import prepare_alone

    directories = prepare_alone(load_config_file(config, overrides or []), rebuild=rebuild)
    if not quiet:
        print("\n".join(map(str, directories)))
