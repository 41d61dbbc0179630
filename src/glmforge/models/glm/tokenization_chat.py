"""Dialogues to ids: the parts a chat format is made of, and ``apply_chat_template`` over them.

A dialogue is a list of parts. A control token is one id; a text is encoded alone and never gives
a control id, so what a user types cannot end a turn. Where two texts meet matters: ChatGLM3
encodes the line after the role token and the content apart, and joining them gives other ids.
Each family's ``_chat_parts`` says its own format; rows and labels are made elsewhere (`data`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import BatchEncoding
from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
)

from glmforge.errors import ModelError
from glmforge.tool_calls import BadCall, calls_of, read_call, tool_fault


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A control token of a dialogue, by its spelling."""

    name: str


ChatPart = str | ControlToken

#: Other spellings of the roles, as the OpenAI format has them.
_ROLE_ALIASES = {"tool": "observation", "function": "observation"}


def read_messages(
    messages: Any,
    roles: Sequence[str],
    family: str,
    call_text: Callable[[str], str] | None = None,
) -> list[dict[str, Any]]:
    """Return the messages as dicts with a role of `roles` and a text content.

    A call that a message carries in ``tool_calls`` becomes a message of its own: the tool's name
    as metadata, what `call_text` makes of the arguments as content.

    Raises:
        ModelError: a role the family does not have, a content that is no text or a call that it
            cannot write (None: any call), with its position; all of them at once.
    """
    problems: list[str] = []
    read: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            problems.append(f"message {number} is {type(message).__name__}, expected role/content")
            continue
        found = message.get("role")
        role = _ROLE_ALIASES.get(found, found) if isinstance(found, str) else found
        content = message.get("content")
        calls = calls_of(message)
        if role not in roles:
            problems.append(
                f"message {number} has role {found!r}, which {family} does not know: "
                f"use one of {', '.join(roles)}"
            )
        if not isinstance(content, str) and (
            content is not None or not (calls or message.get("tools"))
        ):
            problems.append(f"message {number} ({role}) has content {content!r}: it must be a text")
        if content or not calls:
            read.append({**message, "role": role, "content": content or ""})
        if calls and (role != "assistant" or call_text is None):
            who = family if call_text is None else f"a message of role {role!r}"
            problems.append(
                f"message {number} has tool_calls, which {who} cannot make: leave them out"
            )
        elif call_text is not None:
            read.extend(_call_messages(calls, number, call_text, problems))
    if not read and not problems:
        problems.append("the dialogue is empty: give at least one message")
    if problems:
        raise ModelError(problems)
    return read


def _call_messages(
    calls: Sequence[Any], number: int, call_text: Callable[[str], str], problems: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield a message for each call; what is wrong with one goes into `problems`."""
    for value in calls:
        try:
            call = read_call(value)
            content = call_text(call.arguments)
        except BadCall as error:
            problems.append(f"a call in tool_calls of message {number} {error}: {error.advice}")
        else:
            yield {"role": "assistant", "metadata": call.name, "content": content}


def with_tools(
    messages: list[dict[str, Any]], tools: Sequence[Any] | None, prompt: str
) -> list[dict[str, Any]]:
    """Return the messages with `tools` on the system message; one saying `prompt` if none.

    Raises:
        ModelError: the dialogue carries other tools already.
    """
    if not tools:
        return messages
    carried = messages[0].get("tools")
    if carried and read_tools(carried) != read_tools(tools):
        raise ModelError("the dialogue carries tools that differ from `tools`: give one of them")
    if messages[0]["role"] == "system":
        return [{**messages[0], "tools": list(tools)}, *messages[1:]]
    return [{"role": "system", "content": prompt, "tools": list(tools)}, *messages]


def describe_functions(tools: Any) -> Any:
    """Return `tools` with every Python function as its description, from hints and docstring.

    Raises:
        ModelError: a function lacks a docstring or a type hint; all of them at once.
    """
    if not isinstance(tools, list | tuple):
        return tools
    described: list[Any] = []
    problems: list[str] = []
    for number, tool in enumerate(tools):
        if not callable(tool):
            described.append(tool)
            continue
        try:
            described.append(get_json_schema(tool))
        except (DocstringParsingException, TypeHintParsingException) as error:
            problems.append(
                f"tool {number} is a function that transformers cannot describe ({error}): give "
                "it type hints and a docstring with Args, or pass its description"
            )
    if problems:
        raise ModelError(problems)
    return described


def read_tools(tools: Any) -> list[Mapping[str, Any]]:
    """Return the descriptions of tools without the wrapper that the OpenAI format puts around.

    Raises:
        ModelError: `tools` is no list of maps with a named function, naming each that is not.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise ModelError(f"tools is {tools!r}: give a list of function descriptions")
    problems = [
        f"tool {number} {fault}: give its description (name, description, parameters)"
        for number, tool in enumerate(tools)
        if (fault := tool_fault(tool))
    ]
    if problems:
        raise ModelError(problems)
    return [tool.get("function", tool) for tool in tools]


def rounds_of(messages: Sequence[Mapping[str, Any]], family: str) -> list[tuple[str, str | None]]:
    """Return (question, answer) pairs of a strict user/assistant dialogue; last answer may miss.

    Raises:
        ModelError: the turns do not alternate, naming the first that is out of place.
    """
    for number, message in enumerate(messages):
        expected = "assistant" if number % 2 else "user"
        if message["role"] != expected:
            raise ModelError(
                f"message {number} has role {message['role']!r} where {family} needs {expected!r}: "
                "its format has only rounds of one question and one answer"
            )
    answers = [message["content"] for message in messages[1::2]]
    questions = [message["content"] for message in messages[::2]]
    missing: list[None] = [None] * (len(questions) - len(answers))
    return list(zip(questions, [*answers, *missing], strict=True))


class ChatEncoding:
    """The dialogue half of a tokenizer; mixed into `GLMTokenizer`, which has the text half."""

    family: ClassVar[str] = ""
    convert_tokens_to_ids: Any

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text read as message content."""
        raise AssertionError("GLMTokenizer brings the text half")

    def _chat_parts(
        self, messages: Any, tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[ChatPart]:
        """Return the dialogue as control tokens and texts, each encoded by itself."""
        raise AssertionError("a subclass brings the chat format")

    def encode_parts(self, parts: Sequence[ChatPart]) -> list[int]:
        """Return the ids of chat parts: a control token is its id, a text is encoded alone."""
        encoded = iter(self.encode_texts([part for part in parts if isinstance(part, str)]))
        ids: list[int] = []
        for part in parts:
            if isinstance(part, ControlToken):
                ids.append(self.convert_tokens_to_ids(part.name))
            else:
                ids += next(encoded)
        return ids

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Sequence[Any] | None = None,
        documents: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_dict: bool = True,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the family's true ids of a dialogue (or a batch of them).

        Content never becomes a control id, whatever it spells. `tools` go to the system message
        in the family's own words. Returns what transformers' method returns: a `BatchEncoding`,
        ids with ``return_dict=False``, the prompt as a text with ``tokenize=False``.

        Raises:
            ModelError: a role, a content or an option that the family's format cannot express.
        """
        refused = [
            f"{name} is not supported by the {self.family} chat format: leave it out"
            for name, value in (
                ("chat_template", chat_template),
                ("documents", documents),
                ("continue_final_message", kwargs.get("continue_final_message")),
                ("return_assistant_tokens_mask", kwargs.get("return_assistant_tokens_mask")),
            )
            if value
        ]
        if refused:
            raise ModelError(refused)
        batched = bool(conversation) and isinstance(conversation[0], (list, tuple))
        tools = describe_functions(tools)
        parts = [
            self._chat_parts(dialogue, tools, add_generation_prompt)
            for dialogue in (conversation if batched else [conversation])
        ]
        if not tokenize:
            written = [
                "".join(part if isinstance(part, str) else part.name for part in dialogue)
                for dialogue in parts
            ]
            return written if batched else written[0]
        rows = [self.encode_parts(dialogue) for dialogue in parts]
        encoded: BatchEncoding = self(  # type: ignore[operator]
            rows if batched else rows[0],
            add_special_tokens=False,
            padding=padding,
            truncation=truncation,
            max_length=max_length,
            return_tensors=return_tensors,
            **(tokenizer_kwargs or {}),
        )
        return encoded if return_dict else encoded["input_ids"]
