"""Make the embedded base's training files of a prose corpus, dialogue sets and everyday language.

    python build_corpus.py OUT --prose modern.txt.zst --dialogues DIR

writes prose.jsonl and chat.jsonl, 1 % of each held out, and report.json into OUT.
The same inputs give the same bytes. Nothing that shares eight characters in a row with the demo's
questions or a whole sentence with its answers goes in; README.md says where the inputs come from.
"""

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import everyday
import overlap

from glmforge.data import read_conversations
from glmforge.data.reading import open_stream, read_json_records

HOLD_OUT = 100  # one in so many
SENTENCES = 5  # lines of the prose file that make a paragraph
LONGEST = 900  # characters of a dialogue
SHORTEST = 40  # characters of a chapter
_CODE = re.compile(r"```|</|def |import |SELECT |http")
_CHATTERBOT = (
    "ai botprofile conversations emotion food gossip greetings history humor literature "
    "money movies psychology science sports trivia"
).split()
Row = dict[str, Any]


def chapters(path: Path) -> Iterator[str]:
    """The chapters of the prose file: its lines in paragraphs, lines seen before left out."""
    seen: set[bytes] = set()
    lines: list[str] = []
    with open_stream(path) as stream:
        for raw in stream:
            line = raw.decode("utf-8").strip()
            if line.startswith("# "):
                yield from _chapter(lines)
                lines = []
                continue
            digest = hashlib.md5(line.encode(), usedforsecurity=False).digest()[:8]
            if not line or (len(line) > 15 and digest in seen):
                continue
            seen.add(digest)
            lines.append(re.sub(r" ?([：，。！？、；]) ?", r"\1", line))
    yield from _chapter(lines)


def _chapter(lines: list[str]) -> Iterator[str]:
    parts = ["".join(lines[at : at + SENTENCES]) for at in range(0, len(lines), SENTENCES)]
    text = "\n".join(parts)
    if len(text) >= SHORTEST:
        yield text


def dialogue_sets(root: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(source, messages) of the sets whose licences allow it; README.md names them."""
    belle = {"query": "question", "response": "std_answer"}
    found = [("crosswoz", root / "crosswoz/crosswoz_val_chat.jsonl", {}),
             ("oaast", root / "chatglm_efficient_tuning/oaast_sft_zh.json", {}),
             ("belle", root / "belle/eval_set.json", belle)]  # fmt: skip
    found += [("chatterbot", root / f"chatterbot_zh/{name}.yml", {}) for name in _CHATTERBOT]
    for source, path, columns in found:
        for conversation in read_conversations(path, columns=columns, on_error="skip"):
            yield source, [{"role": m.role, "content": m.content} for m in conversation.messages]
    for record in read_json_records(root / "belle/zh_seed_tasks.json"):
        task: Any = getattr(record, "value", None)
        for case in task["instances"] if task else []:
            question = "\n".join(filter(None, [task["instruction"], case["input"]]))
            yield "belle", [{"role": "user", "content": question},
                            {"role": "assistant", "content": case["output"]}]  # fmt: skip


def usable(messages: list[dict[str, str]]) -> bool:
    """Whether a dialogue is short, plain and whole."""
    text = "".join(message["content"] for message in messages)
    whole = all(message["content"].strip() for message in messages)
    return whole and len(text) <= LONGEST and not _CODE.search(text)


def held_out(key: str) -> bool:
    """Whether a record is held out: told by its text, so that copies stay together."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8], "big") % HOLD_OUT == 0


class Files:
    """The files being written, what went into them, and what did not."""

    def __init__(self, out: Path, guard: overlap.Guard) -> None:
        self.out, self.guard = out, guard
        self.rows: dict[str, list[Row]] = {}
        self.counts: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def add(self, name: str, source: str, row: Row) -> None:
        """Add a record unless it is a copy or has a part of the demo's questions in it."""
        text = row["text"] if "text" in row else "\n".join(m["content"] for m in row["messages"])
        digest = hashlib.sha256(text.encode()).digest()[:12]
        if digest in self._seen:
            self.counts[f"{source}: copies left out"] += 1
            return
        self._seen.add(digest)
        if self.guard.touches(text):
            self.counts[f"{source}: left out, near the demo's questions"] += 1
            return
        part = f"{name}_held_out" if held_out(text) else name
        self.rows.setdefault(part, []).append(row)
        self.counts[f"{part}: records"] += 1
        self.counts[f"{part}: characters"] += len(text)
        self.counts[f"{source}: characters"] += len(text)

    def write(self) -> None:
        """Write every file and the report."""
        self.out.mkdir(parents=True, exist_ok=True)
        for part, rows in self.rows.items():
            with (self.out / f"{part}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        report = dict(sorted(self.counts.items()))
        text = json.dumps(report, ensure_ascii=False, indent=1)
        (self.out / "report.json").write_text(text + "\n", encoding="utf-8")
        print(text)


def build(args: argparse.Namespace, demo: Iterable[Path]) -> Files:
    """Read everything and write the files."""
    files = Files(args.out, overlap.Guard.of(demo))
    for text in chapters(args.prose):
        files.add("prose", "source prose", {"text": text})
    for text in everyday.texts(args.seed, args.texts):
        files.add("prose", "everyday texts", {"text": text})
    for source, messages in dialogue_sets(args.dialogues):
        if usable(messages):
            files.add("chat", source, {"messages": messages})
        else:
            files.counts[f"{source}: left out (long, code, or empty)"] += 1
    for messages in everyday.dialogues(args.seed, args.number):
        files.add("chat", "everyday", {"messages": messages})
    files.write()
    return files


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--prose", type=Path, required=True)
    parser.add_argument("--dialogues", type=Path, required=True)
    parser.add_argument("--number", type=int, default=100_000, help="everyday dialogues")
    parser.add_argument("--texts", type=int, default=8_000, help="everyday texts")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    build(arguments(), overlap.demo_files())
