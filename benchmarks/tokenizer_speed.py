"""Throughput of glmforge's tokenizers against a tokenizer that goes text by text in Python.

    python benchmarks/tokenizer_speed.py DIRECTORY [--text FILE.jsonl] [--lines 10000] [--cpus 2]

DIRECTORY is a ChatGLM directory with its vocabulary file. Without --text the lines are the
messages of the packaged demo dialogues, repeated and numbered until there are enough of them.

The other side does what users run today: a slow ``PreTrainedTokenizer`` subclass, one call of
sentencepiece or tiktoken a text for the *pieces*, then one Python call a token for its id. Both
sides encode the same lines in the same process, in turns, best of --repeat; the ids must be
equal. One JSON line comes out: characters a second of both, their ratio, date, machine.
"""

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedTokenizer

from glmforge.models.chatglm.tokenization import ChatGLM6BTokenizer, write_blanks
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_tiktoken import ChatGLM4Tokenizer
from glmforge.models.tokenizers import load_tokenizer


class TextByText(PreTrainedTokenizer):
    """A slow tokenizer around the same engine: pieces first, then ids, token by token."""

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, own: GLMTokenizer) -> None:
        self.own = own
        self.controls = dict(own.control_ids)
        super().__init__(pad_token=own.pad_token, eos_token=own.eos_token)

    @property
    def vocab_size(self) -> int:
        return self.own.vocab_size

    def get_vocab(self) -> dict[str, int]:
        return self.own.get_vocab()

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return self.own.build_inputs_with_special_tokens(token_ids_0, token_ids_1)


class SentencePieceTextByText(TextByText):
    """As ChatGLM-6B, 2 and 3: ``encode_as_pieces`` and ``piece_to_id``."""

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        if isinstance(self.own, ChatGLM6BTokenizer):
            text = write_blanks(text)
        return self.own.sp_model.encode_as_pieces(text)

    def _convert_token_to_id(self, token: str) -> int:
        if token in self.controls:
            return self.controls[token]
        return self.own.sp_model.piece_to_id(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.own.sp_model.id_to_piece(index)


class TiktokenTextByText(TextByText):
    """As GLM-4: ids to byte strings, and every byte string looked up again."""

    def _tokenize(self, text: str, **kwargs: Any) -> list[bytes]:
        ids = self.own._encoding.encode_ordinary(text)
        return [self.own._tokens[index] for index in ids]

    def _convert_token_to_id(self, token: bytes | str) -> int | None:
        if isinstance(token, str):
            return self.controls.get(token)
        return self.own.ranks[token]

    def _convert_id_to_token(self, index: int) -> bytes:
        return self.own._tokens[index]


def read_lines(path: str | None, num_lines: int) -> list[str]:
    """Return `num_lines` texts: the strings of a JSONL file, repeated under a running number."""
    source = Path(path) if path else files("glmforge.assets") / "demo/train.jsonl"
    texts: list[str] = []
    for row in source.read_text(encoding="utf-8").split("\n"):
        found: list[Any] = [json.loads(row)] if row else []
        while found:
            value = found.pop()
            if isinstance(value, str):
                texts += [line for line in value.split("\n") if len(line) > 8]
            elif isinstance(value, (list, dict)):
                found += value.values() if isinstance(value, dict) else value
    return [f"{at} {texts[at % len(texts)]}" for at in range(num_lines)]


def best_seconds(calls: list[Callable[[], Any]], repeat: int) -> list[float]:
    """Return the shortest time of each call, the calls taking turns."""
    best = [float("inf")] * len(calls)
    for _ in range(repeat):
        for at, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[at] = min(best[at], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--text")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cpus])
    own = load_tokenizer(options.directory)
    assert isinstance(own, GLMTokenizer), "the directory is not of the ChatGLM family"
    is_tiktoken = isinstance(own, ChatGLM4Tokenizer)
    other = (TiktokenTextByText if is_tiktoken else SentencePieceTextByText)(own)
    lines = read_lines(options.text, options.lines)
    assert other(lines)["input_ids"] == own(lines)["input_ids"], "the two sides differ"
    own_s, other_s = best_seconds([lambda: own(lines), lambda: other(lines)], options.repeat)
    characters = sum(map(len, lines))
    result = {
        "family": own.family,
        "lines": len(lines),
        "characters": characters,
        "characters_per_second": round(characters / own_s),
        "text_by_text_characters_per_second": round(characters / other_s),
        "ratio": round(other_s / own_s, 2),
        "cpus": options.cpus,
        "machine": platform.processor() or platform.machine(),
        "transformers": transformers.__version__,
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
