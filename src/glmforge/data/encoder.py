"""Text to ids, many texts at a time.

A native tokenizer is an order of magnitude faster on a batch than on single messages. Templates
ask for one text after another, so a template's ``TextEncoder`` first records what would be asked
for a batch of dialogues, encodes all of it in one call, and then answers from memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_SHORT = 8  # characters of a text that is kept for good: "\n" stands in every message
_SHORT_KEPT = 4096


class TokenizerLike(Protocol):
    """What the data room needs of a tokenizer of the ChatGLM families."""

    family: str

    @property
    def eos_token_id(self) -> int | None: ...

    def encode_text(self, text: str) -> list[int]: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


class TextEncoder:
    """The text encoding of a tokenizer with a memory for the dialogues at hand."""

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}
        self._short: dict[str, list[int]] = {}
        self._recorded: dict[str, None] | None = None

    def __call__(self, text: str) -> list[int]:
        """Ids of a text; while recording, the text is noted and the ids are empty."""
        if self._recorded is not None:
            self._recorded[text] = None
            return []
        short = len(text) <= _SHORT
        ids = self._short.get(text) if short else None
        if ids is None:
            ids = self._known.get(text)
        if ids is None:
            ids = self._tokenizer.encode_text(text)
            if short and len(self._short) < _SHORT_KEPT:
                self._short[text] = ids
        return ids

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Record the texts asked for inside; at the end encode them all and keep only them."""
        self._recorded = {}
        try:
            yield
            texts = list(self._recorded)
        finally:
            self._recorded = None
        encode_texts = getattr(self._tokenizer, "encode_texts", None)
        if encode_texts is not None:
            self._known = dict(zip(texts, encode_texts(texts)))
