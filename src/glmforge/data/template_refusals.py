"""What a model's own chat template cannot do with a dialogue, said before anything is trained.

``chat_template`` renders and compares; what stands here looks at a dialogue, a rendering or the
template itself, and refuses in words for people. A template that renders nothing is an error of
the tokenizer, everything else one of a record.
"""

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from glmforge.data.chat_messages import turns_of
from glmforge.data.conversation import Conversation, Message
from glmforge.data.rendered import left_out
from glmforge.data.segments import Inexpressible
from glmforge.errors import DataError

RAISED = (TemplateError, TypeError, AttributeError, ValueError, LookupError, ArithmeticError,
          RecursionError)  # fmt: skip
"""What the code of a template can raise over a dialogue."""


def refuse_broken(tokenizer: Any) -> None:
    """Refuse a tokenizer whose template renders nothing, once and not for every record.

    Raises:
        DataError: the template is no Jinja, or there are several and none is the usual one.
    """
    try:
        tokenizer.get_chat_template()
        tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    except (TemplateSyntaxError, ValueError) as error:
        if isinstance(error, TemplateSyntaxError) or isinstance(tokenizer.chat_template, dict):
            raise DataError(
                f"{tokenizer.name_or_path}: the tokenizer's chat template cannot be used "
                f"({error}): correct chat_template.jinja, or the chat_template of "
                "tokenizer_config.json"
            ) from error
    except RAISED:
        return  # it refuses this dialogue, perhaps not others


def refuse_mixed(messages: Sequence[Message], trained: Sequence[bool]) -> None:
    """Refuse a turn of which only some messages are trained: a template writes it as one."""
    for start, end in turns_of(messages):
        marked = set(trained[start:end])
        if messages[start].role == "assistant" and len(marked) > 1:
            number = start + 1 + list(trained[start:end]).index(False)
            raise Inexpressible(
                "mixed-turn",
                f"message {number} is not to be trained, and others of its turn (messages "
                f"{start + 1} to {end}) are; this model's chat template writes them as one",
                "mark all messages of the turn alike, or train ChatGLM3 or GLM-4, which keep them "
                "apart",
            )


def endless() -> Inexpressible:
    """The refusal of a template that ends the turns inside a dialogue with no stop token."""
    return Inexpressible(
        "chat-template",
        "the tokenizer's chat template ends an answer inside the dialogue with no token that "
        "generation stops at, so that the model would not learn to end there",
        "write the end into the template (chat_template.jinja), or use data.labels=last_turn",
    )


def refuse_code(conversation: Conversation) -> None:
    """Refuse calls that hold no JSON: chat templates would write them as words of the answer."""
    for message in conversation.messages:
        if message.is_call and message.arguments is None:
            raise Inexpressible(
                "bad-call",
                f"a call of {message.name!r} holds no JSON arguments, and this model's chat "
                "template has no place for others",
                "give its arguments as a JSON object, or remove the record",
            )


def refuse_left_out(text: str, conversation: Conversation) -> None:
    """Refuse a dialogue of which its rendering lacks a part."""
    lost = left_out(text, conversation.messages, conversation.tools)
    if lost:
        raise not_rendered(lost)


def not_rendered(lost: Sequence[str]) -> Inexpressible:
    """The refusal of a dialogue of which the named parts are not in its rendering."""
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return Inexpressible(
        "not-rendered",
        f"the model's chat template does not render {', '.join(lost[:3])}{more}",
        "remove it from the record, or use a model (or a chat_template.jinja) that has a place "
        "for it",
    )


def joined_tokens() -> Inexpressible:
    """The refusal of a row whose template and text run into each other."""
    return Inexpressible(
        "chat-template",
        "the tokenizer joins the text of a message and the template's own before or after it into "
        "one token, so that no place divides what is trained from what is not",
        "remove the record, or end the template's parts with tokens of their own",
    )
