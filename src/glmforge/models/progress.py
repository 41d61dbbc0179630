"""Transformers' progress bars, switched off around our own calls.

Every rank of a run loads and writes through the same functions, so that each bar ("Loading
weights", "Writing model shards") would be in the log once a rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
from transformers.utils import logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch the bars off, and leave both libraries as they were at the end."""
    if not logging.is_progress_bar_enabled():
        yield
        return
    hub_is_silent = are_progress_bars_disabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        # It switches the hub's bars on as well.
        logging.enable_progress_bar()
        if hub_is_silent:
            disable_progress_bars()
