"""Tokenizers of ChatGLM2 and ChatGLM3: a SentencePiece BPE and control tokens behind its pieces.

The engine is SentencePiece's own C++, so ids are equal to the original's by construction: merges
of equal score are taken leftmost there, for which the Rust library's merge list has no word, and
that library was measured at half its speed with the same pieces. Control ids follow the number
of pieces, so any vocabulary in this file format works. Both generations ship the same
`tokenizer.model`; ChatGLM2 has no role tokens.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_chat import (
    ChatPart,
    ControlToken,
    read_messages,
    read_tools,
    rounds_of,
    with_tools,
)
from glmforge.tool_calls import python_call

# Below this many characters starting threads costs more than it gains.
_CHARACTERS_WORTH_THREADS = 20_000

_SHARED_CONTROLS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_ROLE_CONTROLS = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
#: What ChatGLM3 was trained to read before a list of tools when nothing else was said.
TOOLS_PROMPT = (
    "Answer the following questions as best as you can. You have access to the following tools:"
)


def available_threads(texts: Sequence[str]) -> int:
    """Return how many threads to encode `texts` with: the CPUs of this process, 1 when small."""
    if len(texts) < 2 or sum(map(len, texts)) < _CHARACTERS_WORTH_THREADS:
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def encode_pieces(
    processor: sentencepiece.SentencePieceProcessor, texts: list[str]
) -> list[list[int]]:
    """Return the ids of texts: large batches on every CPU, others one text after another.

    SentencePiece starts its thread pool for every list, which takes four times as long as encoding
    a message.
    """
    threads = available_threads(texts)
    if threads == 1:
        with contextlib.suppress(RuntimeError):  # what is wrong with a text the list's error says
            return [processor.encode(text) for text in texts]
    return processor.encode(texts, num_threads=threads)


def load_sentencepiece(path: str | Path) -> sentencepiece.SentencePieceProcessor:
    """Return the processor of a SentencePiece model file.

    Raises:
        ModelError: there is no such file, or it is damaged or of another kind.
    """
    if not Path(path).is_file():
        raise ModelError(f"{path}: no such file; it is the tokenizer's SentencePiece model")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.Load(str(path))
    except RuntimeError as error:
        raise ModelError(
            f"{path}: not a SentencePiece model or damaged ({error}); download it again"
        ) from error
    return processor


class SentencePieceTokenizer(GLMTokenizer):
    """The engine half: a SentencePiece model whose control tokens are not matched in text."""

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "tokenizer.model"}
    _unknown_id = 0
    #: Control tokens in id order, the first with the id after the last piece.
    controls: ClassVar[tuple[str, ...]] = ()

    def __init__(self, vocab_file: str, **kwargs: Any) -> None:
        self.vocab_file = vocab_file
        self.sp_model = load_sentencepiece(vocab_file)
        self._num_pieces = self.sp_model.get_piece_size()
        # The original fixes these three whatever the config file says.
        for key in ("unk_token", "pad_token", "eos_token", "bos_token"):
            kwargs.pop(key, None)
        super().__init__(
            control_ids=self._read_control_ids(),
            unk_token="<unk>",
            pad_token="<unk>",
            eos_token="</s>",
            vocab_file=vocab_file,
            **kwargs,
        )

    def _read_control_ids(self) -> dict[str, int]:
        return {name: self._num_pieces + at for at, name in enumerate(self.controls)}

    @property
    def vocab_size(self) -> int:
        """Number of ids: pieces and the family's control tokens (embedding rows may be more)."""
        return self._num_pieces + len(self.controls)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of message content: control spellings stay text, nothing is added."""
        try:
            return self.sp_model.encode(text)
        except (RuntimeError, TypeError):  # no text, or one with half a surrogate pair
            return super().encode_text(text)

    def _engine_encode(self, texts: list[str]) -> list[list[int]]:
        return encode_pieces(self.sp_model, texts)

    def _engine_decode(self, ids: list[int]) -> str:
        return self.sp_model.decode([index for index in ids if 2 < index < self._num_pieces])

    def _engine_token(self, index: int) -> str:
        return self.sp_model.id_to_piece(index) if 0 <= index < self._num_pieces else ""

    def _engine_id(self, token: str) -> int | None:
        index = self.sp_model.piece_to_id(token)
        return index if self.sp_model.id_to_piece(index) == token else None

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write the SentencePiece model under the name the family gives it."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory) / f"{prefix}{self.vocab_files_names['vocab_file']}"
        path.write_bytes(self.sp_model.serialized_model_proto())
        return (str(path),)


class ChatGLM2Tokenizer(SentencePieceTokenizer):
    """ChatGLM2-6B: ``[gMASK] sop`` before the text, rounds written as text."""

    family = "chatglm2"
    controls: ClassVar[tuple[str, ...]] = _SHARED_CONTROLS

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return ``[gMASK] sop a``, or ``[gMASK] sop a b </s>`` for a pair."""
        prefix = [self.control_ids["[gMASK]"], self.control_ids["sop"]]
        if token_ids_1 is None:
            return prefix + token_ids_0
        return [*prefix, *token_ids_0, *token_ids_1, self.eos_token_id]

    def _chat_parts(
        self, messages: Any, tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[ChatPart]:
        """Return the prompt in one piece; a last answer is apart and ends with ``</s>``."""
        read = read_messages(messages, ("user", "assistant"), self.family)
        if tools:
            raise ModelError("ChatGLM2 knows no tools: leave them out, or use ChatGLM3 or GLM-4")
        rounds = rounds_of(read, self.family)
        text = "".join(
            f"[Round {number}]\n\n问：{question}\n\n答：{answer}\n\n"
            for number, (question, answer) in enumerate(rounds[:-1], 1)
        )
        question, answer = rounds[-1]
        text += f"[Round {len(rounds)}]\n\n问：{question}\n\n答："
        parts: list[ChatPart] = [ControlToken("[gMASK]"), ControlToken("sop"), text]
        return parts if answer is None else [*parts, answer, ControlToken("</s>")]


class ChatGLM3Tokenizer(ChatGLM2Tokenizer):
    """ChatGLM3-6B: role tokens, each followed by a line of metadata and the content."""

    family = "chatglm3"
    controls = (*_SHARED_CONTROLS, *_ROLE_CONTROLS)

    def encode_message(
        self,
        role: str,
        content: str,
        metadata: str = "",
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """Return the role token, the line of metadata and the content: the two encoded apart."""
        return self.encode_parts(
            _message_parts({"role": role, "content": content, "metadata": metadata, "tools": tools})
        )

    def _chat_parts(
        self, messages: Any, tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[ChatPart]:
        """Return ``[gMASK] sop`` and the messages; the prompt ends at ``<|assistant|>``."""
        roles = ("system", "user", "assistant", "observation")
        read = read_messages(messages, roles, self.family, python_call)
        parts: list[ChatPart] = [ControlToken("[gMASK]"), ControlToken("sop")]
        for message in with_tools(read, tools, TOOLS_PROMPT):
            parts += _message_parts(message)
        return [*parts, ControlToken("<|assistant|>")] if add_generation_prompt else parts


def _message_parts(message: Mapping[str, Any]) -> list[ChatPart]:
    content = message["content"]
    if message.get("tools") and message["role"] == "system":
        # The wrapper of the OpenAI format was not in the training data; the function was.
        tools = read_tools(message["tools"])
        content = f"{content}\n{json.dumps(tools, indent=4, ensure_ascii=False)}"
    return [ControlToken(f"<|{message['role']}|>"), f"{message.get('metadata') or ''}\n", content]
