"""One answer from one prompt, with its text as it comes: what the terminal and the server share.

Every setting of generate() is stated here, so that a model's generation_config.json (other
temperatures, other penalties) changes nothing and base and tuned answer under the same settings.
Tokens come from the sampler in ``models.generation``, which stops at the family's stop ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from glmforge.models.generation import RefuseNaN, answer, stop_ids
from glmforge.serve.answer_text import AnswerText
from glmforge.serve.opening import OpenModels
from glmforge.tool_calls import ToolCall

Finish = Literal["stop", "length", "tool_calls", "cancelled"]
OBSERVATION = "<|observation|>"
_GREEDY_BELOW = 1e-3  # temperatures below it would only overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt and how it is to be answered.

    ``temperature`` 0 takes the likeliest token each time; above it tokens are drawn, with ``seed``
    or anew. ``tool_names`` are the tools that the prompt told the model.
    """

    prompt: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    tool_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer. ``stop_token`` is the token that ended it by its name, "" where none did.

    ``new_tokens`` counts that token too. ``raw`` is the text with the line before a tool call.
    """

    text: str
    call: ToolCall | None
    finish: Finish
    prompt_tokens: int
    new_tokens: int
    stop_token: str = ""
    raw: str = ""


class _Sink(BaseStreamer):
    """Takes tokens from generate() and hands their text on."""

    def __init__(
        self, text: AnswerText, stops: Sequence[int], on_text: Callable[[str], None]
    ) -> None:
        self.count = 0
        self.stop_id: int | None = None
        self._text, self._stops, self._on_text = text, frozenset(stops), on_text
        self._prompt_is_next = True

    def put(self, value: Tensor) -> None:
        """Take the prompt first, then one token after another."""
        if self._prompt_is_next:
            self._prompt_is_next = False
            return
        for token in value.flatten().tolist():
            self.count += 1
            if token in self._stops:
                self.stop_id = token
                return
            if new := self._text.push(token):
                self._on_text(new)

    def end(self) -> None:
        """Nothing: the rest of the text is taken by the one who knows how the answer ended."""


class _Until(StoppingCriteria):
    """Ends an answer at a stop string, or when nobody waits for it any more."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        size = (input_ids.shape[0],)
        return torch.full(size, self._ended(), dtype=torch.bool, device=input_ids.device)


def reply(
    models: OpenModels,
    name: str,
    ask: Ask,
    *,
    on_text: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Reply:
    """Answer with the model called `name`.

    Args:
        models: the base and its adapters.
        name: one of their names.
        ask: prompt and settings.
        on_text: gets each new piece of the answer's text, never half a character.
        cancelled: asked after every token; true ends the answer there.

    Raises:
        ModelError: logits are NaN.
    """
    if cancelled():
        return Reply(text="", call=None, finish="cancelled", prompt_tokens=len(ask.prompt),
                     new_tokens=0)  # fmt: skip
    names = ask.tool_names if models.writes_header else ()
    text = AnswerText(models.tokenizer, stops=ask.stops, tool_names=names)
    drawn = ask.temperature >= _GREEDY_BELOW
    if drawn and ask.seed is None:
        torch.seed()
    elif ask.seed is not None:
        torch.manual_seed(ask.seed)
    with models.using(name) as model:
        sink = _Sink(text, stop_ids(model, models.tokenizer), on_text)
        answer(
            model,
            models.tokenizer,
            ask.prompt,
            max_new_tokens=ask.max_new_tokens,
            streamer=sink,
            logits_processor=LogitsProcessorList([RefuseNaN()]),
            stopping_criteria=StoppingCriteriaList([_Until(lambda: text.stopped or cancelled())]),
            do_sample=drawn,
            temperature=ask.temperature if drawn else 1.0,
            top_p=ask.top_p if drawn else 1.0,
            top_k=0 if drawn else 50,  # 50 is transformers' own default, without effect here
            **_NEUTRAL,
        )
    rest, call = text.finish()
    if rest:
        on_text(rest)
    return Reply(
        text=text.text,
        call=call,
        finish=_finish(text, sink, call, cancelled),
        prompt_tokens=len(ask.prompt),
        new_tokens=sink.count,
        stop_token="" if sink.stop_id is None else _name_of(models.tokenizer, sink.stop_id),
        raw=text.raw,
    )


# What a generation_config.json may carry besides, at the values that do nothing.
_NEUTRAL = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
}


def _finish(
    text: AnswerText, sink: _Sink, call: ToolCall | None, cancelled: Callable[[], bool]
) -> Finish:
    if call is not None:
        return "tool_calls"
    if text.stopped or sink.stop_id is not None:
        return "stop"
    return "cancelled" if cancelled() else "length"


def _name_of(tokenizer: Any, token_id: int) -> str:
    return str(tokenizer.convert_ids_to_tokens(token_id))
