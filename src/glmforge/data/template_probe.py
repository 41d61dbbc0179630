"""What a chat template has a place for, found by rendering small dialogues with telling texts.

A record's own texts may be so short that they stand in a rendering by chance; these do not. Each
question is asked once a template, and only when a record needs the answer.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from glmforge.data.chat_messages import CALL_FORMS, CallForm
from glmforge.data.conversation import Conversation, Message
from glmforge.data.segments import Inexpressible

_SYSTEM, _TOOL, _KEY, _VALUE = "zqsystem", "zqtool", "zqkey", "zqvalue"
THINKING = "zqthinking"
_QUESTION = Message(role="user", content="zqquestion")
_ANSWER = Message(role="assistant", content="zqanswer")
_TOOLS = (
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "zqtells",
            "parameters": {
                "type": "object",
                "properties": {_KEY: {"type": "string", "description": "zqtells"}},
                "required": [_KEY],
            },
        },
    },
)
_CALL = Message(
    role="assistant", content="", name=_TOOL, arguments=f'{{"{_KEY}": "{_VALUE}"}}'
)  # fmt: skip
_RESULT = Message(role="observation", content="zqresult")
THINKS_APART = Conversation(
    messages=(_QUESTION, Message(role="assistant", content="zqanswer", reasoning=THINKING))
)
"""A dialogue whose thinking has a field of its own."""
THINKS_INLINE = Conversation(
    messages=(
        _QUESTION,
        Message(role="assistant", content=f"<think>\n{THINKING}\n</think>\n\nzqanswer"),
    )
)
"""A dialogue whose thinking stands in the answer."""

Render = Callable[[Conversation, CallForm], str]
"""Renders a dialogue without generation prompt; raises ``Inexpressible`` where it is refused."""


class TemplateProbe:
    """The answers of one template."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def shows_system(self) -> bool:
        """Whether a system message is rendered, or refused with the template's own words."""
        system = Message(role="system", content=_SYSTEM)
        return self._shows(_SYSTEM, [(system, _QUESTION, _ANSWER)], ())

    @cached_property
    def shows_tools(self) -> bool:
        """Whether tools are rendered, be it only beside a system message."""
        system = Message(role="system", content=_SYSTEM)
        bare = (_QUESTION, _ANSWER)
        return self._shows(_TOOL, [bare, (system, *bare)], _TOOLS)

    @cached_property
    def call_form(self) -> CallForm | None:
        """The form of calls that the template reads; None where it renders none of them."""
        scores = [self._score(form) for form in CALL_FORMS]
        best = max(scores)
        return CALL_FORMS[scores.index(best)] if best else None

    def _shows(
        self, marker: str, dialogues: Sequence[tuple[Message, ...]], tools: Sequence[Any]
    ) -> bool:
        for messages in dialogues:
            try:
                text = self._render(
                    Conversation(messages=messages, tools=tuple(tools)), CALL_FORMS[0]
                )
            except Inexpressible:
                return True  # the record will be refused with the template's own words
            if marker in text:
                return True
        return False

    def _score(self, form: CallForm) -> int:
        """0: no call; 1: its name alone; 2: arguments in Python's or doubled quotes; 3: right."""
        dialogue = Conversation(messages=(_QUESTION, _CALL, _RESULT, _ANSWER))
        try:
            text = self._render(dialogue, form)
        except Inexpressible:
            return 0
        if _TOOL not in text:
            return 0
        if _KEY not in text or _VALUE not in text:
            return 1
        return 2 if f"'{_KEY}'" in text or f'\\"{_KEY}' in text else 3
