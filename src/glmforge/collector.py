"""Python's cycle collector, kept from the objects of large libraries.

They make hundreds of thousands that stay, and the collector looks through all of them again at
every few more: two of seven seconds before a run's first step, a tenth of the time in which
dialogues become examples.
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


@contextmanager
def collector_looks_at_new_ones() -> Iterator[None]:
    """Let the collector pass over what there is already; afterwards it looks at all again."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
