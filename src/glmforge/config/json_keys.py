"""JSON objects in which every key stands once.

Owns the hook for ``json.loads`` that refuses a key written twice in one map, as ``document`` does
for YAML: Python would keep the last one in silence, and so would DeepSpeed be given half of a file.
"""

from typing import Any


class DoubledKey(ValueError):
    """A map has a key twice; says so without a subject, with what to do."""


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a map of its pairs (``object_pairs_hook``).

    Raises:
        DoubledKey: two pairs have the same key.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DoubledKey(
                f"has the key {key!r} twice in one map, and only the last would be read: keep one "
                "of them"
            )
        found[key] = value
    return found
