"""OpenAI's chat completions in and out: what a request may say, and the shape of every answer.

A field that would change the answer and is not supported is refused by name, never passed over;
fields that only concern bookkeeping are taken and ignored. Message content is text, whatever
control tokens it spells: ``data`` encodes it so. HTTP itself is in ``server``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from glmforge.data import generation_prompt
from glmforge.errors import DataError, GlmForgeError
from glmforge.serve.called_tools import tool_names
from glmforge.serve.opening import OpenModels
from glmforge.serve.replies import Ask, Reply

_MESSAGE_FIELDS = (
    "role", "content", "tool_calls", "function_call", "metadata", "reasoning_content",
)  # fmt: skip


class ApiError(GlmForgeError):
    """A request that is refused: HTTP status, and OpenAI's kind, parameter and code."""

    def __init__(
        self,
        text: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(text)
        self.status, self.kind, self.param, self.code = status, kind, param, code

    def body(self) -> dict[str, Any]:
        """The error as clients of OpenAI read it."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class _ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]


class ChatRequest(BaseModel):
    """The body of POST /v1/chat/completions."""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: list[str] = Field(default_factory=list, max_length=4)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] = "auto"
    # Taken at the values that ask for nothing more than this server does.
    n: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    logprobs: Literal[False] = False
    logit_bias: dict[str, float] = Field(default_factory=dict, max_length=0)
    response_format: _ResponseFormat = _ResponseFormat(type="text")
    # Bookkeeping: changes no answer.
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    parallel_tool_calls: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: list[str]) -> list[str]:
        if not all(value):
            raise ValueError("an empty string would end every answer at once")
        return value


def read_request(body: bytes) -> ChatRequest:
    """Return a request's fields.

    Raises:
        ApiError: the body is no JSON object, or fields are wrong; names all of them.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError("the body is not a JSON object")
    try:
        # Clients write null for what they leave open.
        return ChatRequest.model_validate({k: v for k, v in value.items() if v is not None})
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        texts = [f"{_place(each['loc'])}: {_wrong(each)}" for each in found]
        raise ApiError("; ".join(texts), param=_place(found[0]["loc"])) from error


def _place(parts: Sequence[int | str]) -> str:
    return ".".join(map(str, parts))


def _wrong(error: Mapping[str, Any]) -> str:
    if error["type"] == "extra_forbidden":
        return "this server does not know it"
    shown = "" if error["type"] == "missing" else f" (it is {json.dumps(error['input'])[:60]})"
    return f"{error['msg']}{shown}"


def read_ask(
    request: ChatRequest, models: OpenModels, *, max_length: int, usual_new_tokens: int
) -> Ask:
    """Return the prompt and settings of a request.

    Args:
        request: its fields.
        models: who answers; gives the tokenizer.
        max_length: longest prompt and answer together in tokens; 0 means unknown.
        usual_new_tokens: longest answer where the request names none.

    Raises:
        ApiError: no such model, messages that the family cannot express, or too long.
    """
    if request.model not in models.names:
        raise ApiError(
            f"no model {request.model!r} here; there are {', '.join(models.names)}",
            status=404,
            param="model",
            code="model_not_found",
        )
    tools = request.tools if request.tool_choice == "auto" else None
    messages = [_message(message, n) for n, message in enumerate(request.messages)]
    try:
        prompt = generation_prompt(messages, models.tokenizer, tools or None)
    except DataError as error:
        raise ApiError(str(error), param="messages") from error
    return Ask(
        prompt=prompt,
        max_new_tokens=_room(request, len(prompt), max_length, usual_new_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stops=tuple(request.stop),
        tool_names=tool_names(tools),
    )


def _room(request: ChatRequest, prompt_tokens: int, max_length: int, usual: int) -> int:
    """How many tokens the answer may have."""
    given = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(given) > 1:
        raise ApiError("max_tokens and max_completion_tokens differ", param="max_tokens")
    wanted = given.pop() if given else None
    if not max_length:
        return wanted or usual
    if prompt_tokens + (wanted or 1) > max_length:
        asked = f" and {wanted:,} tokens are asked for" if wanted else ""
        raise ApiError(
            f"the messages are {prompt_tokens:,} tokens{asked}; this model's longest prompt and "
            f"answer together are {max_length:,} tokens: shorten the messages"
            + (" or lower max_tokens" if wanted else ""),
            param="messages",
            code="context_length_exceeded",
        )
    return wanted or min(usual, max_length - prompt_tokens)


def _message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A message with the fields that count, its text parts joined."""
    kept = {name: message[name] for name in _MESSAGE_FIELDS if name in message}
    content = kept.get("content")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            for part in content
        ]
        if not all(isinstance(text, str) for text in texts):
            raise ApiError(
                f"message {number + 1} has parts that are no text; this model reads text only",
                param=f"messages.{number}.content",
            )
        kept["content"] = "".join(str(text) for text in texts)
    return kept


class Answered:
    """The answers to one request, in OpenAI's shapes."""

    def __init__(self, identity: str, created: int, model: str) -> None:
        """Take what all parts of an answer repeat; `created` in seconds since 1970."""
        self._identity, self._created, self._model = identity, created, model

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The answer in one piece."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.call is not None:
            message |= {"content": None, "tool_calls": self._calls(reply)}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(reply),
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage(reply)}

    def first(self) -> dict[str, Any]:
        """The first part of a stream: who speaks."""
        return self._part({"role": "assistant", "content": ""}, None)

    def piece(self, text: str) -> dict[str, Any]:
        """A part with more text."""
        return self._part({"content": text}, None)

    def last(self, reply: Reply) -> list[dict[str, Any]]:
        """The parts that end a stream: a tool call, and why it ended."""
        parts = [self._part({}, finish_reason(reply))]
        if reply.call is not None:
            calls = [{"index": n, **call} for n, call in enumerate(self._calls(reply))]
            parts.insert(0, self._part({"tool_calls": calls}, None))
        return parts

    def counts(self, reply: Reply) -> dict[str, Any]:
        """The part with the token counts, where they are asked for."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage(reply)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._identity,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }

    def _part(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _calls(self, reply: Reply) -> list[dict[str, Any]]:
        assert reply.call is not None
        function = {"name": reply.call.name, "arguments": reply.call.arguments}
        identity = self._identity.replace("chatcmpl-", "call_")
        return [{"id": identity, "type": "function", "function": function}]


def finish_reason(reply: Reply) -> str:
    """Why an answer ended, in OpenAI's words."""
    return "stop" if reply.finish == "cancelled" else reply.finish


def usage(reply: Reply) -> dict[str, int]:
    """Token counts; the token that ends the answer counts."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.new_tokens,
        "total_tokens": reply.prompt_tokens + reply.new_tokens,
    }


def model_entry(name: str, root: str, created: int, max_length: int) -> dict[str, Any]:
    """A model in the list of models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "glmforge",
        "root": root,
        "parent": None if name == "base" else "base",
        "max_model_len": max_length or None,
    }
