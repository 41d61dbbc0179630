"""The nearest known name to a mistyped one.

One measure for all "did you mean" advice: setting names, section names and allowed words.
"""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> list[str]:
    """Return the known name nearest to `word` as a list of one, or an empty list.

    Case and the sign between words (`-`, `_`) do not count.
    """
    by_form = {_form(name): name for name in known}
    found = difflib.get_close_matches(_form(word), by_form, n=1, cutoff=0.7)
    return [by_form[name] for name in found]


def _form(word: str) -> str:
    return word.lower().replace("-", "_")
