"""What records have in common: copies, near copies, and clusters of one pattern or topic.

Near copies are found with MinHash over four-character shingles and banded buckets, so 100,000
records take seconds, not a comparison of all pairs. Everything is a pure function of the texts.
"""

import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glmforge.data.conversation import Conversation

_PERMUTATIONS = 64
_BANDS = 16  # of 4 values: pairs above about half the shingles in common meet in some bucket
NEAR = 0.8
"""Estimated share of shingles in common from which two records count as near copies."""

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
class NearCopy:
    """Record ``index`` says nearly what record ``earlier`` says; ``share`` of shingles."""

    index: int
    earlier: int
    share: float


class NearIndex:
    """Signatures seen so far, in buckets."""

    def __init__(self) -> None:
        self._signatures: list[Signature] = []
        self._buckets: list[dict[bytes, list[int]]] = [defaultdict(list) for _ in range(_BANDS)]

    def nearest(self, found: Signature) -> tuple[int, float] | None:
        """The seen record most like this one, from ``NEAR`` on."""
        candidates = {
            index
            for bucket, key in zip(self._buckets, _bands(found))
            for index in bucket.get(key, ())
        }
        best = max(
            ((float((self._signatures[i] == found).mean()), -i) for i in candidates), default=None
        )
        return (-best[1], best[0]) if best is not None and best[0] >= NEAR else None

    def add(self, found: Signature) -> None:
        """Remember a record; its number is the count of those before it."""
        for bucket, key in zip(self._buckets, _bands(found)):
            if len(bucket[key]) < 32:  # a bucket of one pattern: more members find no other pairs
                bucket[key].append(len(self._signatures))
        self._signatures.append(found)


def _bands(found: Signature) -> list[bytes]:
    return [part.tobytes() for part in found.reshape(_BANDS, -1)]


def near_copies(texts: Iterable[str]) -> list[NearCopy]:
    """Every record that nearly repeats an earlier one."""
    index = NearIndex()
    found = []
    for number, text in enumerate(texts):
        mark = signature(text)
        match = index.nearest(mark)
        if match is not None:
            found.append(NearCopy(index=number, earlier=match[0], share=match[1]))
        index.add(mark)
    return found


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


def clusters(names: Sequence[str], texts: Sequence[str], most: int = 5) -> list[Cluster]:
    """The most frequent names, each with one of its texts."""
    first: dict[str, str] = {}
    for name, text in zip(names, texts):
        first.setdefault(name, text)
    counted = Counter(names).most_common(most)
    return [Cluster(name=name, count=count, example=first[name][:80]) for name, count in counted]


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
        names.append(f"{_length_class(len(text))} {' '.join(sorted(best)) or '(none)'}")
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
