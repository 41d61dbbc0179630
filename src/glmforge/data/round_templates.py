"""ChatGLM-6B and ChatGLM2: numbered rounds of 问 and 答, one answer a row.

Neither family ends a turn inside the history, so an answer there has no terminator that could be
trained: each trained turn becomes a row of its own, its history untrained. ChatGLM-6B puts its
two control tokens after the prompt (and sees the prompt in both directions), ChatGLM2 before it.
A system text has no place in these formats; it goes on top of the first round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from glmforge.data.conversation import Conversation, Message, head_length
from glmforge.data.encoder import TextEncoder, TokenizerLike
from glmforge.data.segments import Inexpressible, Labels, Row, Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStyle:
    """What distinguishes one family of round templates.

    ``control``: the two control tokens. ``control_first``: before the prompt or after it.
    ``frame``: (system, past rounds, question) to prompt text. ``trains_sop_officially``: the
    official code takes ``<sop>`` as a label.
    """

    control: tuple[str, str]
    end: str
    control_first: bool
    packable: bool
    frame: Callable[[str, Sequence[tuple[str, str]], str], str]
    trains_sop_officially: bool


class RoundTemplate:
    """Renders rows for a family of rounds."""

    one_row_per_turn = True

    def __init__(self, tokenizer: TokenizerLike, style: RoundStyle) -> None:
        self.encoder: TextEncoder | None = TextEncoder(tokenizer)
        self._encode = self.encoder
        self._style = style
        self.packable = style.packable
        self._control: list[int] = [
            tokenizer.convert_tokens_to_ids(token) for token in style.control
        ]
        self._end: int = tokenizer.convert_tokens_to_ids(style.end)

    def rows(
        self, conversation: Conversation, trained: Sequence[bool], labels: Labels
    ) -> list[Row]:
        """One row for every trained turn; officially for the last turn only."""
        rounds = _rounds(conversation)
        wanted = [index for _, index in rounds if trained[index]]
        if labels == "official":
            wanted = wanted[-1:]
        rows = []
        for number, (_, index) in enumerate(rounds):
            if index not in wanted:
                continue
            row = self._prompt_segments(conversation, number, rounds, labels)
            answer = self._encode(conversation.messages[index].content)
            row.append(Segment(token_ids=answer, trained=True, kind="content", message=index))
            row.append(
                Segment(token_ids=[self._end], trained=True, kind="terminator", message=index)
            )
            rows.append(row)
        return rows

    def prompt(self, conversation: Conversation) -> list[int]:
        """Ids of the history, the question and the place of the answer."""
        question = Message(role="assistant", content="")
        whole = conversation.with_messages((*conversation.messages, question))
        rounds = _rounds(whole)
        row = self._prompt_segments(whole, len(rounds) - 1, rounds, "all_turns")
        return [token for segment in row for token in segment.token_ids]

    def leaves_out_thinking(self, message: Message) -> bool:
        """Whether a message has thinking text: the format has no place for it."""
        return bool(message.reasoning)

    def text_row(self, text: str) -> Row:
        """Control tokens, text, end token."""
        return [
            Segment(token_ids=self._control, trained=False, kind="control"),
            Segment(token_ids=self._encode(text), trained=True, kind="content", message=0),
            Segment(token_ids=[self._end], trained=True, kind="terminator", message=0),
        ]

    def _prompt_segments(
        self,
        conversation: Conversation,
        number: int,
        rounds: Sequence[tuple[int, int]],
        labels: Labels,
    ) -> Row:
        messages = conversation.messages
        past = [(messages[user].content, messages[answer].content) for user, answer in rounds]
        system = "\n".join(
            message.content for message in messages[: head_length(messages)] if message.content
        )
        user = rounds[number][0]
        text = self._style.frame(system, past[:number], messages[user].content)
        prompt = Segment(token_ids=self._encode(text), trained=False, kind="content", message=user)
        if self._style.control_first:
            return [Segment(token_ids=self._control, trained=False, kind="control"), prompt]
        official = labels == "official" and self._style.trains_sop_officially
        return [
            prompt,
            Segment(token_ids=self._control[:1], trained=False, kind="control", message=user),
            Segment(token_ids=self._control[1:], trained=official, kind="control", message=user),
        ]


def _rounds(conversation: Conversation) -> list[tuple[int, int]]:
    """(user index, assistant index) of every round.

    Raises:
        Inexpressible: tools, calls or observations, which these families cannot express.
    """
    messages = conversation.messages
    if conversation.tools or any(m.is_call or m.role == "observation" for m in messages):
        raise Inexpressible(
            "no-tools-format",
            "this model generation has no format for tools, calls and observations",
            "use ChatGLM3 or GLM-4, or remove them",
        )
    start = head_length(messages)
    body = messages[start:]
    if [m.role for m in body] != ["user", "assistant"] * (len(body) // 2):
        raise Inexpressible("role-order", "user and assistant do not take turns", "fix the record")
    return [(index, index + 1) for index in range(start, len(messages), 2)]


def _frame_6b(system: str, past: Sequence[tuple[str, str]], question: str) -> str:
    """A first question is bare; later ones stand in rounds counted from 0."""
    head = f"{system}\n" if system else ""
    if not past:
        return head + question
    text = "".join(f"[Round {n}]\n问：{q}\n答：{a}\n" for n, (q, a) in enumerate(past))
    return f"{head}{text}[Round {len(past)}]\n问：{question}\n答："


def _frame_2(system: str, past: Sequence[tuple[str, str]], question: str) -> str:
    """Rounds counted from 1, also for the first question."""
    head = f"{system}\n\n" if system else ""
    text = "".join(f"[Round {n}]\n\n问：{q}\n\n答：{a}\n\n" for n, (q, a) in enumerate(past, 1))
    return f"{head}{text}[Round {len(past) + 1}]\n\n问：{question}\n\n答："


STYLES: dict[str, RoundStyle] = {
    "chatglm": RoundStyle(
        control=("[gMASK]", "<sop>"),
        end="<eop>",
        control_first=False,
        packable=False,
        frame=_frame_6b,
        trains_sop_officially=True,
    ),
    "chatglm2": RoundStyle(
        control=("[gMASK]", "sop"),
        end="</s>",
        control_first=True,
        packable=True,
        frame=_frame_2,
        trains_sop_officially=False,
    ),
}
