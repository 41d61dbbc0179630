"""Python's cycle collector, paused while large libraries are imported.

They make hundreds of thousands of objects that stay, and the collector looks through all of them
again at every few more: two of seven seconds before a run's first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector; it goes on afterwards where it was on before."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
