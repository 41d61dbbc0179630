"""What a terminal conversation remembers, and how much of it the model can take.

A dialogue is plain messages; its prompt is made by ``data`` as training makes it. Where the whole
is longer than the model's positions, the oldest turns go first and the system message stays.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.data import generation_prompt
from glmforge.errors import GlmForgeError
from glmforge.serve.called_tools import tool_names
from glmforge.serve.opening import OpenModels
from glmforge.tool_calls import ToolCall


class TooLong(GlmForgeError):
    """A prompt that leaves the model no room for an answer; the message has the numbers."""


class Dialogue:
    """The messages of one conversation."""

    def __init__(
        self, models: OpenModels, system: str | None, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._models = models
        self._tools = [dict(tool) for tool in tools]
        self._messages: list[dict[str, Any]] = []
        self.system = system

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Names of the tools that the model is told."""
        return tool_names(self._tools)

    def add(self, message: dict[str, Any]) -> None:
        """Remember a message."""
        self._messages.append(message)

    def add_call(self, call: ToolCall) -> None:
        """Remember that the model called a tool."""
        made = {"function": {"name": call.name, "arguments": call.arguments}}
        self.add({"role": "assistant", "content": None, "tool_calls": [made]})

    def add_raw_call(self, raw: str) -> None:
        """Remember a call as the model spelled it: the line with the name, and the rest."""
        header, _, body = raw.strip(" ").partition("\n")
        self.add({"role": "assistant", "metadata": header.strip(), "content": body})

    def remove_last(self) -> None:
        """Forget the last message."""
        self._messages.pop()

    def clear(self) -> None:
        """Forget all but the system message."""
        self._messages.clear()

    def take_back_last(self) -> dict[str, Any] | None:
        """Forget everything from the last question on, and return the question."""
        while self._messages:
            message = self._messages.pop()
            if message["role"] == "user":
                return message
        return None

    def drop_old(self, max_new_tokens: int) -> int:
        """Forget the oldest turns until the rest and an answer fit; return how many went.

        Half of the positions is the most that is kept free for the answer.
        """
        positions, dropped = self._models.positions, 0
        kept_free = min(max_new_tokens, positions // 2)
        while positions and len(self._prompt()) + kept_free > positions:
            starts = [n for n, message in enumerate(self._messages) if message["role"] == "user"]
            if len(starts) < 2:
                break
            del self._messages[: starts[1]]
            dropped += 1
        return dropped

    def fit(self, max_new_tokens: int) -> tuple[list[int], int]:
        """Return the prompt's ids and how many tokens an answer may have.

        Raises:
            TooLong: the prompt alone fills the model's positions.
        """
        prompt, positions = self._prompt(), self._models.positions
        room = min(max_new_tokens, positions - len(prompt)) if positions else max_new_tokens
        if room < 1:
            raise TooLong(
                f"the message and what stands before it are {len(prompt):,} tokens; the model has "
                f"{positions:,} positions: shorten it"
            )
        return prompt, room

    def _prompt(self) -> list[int]:
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return generation_prompt(
            [*opening, *self._messages], self._models.tokenizer, self._tools or None
        )
