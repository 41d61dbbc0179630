"""`glmforge chat`: a terminal conversation with a model, with or without an adapter.

Lines in, streamed answers out. `/clear` forgets the history, `/exit` or Ctrl-D ends.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TextStreamer

from glmforge.adapters import open_adapter
from glmforge.data import generation_prompt
from glmforge.errors import UsageError
from glmforge.export.sources import find_source
from glmforge.models import load_model, load_tokenizer
from glmforge.models.generation import Answer, answer

_STREAMED = {"skip_prompt": True, "skip_special_tokens": True}
HELP = "/clear forgets the conversation, /exit (or Ctrl-D) ends"


class _Streamer(TextStreamer):
    """Print an answer as it comes, without the white space that a family writes before it."""

    started = False

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        shown = text if self.started else text.lstrip()
        self.started = self.started or bool(shown)
        super().on_finalized_text(shown, stream_end)


def open_chat_model(model_dir: Path, adapter: Path | None) -> tuple[Any, Any]:
    """Return (model, tokenizer) ready to answer, on the GPU in bf16 where there is one.

    Where no adapter is given, `model_dir` may be a run or a checkpoint too, as for export.

    Raises:
        ModelError, AdapterError: a directory that cannot be opened, an adapter that does not fit.
    """
    if adapter is None and Path(model_dir).is_dir() and not (model_dir / "config.json").is_file():
        found = find_source(model_dir, None)
        if found.shards is not None:
            raise UsageError(
                f"{model_dir}: whole weights in shards: glmforge export {model_dir} OUT first"
            )
        model_dir, adapter = found.model, found.adapter
    on_gpu = torch.cuda.is_available()
    model = load_model(
        model_dir,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        device=torch.device("cuda" if on_gpu else "cpu"),
    )
    tokenizer = load_tokenizer(model_dir)
    if adapter is not None:
        model = open_adapter(model, adapter)
    return model.eval(), tokenizer


def run_chat(
    model_dir: Path,
    adapter: Path | None = None,
    *,
    system: str | None = None,
    prompts: list[str] | None = None,
    as_json: bool = False,
    max_new_tokens: int = 512,
    read: Callable[[str], str] = input,
) -> None:
    """Talk until the user ends it, or answer `prompts` once each and return.

    Args:
        model_dir: a model directory.
        adapter: a LoRA adapter directory for it.
        system: a system message that opens every conversation.
        prompts: answer these, each in a conversation of its own, instead of reading lines.
        as_json: with `prompts`, print one JSON object a line instead of streaming text.
        max_new_tokens: longest answer in tokens.
        read: where lines come from.
    """
    model, tokenizer = open_chat_model(model_dir, adapter)
    opening = [{"role": "system", "content": system}] if system else []

    def reply(history: list[dict[str, str]]) -> Answer:
        result = answer(
            model,
            tokenizer,
            generation_prompt(history, tokenizer),
            max_new_tokens=max_new_tokens,
            streamer=None if as_json else _Streamer(tokenizer, **_STREAMED),
        )
        if result.stop_reason == "length" and not as_json:
            print(f"[cut at {max_new_tokens} tokens]", file=sys.stderr)
        return result

    if prompts is not None:
        for text in prompts:
            if not as_json:
                print(f"> {text}")
            result = reply([*opening, {"role": "user", "content": text}])
            if as_json:
                row = {"prompt": text, "answer": result.text, "stop_reason": result.stop_reason}
                print(json.dumps(row, ensure_ascii=False))
        return
    print(HELP, file=sys.stderr)
    history = list(opening)
    while True:
        try:
            line = read("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if line == "/exit":
            return
        if line == "/clear":
            history = list(opening)
        elif line:
            history.append({"role": "user", "content": line})
            history.append({"role": "assistant", "content": reply(history).text})
