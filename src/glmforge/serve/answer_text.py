"""Tokens to text while they come: whole characters only, stop strings cut, tool calls held back.

``TokenText`` turns ids into text without ever showing half of a character: several tokens may
spell one. ``AnswerText`` is what a reader sees of it: no white space around the answer, nothing
from a stop string on, and nothing of a tool call, which is shown whole at its end. What it gave out
piece by piece is, joined, exactly the final text.
"""

from collections.abc import Sequence
from typing import Any

from glmforge.serve.called_tools import read_called
from glmforge.tool_calls import ToolCall

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class TokenText:
    """The text of ids that come one at a time."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # Ours keep control spellings apart from control tokens. Others would read what they show
        # as control tokens, so a model that makes some up has them left out.
        self._skips = not hasattr(tokenizer, "encode_text")
        self._ids: list[int] = []
        self._from, self._given = 0, 0  # decoding starts at _from; up to _given is given out

    def push(self, token_id: int) -> str:
        """Take an id; return the whole characters that it completes."""
        self._ids.append(token_id)
        text = self._new_text()
        if not text or text.endswith(_BROKEN):
            return ""
        self._from, self._given = self._given, len(self._ids)
        return text

    def finish(self) -> str:
        """Return what is left; a character that was cut in the middle is left out."""
        text = self._new_text().rstrip(_BROKEN)
        self._from = self._given = len(self._ids)
        return text

    def _new_text(self) -> str:
        # Decoders treat the first piece of a text apart (its blank): decoding begins one step
        # before what is new, and what that step gives alone is left out.
        before = self._decode(self._ids[self._from : self._given])
        return self._decode(self._ids[self._from :])[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skips)) if ids else ""


class AnswerText:
    """What a reader sees of an answer while its tokens come."""

    def __init__(
        self, tokenizer: Any, *, stops: Sequence[str] = (), tool_names: Sequence[str] = ()
    ) -> None:
        """Begin an answer.

        Args:
            tokenizer: the model's.
            stops: strings that end the answer; they are not shown.
            tool_names: tools that the model was told; a first line that is one of them is a call.
        """
        self._tokens = TokenText(tokenizer)
        self._stops = tuple(stops)
        self._tool_names = tuple(tool_names)
        self._raw = ""
        self._shown = 0
        self.stopped = False
        """Whether a stop string came."""

    def push(self, token_id: int) -> str:
        """Take an id; return what is new to see."""
        return self._show(self._tokens.push(token_id), final=False)

    def finish(self) -> tuple[str, ToolCall | None]:
        """Return what is left to see, and the call that the answer is."""
        self._raw += self._tokens.finish()
        call = read_called(self._raw) if self._may_be_call() else None
        return ("" if call else self._show("", final=True)), call

    @property
    def text(self) -> str:
        """The answer as far as it was shown."""
        return self._body()[: self._shown]

    @property
    def raw(self) -> str:
        """Everything that was decoded."""
        return self._raw

    def _show(self, more: str, *, final: bool) -> str:
        self._raw += more
        body = self._body()
        places = [at for stop in self._stops if (at := body.find(stop)) >= 0]
        if places:
            self.stopped = True
            end = len(body[: min(places)].rstrip())
        elif final:
            end = len(body.rstrip())
        elif self._may_be_call():
            end = 0
        else:
            end = len(body[: len(body) - self._held(body)].rstrip())
        new = body[self._shown : end]
        self._shown = max(self._shown, end)
        return new

    def _body(self) -> str:
        return self._raw.lstrip()

    def _held(self, body: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(body)), longest, -1):
                if stop.startswith(body[-size:]):
                    longest = size
                    break
        return longest

    def _may_be_call(self) -> bool:
        """Whether the first line is, or may become, the name of a tool."""
        if not self._tool_names:
            return False
        header, newline, _ = self._raw.lstrip(" ").partition("\n")
        if newline:
            return header.strip() in self._tool_names
        return any(name.startswith(header.strip()) for name in self._tool_names)
