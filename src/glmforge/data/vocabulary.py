"""Train a small vocabulary in ChatGLM3's file format: ``tokenizer.model`` and its config file.

A SentencePiece BPE with byte fallback and the settings of the family (no normalisation, single
digits, a leading blank): the tokenizer classes of ``models`` append the control tokens behind its
pieces, so any size works. Used for the packaged demo model and by ``glmforge tokenizer train``.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from glmforge.errors import DataError

_SMALLEST = 3 + 256  # <unk>, <s>, </s> and the 256 bytes come before the first piece
TOKENIZER_FILES = ("tokenizer.model", "tokenizer_config.json")


def train_vocabulary(
    texts: Iterable[str],
    out_dir: str | Path,
    vocab_size: int,
    *,
    character_coverage: float = 0.9995,
    name: str = "chatglm3",
) -> Path:
    """Train a SentencePiece BPE and write it as a ChatGLM3 tokenizer directory.

    The same texts in the same order give the same file, byte for byte.

    Args:
        texts: message contents; line breaks separate training sentences.
        out_dir: directory to write ``tokenizer.model`` and ``tokenizer_config.json`` into.
        vocab_size: pieces, the 259 fixed ones included; control tokens come on top.
        character_coverage: share of the characters that get a piece; the rest fall to bytes.
        name: what ``name_or_path`` says; the generation is recognised by it.

    Returns:
        The directory.

    Raises:
        DataError: too few pieces asked for, no text, or text too poor for the size.
    """
    if vocab_size <= _SMALLEST:
        raise DataError(f"vocab_size is {vocab_size}; it must be above {_SMALLEST}")
    lines = list(_lines(texts))
    if not lines:
        raise DataError("there is no text to train a vocabulary on; give files with dialogues")
    model = _train(lines, vocab_size, character_coverage)
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tokenizer.model").write_bytes(model)
    config = {
        "name_or_path": name,
        "tokenizer_class": "ChatGLMTokenizer",
        "remove_space": False,
        "do_lower_case": False,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    return out


def evenly(texts: Sequence[str], characters: int) -> list[str]:
    """Take texts at even distances until they have about so many characters, or all of them."""
    total = sum(map(len, texts))
    if total <= characters:
        return list(texts)
    step = total / characters
    return [texts[int(at * step)] for at in range(int(len(texts) / step))]


def characters_per_token(directory: str | Path, texts: Iterable[str]) -> float:
    """Say how many characters of the texts a piece of a trained vocabulary holds on average."""
    model = str(Path(directory) / "tokenizer.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=model)
    characters = tokens = 0
    for text in texts:
        characters += len(text)
        tokens += len(pieces.encode(text))
    return characters / max(1, tokens)


def _train(lines: list[str], vocab_size: int, character_coverage: float) -> bytes:
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=True,
            split_digits=True,
            allow_whitespace_only_pieces=True,
            max_sentencepiece_length=16,
            max_sentence_length=1 << 20,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(
            f"no vocabulary of {vocab_size} pieces can be made of {len(lines):,} lines "
            f"({str(error).strip().rpartition('] ')[2][:160]}); use more text or another size"
        ) from error
    return model.getvalue()


def _lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for line in text.split("\n"):
            if line.strip():
                yield line
