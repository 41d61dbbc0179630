"""Directories that are whole or absent: written under another name, renamed when all is proven.

For everything that leaves a model behind (export, consolidate); checkpoints have their own way.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glmforge.errors import ExportError


@contextmanager
def written_aside(out: Path) -> Iterator[Path]:
    """Give the directory to write into; it becomes `out` only where nothing was raised.

    Raises:
        ExportError: `out` exists already, or cannot be made.
    """
    if out.exists():
        raise ExportError(f"{out}: exists already; nothing was changed. Give another directory")
    temporary = out.with_name(f".tmp-{out.name}")
    try:
        if temporary.exists():
            shutil.rmtree(temporary)
        out.parent.mkdir(parents=True, exist_ok=True)
        # Said before hours of work: the directory is made by whoever writes into it.
        temporary.mkdir()
        temporary.rmdir()
    except OSError as error:
        raise ExportError(f"{out}: cannot be made ({error.strerror}); give another place") from None
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    temporary.rename(out)
