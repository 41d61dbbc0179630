"""What the family's tokenizers share: transformers' protocol around a native engine.

Owns batching, special tokens, padding with position ids, decoding around control tokens, added
tokens, saving, and ``apply_chat_template``. A subclass brings the engine (SentencePiece's C++ or
tiktoken's Rust, both exact by construction) and the chat format as a list of parts. Text goes to
the engine a batch at a time; nothing loops over tokens in Python.

Two ways in: ``tokenizer(text)`` does what the original tokenizer did, ``encode_text(text)`` reads
every control spelling as plain text. Message content always takes the second.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import AddedToken, BatchEncoding, PreTrainedTokenizer
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_chat import ChatEncoding


def replace_lone_surrogates(text: str) -> str:
    """Return `text` with halves of surrogate pairs (which no UTF-8 holds) as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class GLMTokenizer(ChatEncoding, PreTrainedTokenizer):
    """Base of the four tokenizers; holds the control tokens and speaks transformers' protocol.

    A subclass loads its engine and calls ``super().__init__(control_ids=...)``: control spellings
    and their ids, in id order, all of them special to `skip_special_tokens`.
    """

    family: ClassVar[str] = ""
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask", "position_ids"]
    padding_side = "left"
    #: What `convert_tokens_to_ids` gives for a token that does not exist.
    _unknown_id: int | None = None
    #: Pieces of the engine: ids 0 ... _num_pieces - 1.
    _num_pieces: int
    #: Control spellings that ``tokenizer(text)`` turns into ids, as the original did.
    parsed_controls: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, control_ids: Mapping[str, int], **kwargs: Any) -> None:
        self.control_ids = dict(control_ids)
        saved: Mapping[int, AddedToken] = kwargs.pop("added_tokens_decoder", None) or {}
        # Names of code files and loading flags do not belong into what we save.
        for key in ("auto_map", "is_local", "local_files_only", "backend", "tokenizer_file"):
            kwargs.pop(key, None)
        saved = self._read_added(saved)
        # Control tokens are special by class; only further ones are the user's.
        names = (*self.control_ids, *(str(token) for token in saved.values()))
        for key in ("extra_special_tokens", "additional_special_tokens"):
            extra = [token for token in kwargs.pop(key, None) or () if str(token) not in names]
            if extra:
                kwargs["extra_special_tokens"] = extra
        self._added_tokens_decoder = {
            index: AddedToken(name, special=True, normalized=False)
            for name, index in self.control_ids.items()
        }
        self._parsed: dict[str, int] = {
            name: self.control_ids[name] for name in self.parsed_controls
        }
        self._added_tokens_decoder.update(saved)
        kwargs.setdefault("padding_side", self.padding_side)
        super().__init__(**kwargs)
        for index, token in self._added_tokens_decoder.items():
            if token.content not in self.control_ids:
                self._parsed[token.content] = index
            if token.special and token.content not in self.all_special_tokens:
                self._extra_special_tokens.append(token.content)
        self._update_parser()

    def _read_added(self, saved: Mapping[int, AddedToken]) -> dict[int, AddedToken]:
        """Return the user's own tokens among the saved ones.

        Raises:
            ModelError: a token is saved with an id that the vocabulary file gives to another.
        """
        holders = {index: name for name, index in self.control_ids.items()}
        added: dict[int, AddedToken] = {}
        problems: list[str] = []
        for index, token in saved.items():
            holder = holders.get(index) or self._engine_token(index) or token.content
            if holder != token.content or self.control_ids.get(token.content, index) != index:
                problems.append(
                    f"tokenizer_config.json gives {token.content!r} the id {index}, which does not "
                    "fit the vocabulary file: take both files from the same model"
                )
            elif index not in holders:
                added[index] = token
        if problems:
            raise ModelError(problems)
        return added

    # -- the engine, by the subclass ---------------------------------------------------------

    def _engine_encode(self, texts: list[str]) -> list[list[int]]:
        """Encode each text as plain text: no control id, no special token."""
        raise AssertionError("a subclass brings the engine")

    def _engine_decode(self, ids: list[int]) -> str:
        """Decode ids none of which is a control or added token."""
        raise AssertionError("a subclass brings the engine")

    def _engine_token(self, index: int) -> str:
        """Return the piece with this id, "" for an id without one."""
        raise AssertionError("a subclass brings the engine")

    def _engine_id(self, token: str) -> int | None:
        """Return the id of this piece, None when there is no such piece."""
        raise AssertionError("a subclass brings the engine")

    # -- plain text --------------------------------------------------------------------------

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of message content: control spellings stay text, nothing is added."""
        return self.encode_texts([text])[0]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return `encode_text` of each text; large batches use every CPU of the process."""
        try:
            return self._engine_encode(list(texts))
        except (TypeError, UnicodeEncodeError):
            wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
            if wrong:
                raise TypeError(f"expected texts, got {', '.join(sorted(set(wrong)))}") from None
            return self._engine_encode([replace_lone_surrogates(text) for text in texts])

    # -- vocabulary --------------------------------------------------------------------------

    def get_vocab(self) -> dict[str, int]:
        """Return every token and its id; control spellings win over pieces spelled alike."""
        pieces = {self._engine_token(index): index for index in range(self._num_pieces)}
        return {**pieces, **self._added_tokens_encoder}

    def _update_total_vocab_size(self) -> None:
        self.total_vocab_size = max(
            self.vocab_size, max(self._added_tokens_decoder, default=-1) + 1
        )

    def _convert_token_to_id(self, token: str) -> int | None:
        index = self._engine_id(token)
        return self._unknown_id if index is None else index

    def _convert_id_to_token(self, index: int) -> str:
        return self._engine_token(index)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Return the text that these tokens stand for."""
        return self._decode(self.convert_tokens_to_ids(tokens))

    def _add_tokens(
        self, new_tokens: Sequence[str | AddedToken], special_tokens: bool = False
    ) -> int:
        """Give tokens that have no id the next free ones; ``tokenizer(text)`` finds them."""
        before = len(self)
        for token in new_tokens:
            name = str(token)
            if not name or name in self._added_tokens_encoder or name in self.control_ids:
                continue
            index = self._engine_id(name)
            if index is not None and special_tokens:
                continue
            if isinstance(token, str):
                token = AddedToken(token, special=special_tokens, normalized=False)
            index = len(self) if index is None else index
            self._added_tokens_decoder[index] = token
            self._added_tokens_encoder[name] = self._parsed[name] = index
            if token.special and name not in self.all_special_tokens:
                self._extra_special_tokens.append(name)
            self._update_total_vocab_size()
        self._update_parser()
        return len(self) - before

    # -- text with control spellings ---------------------------------------------------------

    def _update_parser(self) -> None:
        names = sorted(self._parsed, key=len, reverse=True)
        self._parser = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def _strip_beside_controls(self, before: str | None, text: str, after: str | None) -> str:
        """Return text between two parsed tokens (None: an end) as the original trims it."""
        return text

    def _encode_parsed(self, texts: list[str]) -> list[list[int]]:
        """Encode as the original: parsed spellings become ids, the text around them is apart."""
        if self._parser is None or not any(map(self._parser.search, texts)):
            return self.encode_texts(texts)
        splits: list[list[str]] = [self._parser.split(text) for text in texts]
        for split in splits:
            spellings = [None, *split[1::2], None]
            split[::2] = [
                self._strip_beside_controls(before, text, after)
                for before, text, after in zip(spellings, split[::2], spellings[1:], strict=False)
            ]
        encoded = iter(self.encode_texts([text for split in splits for text in split[::2]]))
        rows: list[list[int]] = []
        for split in splits:
            row = next(encoded)
            for spelling in split[1::2]:
                row = [*row, self._parsed[spelling], *next(encoded)]
            rows.append(row)
        return rows

    def tokenize(self, text: str, pair: str | None = None, **kwargs: Any) -> list[str]:
        """Return the tokens of `text` (and `pair` after it) as the original spells them."""
        plain = kwargs.pop("split_special_tokens", self.split_special_tokens)
        texts = [text] if pair is None else [text, pair]
        rows = self.encode_texts(texts) if plain else self._encode_parsed(texts)
        return [token for row in rows for token in self.convert_ids_to_tokens(row)]

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,
        return_attention_mask: bool | None = None,
        split_special_tokens: bool = False,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Encode one text or a batch (strings, lists of words, or lists of ids), then pad."""
        batched = isinstance(text, (list, tuple)) and not (
            text
            and (isinstance(text[0], int) or (is_split_into_words and isinstance(text[0], str)))
        )
        items = list(text) if batched else [text]
        pairs = text_pair if batched and text_pair is not None else [text_pair] * len(items)
        if len(pairs) != len(items):
            raise ValueError(f"{len(items)} texts but {len(pairs)} pairs: give one pair a text")
        if batched and text_pair is None and items and isinstance(items[0], tuple):
            items, pairs = map(list, zip(*items, strict=True))
        first = self._ids_of(items, split_special_tokens, is_split_into_words)
        second = (
            self._ids_of(pairs, split_special_tokens, is_split_into_words)
            if pairs and pairs[0] is not None
            else [None] * len(first)
        )
        batch = self._finish_rows(first, second, add_special_tokens, max_length, kwargs)
        if padding_strategy == PaddingStrategy.DO_NOT_PAD and batched and len(batch) == 1:
            padded = self._unpadded(batch["input_ids"], return_attention_mask)
        else:
            padded = self.pad(
                batch if batched else {key: rows[0] for key, rows in batch.items()},
                padding=padding_strategy.value,
                max_length=max_length,
                pad_to_multiple_of=pad_to_multiple_of,
                padding_side=padding_side,
                return_attention_mask=return_attention_mask,
            )
        return BatchEncoding(
            dict(padded), tensor_type=return_tensors, prepend_batch_axis=not batched
        )

    def _unpadded(self, rows: list[list[int]], with_mask: bool | None) -> dict[str, Any]:
        """Return what `pad` returns for a batch without padding, without its cost a row."""
        batch: dict[str, Any] = {"input_ids": rows}
        if with_mask or (with_mask is None and "attention_mask" in self.model_input_names):
            batch["attention_mask"] = [[1] * len(row) for row in rows]
        if "position_ids" in self.model_input_names:
            batch["position_ids"] = [list(range(len(row))) for row in rows]
        return batch

    def _ids_of(self, items: Sequence[Any], plain: bool, words: bool) -> list[list[int]]:
        """Return the ids of each item: a string, a list of words, or ids as they are."""
        encode = self.encode_texts if plain else self._encode_parsed
        if all(isinstance(item, str) for item in items):
            return encode(list(items))
        rows: list[list[int]] = []
        for item in items:
            if isinstance(item, str):
                rows += encode([item])
            elif isinstance(item, (list, tuple)) and all(isinstance(part, int) for part in item):
                rows.append(list(item))
            elif words and all(isinstance(part, str) for part in item):
                rows.append([index for row in encode(list(item)) for index in row])
            else:
                raise ValueError(f"expected a text or a list of ids, got {type(item).__name__}")
        return rows

    def _finish_rows(
        self,
        first: list[list[int]],
        second: Sequence[list[int] | None],
        add_special_tokens: bool,
        max_length: int | None,
        kwargs: Mapping[str, Any],
    ) -> dict[str, list[Any]]:
        """Add special tokens and truncate; the extra outputs are transformers' own."""
        absent = ("return_offsets_mapping", "return_token_type_ids")
        if asked := [key for key in absent if kwargs.get(key)]:
            raise ValueError(f"{', '.join(asked)}: tokenizers of this family have none")
        strategy = TruncationStrategy(kwargs.get("truncation_strategy", "do_not_truncate"))
        truncates = strategy != TruncationStrategy.DO_NOT_TRUNCATE
        extras = ("return_overflowing_tokens", "return_special_tokens_mask", "return_length")
        if not (truncates or any(kwargs.get(key) for key in extras)):
            if add_special_tokens:
                first = [self.build_inputs_with_special_tokens(*row) for row in zip(first, second)]
            else:
                first = [ids + (pair or []) for ids, pair in zip(first, second)]
            return {"input_ids": first}
        batch: dict[str, list[Any]] = {"input_ids": []}
        for ids, pair in zip(first, second):
            row = self.prepare_for_model(
                ids,
                pair,
                add_special_tokens=add_special_tokens,
                truncation=strategy.value if truncates else False,
                max_length=max_length if truncates else None,
                stride=kwargs.get("stride", 0),
                return_attention_mask=False,
                **{key: bool(kwargs.get(key)) for key in extras},
            )
            for key, value in row.items():
                if key != "position_ids":
                    batch.setdefault(key, []).append(value)
        return batch

    def get_special_tokens_mask(
        self,
        token_ids_0: list[int],
        token_ids_1: list[int] | None = None,
        already_has_special_tokens: bool = False,
    ) -> list[int]:
        """Return 1 for every special token around (or already in) the ids, 0 for the others."""
        if already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, True)
        pair = None if token_ids_1 is None else [-1] * len(token_ids_1)
        built = self.build_inputs_with_special_tokens([-1] * len(token_ids_0), pair)
        return [int(index != -1) for index in built]

    def _pad(
        self,
        encoded_inputs: Any,
        max_length: int | None = None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
    ) -> Any:
        """Pad one row; position ids count from its first real token and are 0 on pads."""
        length = len(encoded_inputs["input_ids"])
        padded = super()._pad(
            encoded_inputs,
            max_length=max_length,
            padding_strategy=padding_strategy,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        if "position_ids" in self.model_input_names:
            positions = list(padded.get("position_ids", range(length)))
            pads = [0] * (len(padded["input_ids"]) - length)
            left = (padding_side or self.padding_side) == "left"
            padded["position_ids"] = pads + positions if left else positions + pads
        return padded

    # -- back to text ------------------------------------------------------------------------

    def _in_engine(self, index: int) -> bool:
        """Say whether decoding leaves this id to the engine."""
        return index not in self._added_tokens_decoder

    def _join_decoded(self, written: list[str], **kwargs: Any) -> str:
        """Join runs of text and the control tokens between them."""
        return "".join(written)

    def _decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **kwargs: Any,
    ) -> str:
        skipped = frozenset(self.all_special_ids) if skip_special_tokens else frozenset()
        written: list[str] = []
        run: list[int] = []
        for index in [token_ids] if isinstance(token_ids, int) else token_ids:
            if index in skipped:
                continue
            if self._in_engine(index):
                run.append(index)
                continue
            written += [self._engine_decode(run), self._added_tokens_decoder[index].content]
            run = []
        written.append(self._engine_decode(run))
        text = self._join_decoded([part for part in written if part], **kwargs)
        if clean_up_tokenization_spaces is None:
            clean_up_tokenization_spaces = self.clean_up_tokenization_spaces
        return self.clean_up_tokenization(text) if clean_up_tokenization_spaces else text
