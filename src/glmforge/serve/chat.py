"""`glmforge chat`: a terminal conversation with a model, with or without an adapter.

Lines in, streamed answers out. `/clear` forgets the history, `/exit` or Ctrl-D ends.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TextStreamer

from glmforge.data import generation_prompt
from glmforge.export.merge import open_adapter
from glmforge.models import load_model, load_tokenizer
from glmforge.models.generation import answer

HELP = "/clear forgets the conversation, /exit (or Ctrl-D) ends"


def open_chat_model(model_dir: Path, adapter: Path | None) -> tuple[Any, Any]:
    """Return (model, tokenizer) ready to answer, on the GPU in bf16 where there is one.

    Raises:
        ModelError, ExportError: a directory that cannot be opened, an adapter that does not fit.
    """
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
    max_new_tokens: int = 512,
    read: Callable[[str], str] = input,
) -> None:
    """Talk until the user ends it, or answer `prompts` once each and return.

    Args:
        model_dir: a model directory.
        adapter: a LoRA adapter directory for it.
        system: a system message that opens every conversation.
        prompts: answer these, each in a conversation of its own, instead of reading lines.
        max_new_tokens: longest answer in tokens.
        read: where lines come from.
    """
    model, tokenizer = open_chat_model(model_dir, adapter)
    opening = [{"role": "system", "content": system}] if system else []

    def reply(history: list[dict[str, str]]) -> str:
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        result = answer(
            model,
            tokenizer,
            generation_prompt(history, tokenizer),
            max_new_tokens=max_new_tokens,
            streamer=streamer,
        )
        if result.stop_reason == "length":
            print(f"[cut at {max_new_tokens} tokens]", file=sys.stderr)
        return result.text

    if prompts is not None:
        for text in prompts:
            print(f"> {text}")
            reply([*opening, {"role": "user", "content": text}])
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
            history.append({"role": "assistant", "content": reply(history)})
