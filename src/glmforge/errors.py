"""The exceptions a user may meet, and the exit status each one ends the program with.

::

    GlmForgeError                exit 1   the user's problem, named
    ├── ConfigError                       a setting, or several, in the run config
    ├── DataError                         a data file or rows of it
    ├── ModelError                        a model or tokenizer directory
    ├── AdapterError                      LoRA settings or an adapter directory
    ├── CheckpointError                   a run directory or checkpoint
    ├── ExportError                       weights that cannot be written or do not prove equal
    ├── LaunchError                       processes, ports, ranks that cannot start
    ├── TrainingError                     a run that cannot go on (no rows, loss not finite)
    ├── UsageError               exit 2   the command line
    ├── RankFailed               exit 4   a rank or a machine died
    └── Stopped                  exit 75  ended by a signal, with a verified checkpoint

Every message says what is wrong (with the value), where (file:line, field, rank) and what to do
next. An error carries *all* the problems of its kind that were found, not the first. Anything
that is not a ``GlmForgeError`` is our own bug: exit status 3.
"""

from collections.abc import Sequence


class Unlisted(str):
    """A line of an error that stands for ``number`` further problems, which it only counts."""

    number: int

    def __new__(cls, text: str, number: int = 1) -> "Unlisted":
        """Make the line."""
        line = super().__new__(cls, text)
        line.number = number
        return line


class GlmForgeError(Exception):
    """A problem that the user can act on: one or several sentences, no traceback needed."""

    exit_code = 1

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        assert self.problems, "an error needs at least one problem"
        super().__init__(self.problems)  # one argument: an error travels between ranks pickled

    def __str__(self) -> str:
        """One problem as it is; several as a numbered list, one a line."""
        if len(self.problems) == 1:
            return self.problems[0]
        total = sum(text.number if isinstance(text, Unlisted) else 1 for text in self.problems)
        lines = [
            text if isinstance(text, Unlisted) else f"{number}. {text}"
            for number, text in enumerate(self.problems, 1)
        ]
        return "\n".join([f"{total:,} problems:", *lines])


class ConfigError(GlmForgeError):
    """One or several settings of the run config are wrong."""


class DataError(GlmForgeError):
    """A data file cannot be read, or rows of it break a rule."""


class ModelError(GlmForgeError):
    """A model or tokenizer directory cannot be used."""


class AdapterError(GlmForgeError):
    """LoRA settings fit no module, or an adapter does not fit its base."""


class CheckpointError(GlmForgeError):
    """A run directory or a checkpoint is missing, incomplete, damaged or of another run."""


class ExportError(GlmForgeError):
    """Weights cannot be written, or what was written is not equal to what was trained."""


class LaunchError(GlmForgeError):
    """Processes cannot be started or cannot find each other."""


class TrainingError(GlmForgeError):
    """A run cannot start or go on (no trainable rows, a loss that is not finite)."""


class UsageError(GlmForgeError):
    """The command line is wrong."""

    exit_code = 2


class RankFailed(GlmForgeError):
    """A rank or a machine died; the message names the first one and what its end means."""

    exit_code = 4


class Stopped(GlmForgeError):
    """A signal ended the run after a verified checkpoint was written."""

    exit_code = 75
