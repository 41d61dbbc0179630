"""The tokenizer of ChatGLM-6B: a SentencePiece unigram model (`ice_text.model`) and its habits.

Full width letters and compatibility forms are folded by the model's own normaliser; newline, tab
and runs of blanks are written as pieces of their own. Two vocabularies are in circulation: the
first counts 20,000 image tokens before the text (``[gMASK]`` is 150001) and its file lacks the
control pieces, which are appended here as its code did. Equal ids need SentencePiece 0.2.2:
earlier ones break ties between equally likely cuts (``=======``) another way. Position ids and
the prefix mask depend on where ``<sop>`` stands in a row and are made with the batch, not here.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import sentencepiece

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_base import GLMTokenizer
from glmforge.models.glm.tokenization_chat import (
    ChatPart,
    ControlToken,
    read_messages,
    rounds_of,
)
from glmforge.models.glm.tokenization_sentencepiece import encode_pieces, load_sentencepiece

#: Image tokens that the first published vocabulary counts before the text.
OLD_IMAGE_TOKENS = 20_000
_LONGEST_BLANK = 80
_CONTROLS = ("[MASK]", "[gMASK]", "[sMASK]", "<unused_0>", "<sop>", "<eop>", "<ENC>", "<dBLOCK>")
_BLANKS = re.compile(f" {{2,{_LONGEST_BLANK}}}")
_BLANK_PIECE = re.compile(r"<\|blank_(\d+)\|>")
_TITLE = "ChatGLM-6B"


def write_blanks(text: str) -> str:
    """Return `text` with newlines, tabs and runs of blanks as the pieces that stand for them."""
    text = text.replace("\n", "<n>").replace("\t", "<|tab|>")
    return _BLANKS.sub(lambda run: f"<|blank_{len(run[0])}|>", text)


def read_blanks(text: str) -> str:
    """Return `text` with the pieces that stand for newlines, tabs and blanks as these."""

    def blanks(piece: re.Match[str]) -> str:
        length = int(piece[1])
        return " " * length if 2 <= length <= _LONGEST_BLANK else piece[0]

    return _BLANK_PIECE.sub(blanks, text.replace("<n>", "\n").replace("<|tab|>", "\t"))


def with_control_pieces(model: bytes) -> bytes:
    """Return the model of the first vocabulary with the pieces its code appended at run time."""
    # It needs protobuf, which opening today's vocabulary does not.
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    blanks = [f"<|blank_{length}|>" for length in range(2, _LONGEST_BLANK + 1)]
    kind = sentencepiece_model_pb2.ModelProto.SentencePiece
    appended = [(name, kind.CONTROL) for name in _CONTROLS]
    appended += [(name, kind.USER_DEFINED) for name in ("<|tab|>", *blanks)]
    appended += [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
    for name, piece_type in appended:
        proto.pieces.add(piece=name, score=0.0, type=piece_type)
    proto.trainer_spec.byte_fallback = True
    return proto.SerializeToString()


class ChatGLM6BTokenizer(GLMTokenizer):
    """ChatGLM-6B: ``[gMASK] <sop>`` after the text, dialogues written as numbered rounds.

    ``tokenizer(text)`` reads ``<sop> <eop> [MASK] <pad> <unk>`` as ids and drops the white space
    beside them, as the original does; ``split_special_tokens=True`` and `encode_text` do not.
    The spellings of blanks (``<n>``, ``<|tab|>``, ``<|blank_k|>``) stand for them everywhere.
    """

    family = "chatglm"
    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "ice_text.model"}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    parsed_controls = ("<sop>", "<eop>", "[MASK]", "<pad>", "<unk>")
    _unknown_id = 0

    def __init__(self, vocab_file: str, num_image_tokens: int | None = None, **kwargs: Any) -> None:
        self.vocab_file = vocab_file
        self._file_bytes: bytes | None = None
        self.sp_model = self._load(vocab_file)
        is_old = self._file_bytes is not None
        self.num_image_tokens = (
            num_image_tokens if num_image_tokens is not None else OLD_IMAGE_TOKENS * is_old
        )
        self._num_pieces = self.num_image_tokens + self.sp_model.get_piece_size()
        self._unknown_id = self.num_image_tokens + self.sp_model.unk_id()
        for key in ("end_token", "gmask_token", "model_specific_special_tokens", "remove_space"):
            kwargs.pop(key, None)
        tokens = {"bos_token": "<sop>", "eos_token": "<eop>", "pad_token": "<pad>"}
        for key, token in (tokens | {"mask_token": "[MASK]", "unk_token": "<unk>"}).items():
            kwargs.setdefault(key, token)
        # The original removes the blank before English punctuation when it decodes.
        kwargs.setdefault("clean_up_tokenization_spaces", True)
        names = ("<unk>", "<s>", "</s>", "<pad>", *_CONTROLS)
        super().__init__(
            control_ids={
                name: self.num_image_tokens + self.sp_model.piece_to_id(name) for name in names
            },
            vocab_file=vocab_file,
            num_image_tokens=self.num_image_tokens,
            **kwargs,
        )

    def _load(self, vocab_file: str) -> sentencepiece.SentencePieceProcessor:
        processor = load_sentencepiece(vocab_file)
        if processor.id_to_piece(processor.piece_to_id("[gMASK]")) != "[gMASK]":
            self._file_bytes = Path(vocab_file).read_bytes()
            processor.LoadFromSerializedProto(with_control_pieces(self._file_bytes))
        missing = [
            piece
            for piece in ("<pad>", "<n>", "<|tab|>", "<|blank_80|>", "<sop>", "<0xFF>")
            if processor.id_to_piece(processor.piece_to_id(piece)) != piece
        ]
        if missing:
            raise ModelError(
                f"{vocab_file}: a SentencePiece model without {', '.join(missing)}, so not the "
                "vocabulary of ChatGLM-6B: copy ice_text.model from where the model came from"
            )
        return processor

    @property
    def vocab_size(self) -> int:
        """Number of ids, image tokens of the first vocabulary included."""
        return self._num_pieces

    def _engine_encode(self, texts: list[str]) -> list[list[int]]:
        written = [write_blanks(text) for text in texts]
        rows = encode_pieces(self.sp_model, written)
        if not self.num_image_tokens:
            return rows
        return [[index + self.num_image_tokens for index in row] for row in rows]

    def _engine_decode(self, ids: list[int]) -> str:
        first = self.num_image_tokens
        pad = self.control_ids["<pad>"]
        known = [i - first for i in ids if first <= i < self._num_pieces and i != pad]
        return read_blanks(self.sp_model.decode(known))

    def _in_engine(self, index: int) -> bool:
        """Leave control tokens, and ids past the vocabulary, to the engine: it writes nothing."""
        return index < self._num_pieces or super()._in_engine(index)

    def _engine_token(self, index: int) -> str:
        if not 0 <= index < self._num_pieces:
            return ""
        if index < self.num_image_tokens:
            return f"<image_{index}>"
        return self.sp_model.id_to_piece(index - self.num_image_tokens)

    def _engine_id(self, token: str) -> int | None:
        index = self.sp_model.piece_to_id(token)
        return index + self.num_image_tokens if self.sp_model.id_to_piece(index) == token else None

    def _strip_beside_controls(self, before: str | None, text: str, after: str | None) -> str:
        text = text if before is None else text.lstrip()
        return text if after is None else text.rstrip()

    def save_vocabulary(
        self, save_directory: str, filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write the SentencePiece model as the file was, under the name the family gives it."""
        prefix = f"{filename_prefix}-" if filename_prefix else ""
        path = Path(save_directory) / f"{prefix}ice_text.model"
        path.write_bytes(self._file_bytes or self.sp_model.serialized_model_proto())
        return (str(path),)

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        """Return ``a [gMASK] <sop>``, or ``a [gMASK] <sop> b <eop>`` for a pair."""
        row = [*token_ids_0, self.control_ids["[gMASK]"], self.control_ids["<sop>"]]
        return row if token_ids_1 is None else [*row, *token_ids_1, self.control_ids["<eop>"]]

    def _chat_parts(
        self, messages: Any, tools: Sequence[Any] | None, add_generation_prompt: bool
    ) -> list[ChatPart]:
        """Return the prompt in one piece and ``[gMASK] <sop>``; a last answer ends with <eop>.

        A single question is the prompt as it is; with a history every round is numbered from 0.
        """
        if tools:
            raise ModelError(
                f"{_TITLE} knows no tools: leave `tools` out, or use ChatGLM3 or GLM-4"
            )
        rounds = rounds_of(read_messages(messages, ("user", "assistant"), self.family), _TITLE)
        question, answer = rounds[-1]
        text = question
        if len(rounds) > 1:
            text = "".join(
                f"[Round {number}]\n问：{asked}\n答：{answered}\n"
                for number, (asked, answered) in enumerate(rounds[:-1])
            )
            text += f"[Round {len(rounds) - 1}]\n问：{question}\n答："
        parts: list[ChatPart] = [text, ControlToken("[gMASK]"), ControlToken("<sop>")]
        return parts if answer is None else [*parts, answer, ControlToken("<eop>")]
