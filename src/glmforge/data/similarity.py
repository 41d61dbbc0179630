"""What texts have in common: the same words, the same shingles, one sentence pattern, one topic.

Each function looks at single texts (topics at a list of them) and is a pure function of these.
``copies`` compares the signatures of many records, ``tallies`` counts patterns.
"""

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glmforge.data.conversation import Conversation

_PERMUTATIONS = 64
BANDS = 16
"""Groups of 4 MinHash values: texts with over half of their shingles in common share some group."""

Signature = npt.NDArray[np.uint64]
_random = np.random.default_rng(0)
_FACTORS = _random.integers(1, 1 << 62, _PERMUTATIONS, dtype=np.uint64) | np.uint64(1)
_OFFSETS = _random.integers(0, 1 << 62, _PERMUTATIONS, dtype=np.uint64)
_SHINGLE = _random.integers(1, 1 << 62, 4, dtype=np.uint64) | np.uint64(1)


def words_of(conversation: Conversation) -> str:
    """All that is said in a record, one message a line."""
    return "\n".join(message.text for message in conversation.messages)


def copy_key(conversation: Conversation) -> bytes:
    """Equal for records with the same words (but for white space at line ends) and tools."""
    said = [
        (message.role, message.name, [line.strip() for line in message.text.split("\n")])
        for message in conversation.messages
    ]
    text = json.dumps([said, list(conversation.tools)], ensure_ascii=True)
    return hashlib.sha256(text.encode()).digest()


def signature(text: str) -> Signature:
    """MinHash of a text's shingles, 64 values."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(points) < 4:
        points = np.pad(points, (0, 4 - len(points)))
    count = len(points) - 3
    mixed = sum((points[n : n + count] * _SHINGLE[n] for n in range(4)), np.uint64(0))
    shingles = np.unique(mixed ^ (mixed >> np.uint64(29)))
    values: Signature = (shingles[:, None] * _FACTORS + _OFFSETS).min(axis=0)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Records that are alike: what they share, how many they are, one of them."""

    name: str
    count: int
    example: str


_QUOTED = re.compile(r"[“\"'《【「][^”\"'》】」]{1,40}[”\"'》】」]")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_WORD = re.compile(r"[A-Za-z]+")
_HAN = re.compile(r"[\u3400-\u9fff]+")


def pattern_of(text: str) -> str:
    """The sentence pattern of a text: quotations and numbers become signs, and so do Latin words
    where Chinese is written.
    """
    text = text.strip().split("\n", 1)[0][:200]
    forms = [(_QUOTED, "“…”"), (_NUMBER, "0")]
    if _HAN.search(text):
        forms.append((_WORD, "A"))
    for form, sign in forms:
        text = form.sub(sign, text)
    return re.sub(r"\s+", " ", text)


def opening_of(text: str) -> str:
    """The beginning of a text's pattern (8 characters, or 4 words): one template opens alike."""
    pattern = pattern_of(text)
    return pattern[:8] if _HAN.search(pattern) else " ".join(pattern.lower().split()[:4])


def topics(texts: Sequence[str]) -> list[str]:
    """A topic name for every text: its length class and its two most telling keywords.

    Keywords are Latin words and pairs of Chinese characters; telling is what several other texts
    have too, but not most of them.
    """
    keywords = [set(_keywords(text)) for text in texts]
    spread = Counter(word for found in keywords for word in found)
    limit = max(len(texts) // 4, 2)
    names = []
    for text, found in zip(texts, keywords):
        known = [word for word in found if 2 <= spread[word] <= limit]
        best = sorted(known, key=lambda word: (-spread[word], word))[:2]
        names.append(f"{_length_class(len(text))} {' '.join(sorted(best)) or 'no common word'}")
    return names


def _keywords(text: str) -> Iterator[str]:
    text = text[:400].lower()
    yield from (word for word in _WORD.findall(text) if len(word) > 4)
    for run in _HAN.findall(text):
        yield from (a + b for a, b in itertools.pairwise(run))


def _length_class(characters: int) -> str:
    for limit in (20, 80, 300, 1000):
        if characters < limit:
            return f"<{limit}"
    return "≥1000"
