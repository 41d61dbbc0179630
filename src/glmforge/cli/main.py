"""The program `glmforge`: its commands, and how each kind of error ends it.

Exit status: 0 done, 1 the user's problem, 2 usage, 3 our bug, 4 a rank died, 75 stopped by a
signal with a checkpoint, 130 interrupted. What fails on several ranks is printed once.
"""

import errno
import importlib.metadata
import logging
import platform
import shlex
import sys
import traceback
import warnings
from typing import Annotated, NoReturn

import typer

from glmforge.cli import (
    chat,
    compare,
    consolidate,
    data,
    demo,
    doctor,
    evaluate,
    export,
    inspect,
    plan,
    serve,
    tokenizer,
    train,
)
from glmforge.cli.streams import lasting
from glmforge.distributed.env import World, read_world
from glmforge.errors import (
    AdapterError,
    ConfigError,
    DataError,
    GlmForgeError,
    LaunchError,
    Stopped,
)
from glmforge.launch.failures import tell

OUR_BUG = 3

# What the system refuses although the program asked rightly: permissions, full or failing disks.
_DISK = {getattr(errno, name) for name in "ENOSPC EDQUOT EFBIG EIO".split()}
_OUTSIDE = _DISK | {getattr(errno, name) for name in "EACCES EPERM EROFS".split()}

app = typer.Typer(
    name="glmforge",
    help="Fine-tune the ChatGLM family on several GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("plan", context_settings={"allow_interspersed_args": True})(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("train", context_settings={"allow_interspersed_args": True})(train.train)
app.add_typer(data.app, name="data")
app.command("inspect")(inspect.inspect)
app.command("consolidate")(consolidate.consolidate)
app.command("export")(export.export)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.add_typer(tokenizer.app, name="tokenizer")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("glmforge"))
        raise typer.Exit


@app.callback()
def glmforge(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    local_rank: Annotated[
        int | None, typer.Option("--local_rank", "--local-rank", hidden=True)
    ] = None,
) -> None:
    """Fine-tune the ChatGLM family on several GPUs.

    The deepspeed launcher puts --local_rank before the command; LOCAL_RANK says the same.
    """
    del version, local_rank


def run() -> NoReturn:
    """Run the program and end the process; the door of the command `glmforge`."""
    sys.stderr = lasting(sys.stderr)
    try:
        status = main()
    except SystemExit as end:  # our own bug, reported
        status = end.code if isinstance(end.code, int) else OUR_BUG
    collectives = sys.modules.get("glmforge.distributed.collectives")
    if collectives is not None:  # nothing else has started a process group
        collectives.leave(status)
    sys.exit(status)


def main() -> int:
    """Run the program with the arguments of this process and return its exit status.

    Raises:
        SystemExit: with status 3, after our own bug was reported.
    """
    _quiet_libraries()
    try:
        app(prog_name="glmforge")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except GlmForgeError as error:
        world = _world()
        tell(world, error.exit_code, _sentence(error, world))
        return error.exit_code
    except OSError as error:
        if error.errno not in (_OUTSIDE if error.filename else _DISK):
            tell(_world(), OUR_BUG, _bug_report())
            raise SystemExit(OUR_BUG) from error
        where = error.filename or "while writing"  # write() itself names no file
        tell(_world(), 1, f"error: {where}: {error.strerror}; nothing more was written")
        return 1
    except Exception as error:
        if type(error).__name__ == "SafetensorError" and "(os error" in str(error):
            tell(_world(), 1, f"error: while writing: {error}; nothing more was written")
            return 1
        tell(_world(), OUR_BUG, _bug_report())
        raise SystemExit(OUR_BUG) from error
    return 0


def _sentence(error: GlmForgeError, world: World) -> str:
    """Say what happened; which rank says it matters only for what ranks may differ in."""
    if isinstance(error, Stopped):
        return str(error)
    alike = isinstance(error, ConfigError | DataError | AdapterError)
    who = "" if alike or world.world_size == 1 else f"rank {world.rank}: "
    return f"error: {who}{error}"


def _quiet_libraries() -> None:
    """Keep libraries' chatter off: stdout is for results, stderr for what the user should read.

    DeepSpeed logs to stdout, at import already; transformers and peft warn of each other's names.
    """
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)


def _world() -> World:
    """Return who this process is, or a process alone where that is the very problem."""
    try:
        return read_world()
    except LaunchError:
        return World()


def _bug_report() -> str:
    """Write the traceback of the current error, and what to do with it."""
    return (
        f"{traceback.format_exc()}\n"
        "error: this is a bug in glmforge, not a mistake of yours. Please report it with the lines "
        f"above and these:\n  command: glmforge {shlex.join(sys.argv[1:])}\n"
        f"  glmforge {importlib.metadata.version('glmforge')}, Python {platform.python_version()}, "
        f"{platform.platform()}"
    )
