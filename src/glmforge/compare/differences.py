"""What changed from one text to another, word by word.

Words are those of jieba where it is installed, else runs of letters or digits and single other
characters; white space is kept, so that the pieces of either side add up to its text.
"""

import difflib
import importlib.util
import re

_PIECE = re.compile(r"[0-9A-Za-z\u00c0-\u024f]+|\s+|.", re.DOTALL)
_LONGEST = 3_000  # pieces; longer texts are compared line by line, or it would take minutes

Change = tuple[int, str]
"""(0, text both have), (-1, text of the first alone) or (1, text of the second alone)."""


def pieces(text: str) -> list[str]:
    """Cut a text into words and white space that add up to it."""
    if importlib.util.find_spec("jieba") is None:
        return _PIECE.findall(text)
    import jieba

    return [str(word) for word in jieba.lcut(text)]


def changes(before: str, after: str) -> list[Change]:
    """Return the texts as one list of common, removed and added parts, in order."""
    if before == after:
        return [(0, before)] if before else []
    first, second = pieces(before), pieces(after)
    if max(len(first), len(second)) > _LONGEST:
        first, second = before.splitlines(keepends=True), after.splitlines(keepends=True)
    found: list[Change] = []
    matcher = difflib.SequenceMatcher(a=first, b=second, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            found.append((0, "".join(first[start:end])))
            continue
        if end > start:
            found.append((-1, "".join(first[start:end])))
        if other_end > other_start:
            found.append((1, "".join(second[other_start:other_end])))
    return found
