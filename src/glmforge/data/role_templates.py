"""ChatGLM3 and GLM-4: a role token, a line with the tool's name, the content.

The generation prompt ends at ``<|assistant|>``; the model writes the newline itself and ends its
message with the token that opens the next one (``<|user|>``, ``<|observation|>``) or with the
family's end token. That token is therefore trained, although it also opens the next message.
The two families differ in how header and content are cut into pieces, in how tools are told to
the model, in how a call is spelled and in the last terminator: one row of ``_STYLES`` each.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmforge.data.conversation import Conversation, Message
from glmforge.data.encoder import TextEncoder, TokenizerLike
from glmforge.data.segments import Inexpressible, Kind, Labels, Row, Segment
from glmforge.tool_calls import BadCall, json_call, python_call


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStyle:
    """What distinguishes one family of role templates.

    ``prefix``: control tokens that open every row. ``end``: last terminator of a row.
    ``text_end``: terminator of a pretraining text. ``joined``: header and content are encoded in
    one piece. ``writes_empty_system``: an empty system message still writes its role.
    ``tools_prompt``: system text of a dialogue with tools that has none of its own.
    ``calls_in_code``: a call is a block of code, so one that a file spells so stays verbatim.
    """

    prefix: tuple[str, str]
    end: str
    text_end: str
    joined: bool
    writes_empty_system: bool
    tools_prompt: str
    system_texts: Callable[[str, Sequence[Mapping[str, Any]]], list[str]]
    call_text: Callable[[str], str]
    calls_in_code: bool
    trains_observation_officially: bool


class RoleTemplate:
    """Renders rows for a family with role tokens."""

    one_row_per_turn = False
    packable = True

    def __init__(self, tokenizer: TokenizerLike, style: RoleStyle) -> None:
        self.encoder: TextEncoder | None = TextEncoder(tokenizer)
        self._encode = self.encoder
        self._style = style
        token_id = tokenizer.convert_tokens_to_ids
        self._prefix = [token_id(token) for token in style.prefix]
        roles = ("system", "user", "assistant", "observation")
        self._roles: dict[str, int] = {role: token_id(f"<|{role}|>") for role in roles}
        self._end: int = token_id(style.end)
        self._text_end: int = token_id(style.text_end)

    def rows(
        self, conversation: Conversation, trained: Sequence[bool], labels: Labels
    ) -> list[Row]:
        """The whole dialogue as one row."""
        row = [Segment(token_ids=self._prefix, trained=False, kind="control")]
        official = labels == "official" and self._style.trains_observation_officially
        pending = False  # whether the role token that comes next ends a trained message
        last: Message | None = None
        for index, message in enumerate(conversation.messages):
            flag = trained[index] or (official and message.role == "observation")
            for role_id, header, content in self._pieces(conversation, index):
                kind: Kind = "terminator" if pending else "control"
                row.append(Segment(token_ids=[role_id], trained=pending, kind=kind, message=index))
                row.append(Segment(token_ids=header, trained=flag, kind="header", message=index))
                row.append(Segment(token_ids=content, trained=flag, kind="content", message=index))
                pending = flag
            last = message
        end = self._roles["observation"] if last is not None and last.is_call else self._end
        index = len(conversation.messages) - 1
        row.append(Segment(token_ids=[end], trained=pending, kind="terminator", message=index))
        return [row]

    def prompt(self, conversation: Conversation) -> list[int]:
        """Ids of the history and ``<|assistant|>``."""
        ids = list(self._prefix)
        for index in range(len(conversation.messages)):
            for role_id, header, content in self._pieces(conversation, index):
                ids += [role_id, *header, *content]
        return [*ids, self._roles["assistant"]]

    def leaves_out_thinking(self, message: Message) -> bool:
        """Whether a message has thinking text: the format has no place for it."""
        return bool(message.reasoning)

    def text_row(self, text: str) -> Row:
        """``[gMASK] sop`` text, end of text."""
        return [
            Segment(token_ids=self._prefix, trained=False, kind="control"),
            Segment(token_ids=self._encode(text), trained=True, kind="content", message=0),
            Segment(token_ids=[self._text_end], trained=True, kind="terminator", message=0),
        ]

    def _pieces(
        self, conversation: Conversation, index: int
    ) -> list[tuple[int, list[int], list[int]]]:
        """(role id, header ids, content ids) of a message; a system message may be several."""
        message = conversation.messages[index]
        pieces = []
        tools = conversation.tools if index == 0 else ()
        if tools and message.role != "system":
            for text in self._style.system_texts(self._style.tools_prompt, tools):
                pieces.append((self._roles["system"], *self._split("", text)))
        if message.role == "system":
            for text in self._style.system_texts(message.content, tools):
                if text or self._style.writes_empty_system:
                    pieces.append((self._roles["system"], *self._split("", text)))
            return pieces
        content = message.content
        if message.arguments is not None:
            spelled = message.content if self._style.calls_in_code else ""
            content = spelled or self._call_text(message.arguments)
        pieces.append((self._roles[message.role], *self._split(message.name, content)))
        return pieces

    def _call_text(self, arguments: str) -> str:
        try:
            return self._style.call_text(arguments)
        except BadCall as error:
            raise Inexpressible("bad-call", f"a tool call {error}", error.advice) from error

    def _split(self, name: str, content: str) -> tuple[list[int], list[int]]:
        """Header and content ids; encoded in one piece where the family does so."""
        header = self._encode(f"{name}\n")
        if not self._style.joined:
            return header, self._encode(content)
        whole = self._encode(f"{name}\n{content}")
        if whole[: len(header)] == header:
            return header, whole[len(header) :]
        return [], whole  # the newline became one piece with what follows it


def _chatglm3_system(content: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    if not tools:
        return [content]
    # The wrapper of the OpenAI format was not in the training data; the function was.
    functions = [tool.get("function", tool) for tool in tools]
    return [f"{content}\n{json.dumps(functions, indent=4, ensure_ascii=False)}"]


# The sentence ChatGLM3 was trained with when tools are given (its own demo sends it).
_CHATGLM3_TOOLS = (
    "Answer the following questions as best as you can. You have access to the following tools:"
)


# The paragraphs GLM-4's own template writes around its tools.
_GLM4_TOOLS = (
    "你是一个名为 GLM-4 的人工智能助手。你是基于智谱AI训练的语言模型 GLM-4 模型开发的，"
    "你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具"
)
_GLM4_AFTER = "\n在调用上述函数时，请使用 Json 格式表示调用的参数。"


def _glm4_system(content: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    if not tools:
        return [content]
    text = _GLM4_TOOLS
    for tool in tools:
        function = tool.get("function", tool)
        if tool.get("type", "function") != "function" or "name" not in function:
            raise Inexpressible(
                "bad-tools",
                f"a tool of type {tool.get('type')!r} cannot be told to GLM-4",
                "give functions with a name",
            )
        shown = json.dumps(function, indent=4, ensure_ascii=False)
        text += f"\n## {function['name']}\n\n{shown}{_GLM4_AFTER}"
    return [text, content] if content else [text]


STYLES: dict[str, RoleStyle] = {
    "chatglm3": RoleStyle(
        prefix=("[gMASK]", "sop"),
        end="</s>",
        text_end="</s>",
        joined=False,
        writes_empty_system=True,
        tools_prompt=_CHATGLM3_TOOLS,
        system_texts=_chatglm3_system,
        call_text=python_call,
        calls_in_code=True,
        trains_observation_officially=True,
    ),
    "glm4": RoleStyle(
        prefix=("[gMASK]", "<sop>"),
        end="<|user|>",
        text_end="<|endoftext|>",
        joined=True,
        writes_empty_system=False,
        tools_prompt="",
        system_texts=_glm4_system,
        call_text=json_call,
        calls_in_code=False,
        trains_observation_officially=False,
    ),
}
