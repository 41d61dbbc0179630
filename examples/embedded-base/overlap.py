"""Is anything of the demo's questions in a text? By runs of characters that both have.

    python overlap.py FILE.jsonl ...

prints, for every file, how many records share a run of eight characters with a question of the demo
(train, validation, selection, held out) or of thirteen with an answer; both should be none.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glmforge.assets import asset_path

QUESTION_RUN, ANSWER_RUN = 8, 13
_KEPT = re.compile(r"[\W_]+")


def plain(text: str) -> str:
    """Letters and digits only: spacing and punctuation hide no copy."""
    return _KEPT.sub("", text).lower()


def runs(text: str, length: int) -> Iterator[str]:
    """Every run of so many characters; a shorter text has none."""
    letters = plain(text)
    return (letters[at : at + length] for at in range(len(letters) - length + 1))


def demo_files() -> list[Path]:
    """The service rows and questions of the package; general ones are not among them."""
    folder = asset_path("demo")
    names = ("train", "validation", "questions", "selection", "facts", "facts_validation")
    return [path for name in names if (path := folder / f"{name}.jsonl").exists()]


def texts_of(path: Path) -> Iterator[tuple[str, str]]:
    """(role, text) of everything said in a file of dialogues or questions."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        for message in row.get("messages", []):
            yield message["role"], message["content"]
        for question, answer in row.get("history", []):
            yield "user", question
            yield "assistant", answer
        if "prompt" in row:
            yield "user", row["prompt"]
        if "reference" in row:
            yield "assistant", row["reference"]


@dataclass(frozen=True, slots=True)
class Guard:
    """The runs that must not be in a training text."""

    questions: frozenset[str]
    answers: frozenset[str]

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Guard":
        """The runs of files; runs without a letter of their own (digits) are passed over."""
        said = [pair for path in paths for pair in texts_of(path)]
        asked = {run for role, text in said if role == "user" for run in runs(text, QUESTION_RUN)}
        told = {run for role, text in said if role != "user" for run in runs(text, ANSWER_RUN)}
        return cls(frozenset(r for r in asked if not r.isdigit()), frozenset(told))

    def touches(self, text: str) -> bool:
        """Whether a text has one of the runs in it."""
        return any(run in self.questions for run in runs(text, QUESTION_RUN)) or any(
            run in self.answers for run in runs(text, ANSWER_RUN)
        )


def main(paths: list[str]) -> int:
    guard = Guard.of(demo_files())
    print(f"{len(guard.questions):,} runs of questions, {len(guard.answers):,} of answers")
    found = 0
    for path in map(Path, paths):
        records = path.read_text(encoding="utf-8").splitlines()
        touched = 0
        for line in records:
            row = json.loads(line)
            said = [row["text"]] if "text" in row else [m["content"] for m in row["messages"]]
            touched += guard.touches("\n".join(said))
        print(f"{path.name}: {touched} of {len(records):,} records")
        found += touched
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
