"""Standard error that outlives its reader: a run is not ended by the end of its log.

`tee`, `head` or a terminal may go away while a run of days goes on, and the disk of its log may be
full. What is printed then is lost; metrics.jsonl and the checkpoints have what matters.
"""

import errno
import io
import os
from typing import Any, TextIO

_NO_READER = (errno.EPIPE, errno.EIO, errno.ENXIO)
"""What writing answers for good: a pipe without a reader, a terminal that is gone."""


class LastingFile(io.FileIO):
    """A file descriptor on which every write succeeds, read or not."""

    def write(self, data: Any, /) -> int:
        """Write, or lose, some bytes; return how many."""
        try:
            return super().write(data)
        except BlockingIOError:
            raise  # not lost: a pipe that is set not to block is full for the moment
        except OSError as error:
            if error.errno in _NO_READER:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.fileno())
                os.close(nowhere)
            return memoryview(data).nbytes


def lasting(stream: TextIO) -> TextIO:
    """Return a stream like `stream`, on the same descriptor, whose writes never fail.

    Args:
        stream: such as ``sys.stderr``; what has no descriptor of its own is returned as it is.
    """
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(LastingFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
