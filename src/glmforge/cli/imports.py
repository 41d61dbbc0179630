"""Imports of torch, transformers and DeepSpeed in a third less time.

They make hundreds of thousands of objects that stay, and Python's cycle collector looks through all
of them again at every few more: two of seven seconds before a run's first step.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause the collector, and let it leave alone for good what there is at the end.

    For the program's own commands: a library would keep its caller's garbage too.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()
