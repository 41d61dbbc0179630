"""The tokenizer of GLM-4-9B: byte-level BPE from a tiktoken file, control tokens behind its ranks.

The engine is tiktoken's Rust: it merges by the rank of the merged bytes, leftmost first, which a
merge list of the ``tokenizers`` library can only approximate. ``tokenizer(text)`` turns control
spellings into ids and decoding puts a blank around them, as the original does;
``split_special_tokens=True`` and `encode_text` read them as text.
"""

import base64
import binascii
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tiktoken
from transformers import PreTrainedTokenizer

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_chat import (
    ChatPart,
    ControlToken,
    read_messages,
    read_tools,
    with_tools,
)
from glmforge.tool_calls import json_call

# The pre-tokenizer of GLM-4-9B: that of cl100k with its possessive quantifiers left out.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROLS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
)


@functools.cache
def byte_letters() -> dict[int, str]:
    """Return the letter that stands for each byte where a token must be a string.

    It is the table of GPT-2: printable Latin-1 stands for itself, the other bytes follow from
    U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(0x100 + at) for at, byte in enumerate(others)}


@functools.cache
def letter_bytes() -> dict[str, int]:
    """Return the byte that each letter of `byte_letters` stands for."""
    return {letter: byte for byte, letter in byte_letters().items()}


def is_tiktoken_file(path: str | Path) -> bool:
    """Say whether a `tokenizer.model` holds lines of base64 and rank, not a protobuf."""
    with Path(path).open("rb") as file:
        words = file.readline(4096).split()
    if len(words) != 2 or not words[1].isdigit():
        return False
    try:
        base64.b64decode(words[0], validate=True)
    except binascii.Error:
        return False
    return True


def load_ranks(path: str | Path) -> dict[bytes, int]:
    """Return the rank (= id) of each token of a tiktoken file.

    Raises:
        ModelError: no such file, a line that is not base64 and a number, or ranks with gaps.
    """
    if not Path(path).is_file():
        raise ModelError(f"{path}: no such file; it is the tokenizer's vocabulary")
    ranks: dict[bytes, int] = {}
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError:
                raise ModelError(
                    f"{path}:{number}: expected base64 and a rank, found {line[:40]!r}: the file "
                    "is damaged; download it again"
                ) from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelError(
            f"{path}: {len(ranks)} tokens, but the ranks have gaps or single bytes are missing: "
            "the file is cut short; download it again"
        )
    return ranks


class ChatGLM4Tokenizer(GLMTokenizer):
    """GLM-4-9B and GLM-4-9B-chat: ``[gMASK]<sop>`` before the text, role tokens in dialogues."""

    family = "glm4"
    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "tokenizer.model"}
    parsed_controls = _CONTROLS

    def __init__(self, vocab_file: str, **kwargs: Any) -> None:
        self.vocab_file = vocab_file
        self.ranks = load_ranks(vocab_file)
        self._tokens = {rank: token for token, rank in self.ranks.items()}
        self._num_pieces = len(self.ranks)
        self._encoding = self._new_encoding()
        for key in ("eos_token", "pad_token"):
            kwargs.setdefault(key, "<|endoftext|>")
        super().__init__(
            control_ids={name: self._num_pieces + at for at, name in enumerate(_CONTROLS)},
            vocab_file=vocab_file,
            **kwargs,
        )

    def _new_encoding(self) -> tiktoken.Encoding:
        return tiktoken.Encoding(
            "glm4", pat_str=PATTERN, mergeable_ranks=self.ranks, special_tokens={}
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what the ranks give back: copies and worker processes stay small."""
        state = dict(self.__dict__)
        del state["_encoding"], state["_tokens"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build the engine again from the ranks."""
        self.__dict__.update(state)
        self._tokens = {rank: token for token, rank in self.ranks.items()}
        self._encoding = self._new_encoding()

    @property
    def vocab_size(self) -> int:
        """Number of ranks, control tokens not counted, as the original says."""
        return self._num_pieces

    def _engine_encode(self, texts: list[str]) -> list[list[int]]:
        # One thread: most of the time goes into building Python lists, which threads cannot share.
        encode = self._encoding.encode_ordinary
        return [encode(text) for text in texts]

    def _engine_decode(self, ids: list[int]) -> str:
        known = [index for index in ids if 0 <= index < self._num_pieces]
        return self._encoding.decode(known, errors="replace")

    def _engine_token(self, index: int) -> str:
        letters = byte_letters()
        return "".join(letters[byte] for byte in self._tokens.get(index, b""))

    def _engine_id(self, token: str) -> int | None:
        table = letter_bytes()
        if not all(letter in table for letter in token):
            return None
        return self.ranks.get(bytes(table[letter] for letter in token))

    def _join_decoded(self, written: list[str], **kwargs: Any) -> str:
        """Put a blank around control tokens unless ``spaces_between_special_tokens=False``."""
        return (" " if kwargs.get("spaces_between_special_tokens", True) else "").join(written)

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write the ranks as the original file has them."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory) / f"{prefix}tokenizer.model"
        with path.open("wb") as file:
            for rank in range(self._num_pieces):
                file.write(base64.b64encode(self._tokens[rank]) + b" %d\n" % rank)
        return (str(path),)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return ``[gMASK]<sop>a``, or ``[gMASK]<sop>ab<|endoftext|>`` for a pair."""
        prefix = [self.control_ids["[gMASK]"], self.control_ids["<sop>"]]
        if token_ids_1 is None:
            return prefix + token_ids_0
        return [*prefix, *token_ids_0, *token_ids_1, self.control_ids["<|endoftext|>"]]

    def encode_message(
        self,
        role: str,
        content: str,
        metadata: str = "",
        tools: Sequence[Any] | None = None,
    ) -> list[int]:
        """Return role token, line of metadata and content; before them the block of tools."""
        return self.encode_parts(
            self._message_parts(
                {"role": role, "content": content, "metadata": metadata, "tools": tools}
            )
        )

    def _message_parts(self, message: Mapping[str, Any]) -> list[ChatPart]:
        parts: list[ChatPart] = []
        if message.get("tools"):
            parts = [ControlToken("<|system|>"), self._tools_text(message["tools"])]
        if not message["content"] and message.get("tools"):
            return parts
        text = f"{message.get('metadata') or ''}\n{message['content']}"
        return [*parts, ControlToken(f"<|{message['role']}|>"), text]

    def _tools_text(self, tools: Sequence[Any]) -> str:
        """Return the words about tools that follow ``<|system|>``, by the directory's template.

        Raises:
            ModelError: the directory has no chat template, or it says nothing about tools.
        """
        # Built-in tools (python, simple_browser, cogview) have a type, functions have a name.
        wrapped = [
            {"type": "function", "function": tool} if "name" in tool else tool
            for tool in read_tools(tools)
        ]
        written = self._written_by_template(wrapped)
        if written is None:
            raise ModelError(
                "the tokenizer's chat template does not say how GLM-4 is told its tools: copy "
                "`chat_template` from GLM-4-9B-chat's tokenizer_config.json, or leave `tools` out"
            )
        return written

    @property
    def tools_template(self) -> str | None:
        """The directory's own chat template where it says how GLM-4 is told its tools."""
        function = {"name": "f", "description": "", "parameters": {}}
        written = self._written_by_template([{"type": "function", "function": function}])
        return None if written is None else str(self.chat_template)

    def _written_by_template(self, wrapped: Sequence[Any]) -> str | None:
        if not self.chat_template:
            return None
        start = "[gMASK]<sop><|system|>"
        messages = [{"role": "system", "content": "", "tools": wrapped}]
        written = PreTrainedTokenizer.apply_chat_template(self, messages, tokenize=False)
        return written.removeprefix(start) if written.startswith(start) else None

    def _chat_parts(
        self, messages: Any, tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[ChatPart]:
        """Return ``[gMASK]<sop>`` and the messages; the prompt ends at ``<|assistant|>``."""
        roles = ("system", "user", "assistant", "observation")
        parts: list[ChatPart] = [ControlToken("[gMASK]"), ControlToken("<sop>")]
        read = read_messages(messages, roles, self.family, json_call)
        for message in with_tools(read, tools, ""):
            parts += self._message_parts(message)
        return [*parts, ControlToken("<|assistant|>")] if add_generation_prompt else parts
