"""Any other model: its own chat template, its labels found by comparing renderings.

A turn's trained span is what the rendering with the answer adds to the generation prompt of the
history before it, up to the stop token. Where the prompt is no prefix of the whole rendering
(templates that strip the thinking of earlier turns), every turn is a row of its own; where it is
no prefix even then, the template is refused, unless its prompt opens the thinking. Without a
template only text and single prompt/response pairs can be trained. Ids come from the tokenizer
itself, so a control token spelled in the text would become one: such a dialogue is refused. So is
one of which the rendering lacks a part: templates pass over what they have no place for.
"""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from glmforge.data.chat_messages import (
    CALL_FORMS,
    CallForm,
    chat_messages,
    chat_tools,
    reasoning_of,
    turns_of,
)
from glmforge.data.conversation import Conversation, Message
from glmforge.data.encoder import TextEncoder
from glmforge.data.rendered import named
from glmforge.data.segments import Inexpressible, Labels, Row, Segment
from glmforge.data.template_probe import THINKING, THINKS_APART, THINKS_INLINE, TemplateProbe
from glmforge.data.template_refusals import (
    RAISED,
    endless,
    joined_tokens,
    not_rendered,
    refuse_broken,
    refuse_code,
    refuse_left_out,
    refuse_mixed,
)

# Tokens that end a message in the templates of the open models; those a tokenizer has count.
_STOPS = (
    "<|user|>", "<|observation|>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
    "<|end|>", "<|end_of_text|>", "<end_of_turn>", "</s>",
)  # fmt: skip


_MARKER = re.compile(r"<.+>|\[.+\]", re.DOTALL)
"""Added tokens that are written like markers, and not like words of a language."""
_THINK, _END_THINK = "<think>", "</think>"
_TAIL = 12  # tokens at a prompt's end that may spell its opening of the thinking


class ChatTemplate:
    """Renders rows with a tokenizer's ``apply_chat_template``."""

    one_row_per_turn = False
    packable = True
    encoder: TextEncoder | None = None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._has_template = bool(getattr(tokenizer, "chat_template", None))
        added = tokenizer.added_tokens_decoder.values()
        self._specials = sorted({str(token) for token in added if token.special})
        markers = {str(token) for token in added if _MARKER.fullmatch(str(token))}
        self._markers = sorted(markers - {_THINK, _END_THINK} - set(self._specials))
        unknown = tokenizer.unk_token_id
        stops = {tokenizer.convert_tokens_to_ids(token) for token in _STOPS} - {None, unknown}
        if tokenizer.eos_token_id is not None:
            stops.add(tokenizer.eos_token_id)
        self._stops: frozenset[int] = frozenset(stops)
        self._observation = (
            "observation" if "observation" in str(tokenizer.chat_template) else "tool"
        )
        self._probe = TemplateProbe(lambda dialogue, form: self._text(dialogue, form=form))
        if self._has_template:
            refuse_broken(tokenizer)

    def rows(
        self, conversation: Conversation, trained: Sequence[bool], labels: Labels
    ) -> list[Row]:
        """One row where the renderings extend each other, else one a trained turn."""
        self._refuse_spellings(conversation)
        refuse_code(conversation)
        if not self._has_template:
            return [self._pair_row(conversation)]
        self._refuse_unrendered(conversation)
        messages = conversation.messages
        refuse_mixed(messages, trained)
        spans = [
            (start, end)
            for start, end in turns_of(messages)
            if messages[start].role == "assistant" and any(trained[start:end])
        ]
        whole = self._text(conversation)
        row = self._row(conversation, self._ids(whole), spans)
        if row is not None:
            refuse_left_out(whole, conversation)
            return [row]
        return [self._turn_row(conversation, span) for span in spans]

    def leaves_out_thinking(self, message: Message) -> bool:
        """Whether the template drops a message's thinking even where it is trained."""
        if message.reasoning and not self._keeps_thinking_apart:
            return True
        inline = message.role == "assistant" and _END_THINK in message.content
        return inline and not self._keeps_thinking_inline

    @cached_property
    def _keeps_thinking_apart(self) -> bool:
        return self._keeps_thinking(THINKS_APART)

    @cached_property
    def _keeps_thinking_inline(self) -> bool:
        return self._keeps_thinking(THINKS_INLINE)

    def _keeps_thinking(self, dialogue: Conversation) -> bool:
        try:
            rows = self.rows(dialogue, [False, True], "all_turns")
        except Inexpressible:
            return True  # so are the records
        ids = [token for row in rows for segment in row for token in segment.token_ids]
        return THINKING in self._tokenizer.decode(ids)

    def _turn_row(self, conversation: Conversation, span: tuple[int, int]) -> Row:
        """The row of one turn of a template whose renderings do not extend each other."""
        start, end = span
        part = conversation.with_messages(conversation.messages[:end])
        text = self._text(part)
        row = self._row(part, self._ids(text), [span])
        if row is not None:
            refuse_left_out(text, part)
            return row
        row = self._thinking_row(conversation, span)
        before = conversation.with_messages(conversation.messages[:start])
        prompt = self._text(before, prompt=True)
        if row is not None:
            refuse_left_out(prompt, before)
            return row
        if text.startswith(prompt):
            raise joined_tokens()
        calls = any(message.is_call for message in conversation.messages[start:end])
        raise Inexpressible(
            "chat-template",
            f"the tokenizer's chat template renders {'a call' if calls else 'an answer'} in other "
            "ways than its generation prompt begins it",
            'mark the calls with "train": false, or use another model'
            if calls
            else "correct the template (chat_template.jinja) or use another model",
        )

    def prompt(self, conversation: Conversation) -> list[int]:
        """The template's generation prompt for the history."""
        self._refuse_spellings(conversation)
        if not self._has_template:
            return self._plain(conversation.messages[-1].content)
        self._refuse_unrendered(conversation)
        text = self._text(conversation, prompt=True)
        refuse_left_out(text, conversation)
        return self._ids(text)

    def text_row(self, text: str) -> Row:
        """The tokenizer's own beginning, text, end of text."""
        ids = self._plain(text)
        body = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        head = ids[: len(ids) - len(body)] if ids[len(ids) - len(body) :] == body else []
        return [
            Segment(token_ids=head, trained=False, kind="control"),
            Segment(token_ids=body, trained=True, kind="content", message=0),
            Segment(token_ids=self._end(), trained=True, kind="terminator", message=0),
        ]

    def _plain(self, text: str) -> list[int]:
        """Ids of a text with what the tokenizer puts before it; an end token is not kept."""
        ids: list[int] = list(self._tokenizer(text)["input_ids"])
        end = self._tokenizer.eos_token_id
        return ids[:-1] if ids and ids[-1] == end else ids

    def _end(self) -> list[int]:
        return [] if self._tokenizer.eos_token_id is None else [self._tokenizer.eos_token_id]

    def _pair_row(self, conversation: Conversation) -> Row:
        messages = conversation.messages
        if [message.role for message in messages] != ["user", "assistant"] or conversation.tools:
            raise Inexpressible(
                "no-chat-template",
                "the tokenizer has no chat template, so only text and single prompt/response "
                "pairs can be trained",
                "add the model's chat_template.jinja, or use the chat version of the model",
            )
        question, answer = messages[0].content, messages[1].content
        answer_ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        return [
            Segment(token_ids=self._plain(question), trained=False, kind="content", message=0),
            Segment(token_ids=answer_ids, trained=True, kind="content", message=1),
            Segment(token_ids=self._end(), trained=True, kind="terminator", message=1),
        ]

    def _row(
        self, conversation: Conversation, whole: list[int], spans: Sequence[tuple[int, int]]
    ) -> Row | None:
        """Label one rendering; None where a prompt or a turn is no prefix of it."""
        row: Row = []
        at = 0
        for start, end in spans:
            prompt = self._render(conversation, start, True)
            is_last = end == len(conversation.messages)
            until = whole if is_last else self._render(conversation, end, False)
            if whole[: len(prompt)] != prompt or whole[: len(until)] != until or len(prompt) < at:
                return None
            answer = self._through_stop(until[len(prompt) :])
            row.append(Segment(token_ids=whole[at : len(prompt)], trained=False, kind="control",
                               message=start))  # fmt: skip
            row.append(Segment(token_ids=answer, trained=True, kind="content", message=end - 1))
            at = len(prompt) + len(answer)
            if not answer or answer[-1] not in self._stops:
                terminator = self._terminator(whole[at:], conversation.messages[end - 1])
                if not terminator and not is_last:
                    raise endless()
                row.append(Segment(token_ids=terminator, trained=True, kind="terminator",
                                   message=end - 1))  # fmt: skip
                at += len(terminator)
        if at < len(whole):
            row.append(Segment(token_ids=whole[at:], trained=False, kind="control"))
        return row

    def _thinking_row(self, conversation: Conversation, span: tuple[int, int]) -> Row | None:
        """A turn of a template whose prompt opens the thinking that its renderings strip (GLM-Z1).

        The model closes the thinking itself: that is trained, with the reasoning where the data
        holds it, inline or apart. None where the prompt opens none, or the turn holds a call.
        """
        prompt = self._render(conversation, span[0], True)
        opening: str = self._tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False)
        messages = conversation.messages[span[0] : span[1]]
        if not opening.rstrip().endswith(_THINK) or any(m.is_call for m in messages):
            return None
        content = "\n".join(message.content for message in messages)
        if _END_THINK in content:
            content = content.lstrip().removeprefix(_THINK).lstrip("\n")
        else:
            reasoning = reasoning_of(messages).strip("\n")
            content = f"{reasoning}\n{_END_THINK}\n{content}".removeprefix("\n")
        if not opening.endswith("\n"):
            content = f"\n{content}"
        answer = self._tokenizer(content, add_special_tokens=False)["input_ids"]
        last = span[1] - 1
        return [
            Segment(token_ids=prompt, trained=False, kind="control", message=span[0]),
            Segment(token_ids=answer, trained=True, kind="content", message=last),
            Segment(token_ids=self._terminator([], messages[-1]), trained=True, kind="terminator",
                    message=last),
        ]  # fmt: skip

    def _through_stop(self, ids: list[int]) -> list[int]:
        """A span up to its first stop token; what a template writes after it is not generated."""
        for at, token in enumerate(ids):
            if token in self._stops:
                return ids[: at + 1]
        return ids

    def _terminator(self, rest: Sequence[int], message: Message) -> list[int]:
        """The stop token of a template that leaves the end of a turn to the next role token."""
        if rest:
            return list(rest[:1]) if rest[0] in self._stops else []
        role = "<|observation|>" if message.is_call else "<|user|>"
        token = self._tokenizer.convert_tokens_to_ids(role)
        return [token] if token in self._stops else self._end()

    def _render(self, conversation: Conversation, end: int, prompt: bool) -> list[int]:
        """Ids of the first ``end`` messages, with the generation prompt on request."""
        part = conversation.with_messages(conversation.messages[:end])
        return self._ids(self._text(part, prompt=prompt))

    def _ids(self, text: str) -> list[int]:
        """Ids of a rendering, which holds every control token itself."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text(
        self, conversation: Conversation, *, prompt: bool = False, form: CallForm | None = None
    ) -> str:
        """The rendering of a dialogue, its calls in a form, by default the one that is read."""
        if form is None:
            calls = any(message.arguments is not None for message in conversation.messages)
            form = (self._probe.call_form if calls else None) or CALL_FORMS[0]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    chat_messages(conversation.messages, self._observation, form),
                    tools=chat_tools(conversation.tools),
                    add_generation_prompt=prompt,
                    tokenize=False,
                )
            )
        except RAISED as error:
            what = str(error) or type(error).__name__
            raise Inexpressible(
                "chat-template",
                f"the tokenizer's chat template refuses the dialogue ({what})",
                "fix the record, or use a model whose template knows its roles",
            ) from error

    def _refuse_unrendered(self, conversation: Conversation) -> None:
        """Refuse what this template renders in no dialogue."""
        messages = conversation.messages
        lost = []
        if conversation.tools and not self._probe.shows_tools:
            lost.append("the tools")
        if any(m.role == "system" and m.content.strip() for m in messages):
            lost += [] if self._probe.shows_system else ["the system message"]
        calls = [(m, number) for number, m in enumerate(messages, 1) if m.arguments is not None]
        if calls and self._probe.call_form is None:
            lost += [named(call, number) for call, number in calls]
        if lost:
            raise not_rendered(lost)

    def _refuse_spellings(self, conversation: Conversation) -> None:
        texts = "\n".join(
            f"{message.reasoning}\n{message.text}".replace(_THINK, "").replace(_END_THINK, "")
            if message.role == "assistant"
            else message.text
            for message in conversation.messages
        )
        tools = [dict(tool) for tool in conversation.tools]
        texts += "\n".join(["", *(message.name for message in conversation.messages)])
        texts += json.dumps(tools, ensure_ascii=False)
        found = [token for token in self._specials if token in texts]
        asked = "\n".join(m.content for m in conversation.messages if m.role == "user")
        found += [token for token in self._markers if token in asked]
        if found:
            raise Inexpressible(
                "control-spelling",
                f"the text spells {' '.join(found)}, which this tokenizer would read as control "
                "tokens",
                "change the spelling or remove the record",
            )
