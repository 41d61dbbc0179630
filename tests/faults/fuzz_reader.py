"""Feeds the data readers broken files for as long as asked, and keeps every one they fall over.

    python tests/faults/fuzz_reader.py OUT --seconds 600 [--seed 1] [--more DIR]

Inputs are small files of every format (and up to 64 KiB of the files under --more), damaged:
bytes flipped, cut, doubled, words of JSON and of our formats put in, files joined. Each goes the
whole way of `glmforge data check`: read, rules, tokens, report in words and as JSON. It must end
in a report or a DataError. A traceback, a death by signal, more than 20 seconds or 4 GiB is a
failure; its input and its traceback are kept in OUT. Prints one JSON line.
"""

import argparse
import gzip
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

MODEL = Path(__file__).parents[1] / "tiny_model"
ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".yml", ".txt", ".parquet", ".arrow", ".gz", "")
REPAIRS = ("merge", "trim", "flatten", "gbk")
WORDS = [
    b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"\n", b"\r\n", b"\r", b"\t", b"\x00", b"null",
    b"true", b"1e999", b"NaN", b"9" * 5000, b"[" * 3000, b"\xef\xbb\xbf", b"\xff\xfe", b"\xc4\xe3",
    b'"\\ud83d"', b"\x1b[31m", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1",
    b'"messages"', b'"role"', b'"content"', b'"from"', b'"value"', b'"tools"', b'"tool_calls"',
    b'"function"', b'"arguments"', b'"conversations"', b'"history"', b'"instances"', b'"text"',
    b'"train"', b'"system"', b'"observation"', b"query,response\n", b"- - ", b"&a [*a]", b"*a",
]  # fmt: skip
SECONDS_EACH, MEMORY = 20, 4 << 30


def seeds(more: Path | None) -> list[bytes]:
    """Whole files of every format, small; and the beginnings of real ones."""
    call = {"name": "f", "arguments": '{"a": 1}'}
    calls = [{"type": "function", "function": call}]
    dialogue = [
        {"role": "system", "content": "系统", "tools": [{"name": "f", "parameters": {}}]},
        {"role": "user", "content": "你好 <|user|> {{name}}"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": [{"type": "text", "text": "好😀"}], "train": False},
        {"role": "assistant", "metadata": "f", "content": "```python\ntool_call(a=1)\n```"},
    ]
    sharegpt = {"human": "a", "function_call": json.dumps(call), "observation": "1", "gpt": "b"}
    rows = [
        {"messages": dialogue, "tools": '[{"name": "f"}]'},
        {"conversations": [{"from": role, "value": text} for role, text in sharegpt.items()]},
        {"instruction": "i", "input": "n", "output": "o", "history": [["q", "a"]], "system": "s"},
        {"content": "类型#裤*版型#宽松", "summary": "裤子"},
        {"prompt": "p", "response": "r"},
        {"conversation": [{"human": "h", "assistant": "a"}]},
        {"instruction": "i", "instances": [{"input": "", "output": "o"}]},
        {"text": "一段话。"},
    ]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    found = [
        lines,
        lines.replace(b"\n", b"\r\n"),
        json.dumps(rows, indent=2).encode(),
        json.dumps({"data": rows}).encode(),
        b'query,response\n"a\nb",c\n1,"2"""\n',
        b"text\tid\nabc\t1\n",
        "甲\n乙\n\n丙\n".encode("gb18030"),
        "categories:\n- a\nconversations:\n- - 问\n  - 答\n  - 又\n- - 1\n  - 2\n".encode(),
        gzip.compress(lines),
        pa.Codec("zstd").compress(lines).to_pybytes(),
    ]
    pair = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    table = pa.Table.from_pylist([{"messages": pair}] * 3)
    with tempfile.TemporaryDirectory() as place:
        pq.write_table(table, Path(place) / "a.parquet")
        found.append((Path(place) / "a.parquet").read_bytes())
    for make in (pa.ipc.new_file, pa.ipc.new_stream):
        sink = pa.BufferOutputStream()
        with make(sink, table.schema) as writer:
            writer.write_table(table)
        found.append(sink.getvalue().to_pybytes())
    if more is not None:
        found += [p.read_bytes()[: 1 << 16] for p in sorted(more.rglob("*")) if p.is_file()]
    return found


def damaged(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """The same bytes after one to eight accidents."""
    parts = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(parts) + 1)
        kind = rng.randrange(7)
        if kind == 0 and parts:
            parts[at % len(parts)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del parts[at : at + rng.choice((1, 2, 16, 1 << 20))]
        elif kind in (2, 3):
            parts[at:at] = rng.choice(WORDS)
        elif kind == 4:
            end = at + rng.randrange(1, 200)
            parts[at:at] = parts[at:end]
        elif kind == 5:
            parts[at : at + 1] = rng.randbytes(rng.randrange(1, 9))
        else:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            parts[at:at] = other[start : start + rng.randrange(1, 2000)]
    return bytes(parts)


def work(out: Path, seconds: float, seed: int, more: Path | None) -> None:
    """Read damaged files one after another; the one at hand is always in ``out``."""
    from glmforge.data.quality import examine
    from glmforge.data.quality_text import report_lines, report_values
    from glmforge.data.sources import ReadOptions, iterate
    from glmforge.errors import DataError
    from glmforge.models import load_tokenizer

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rng, known, tokenizer = random.Random(seed), seeds(more), load_tokenizer(MODEL)
    until, counts = time.monotonic() + seconds, {"inputs": 0, "reports": 0, "refused": 0}
    failures: set[str] = set()
    while time.monotonic() < until:
        path = out / f"current-{seed}{rng.choice(ENDINGS)}"
        path.write_bytes(damaged(rng.choice(known), rng, known))
        repairs = tuple(name for name in REPAIRS if rng.random() < 0.3)
        counts["inputs"] += 1
        signal.alarm(SECONDS_EACH)
        try:
            report = examine(iterate(path, ReadOptions(repairs=repairs)), tokenizer=tokenizer)
            text = "\n".join(report_lines(report, problems=1 << 30))
            text.encode("utf-8")
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text), (
                "a control character is printed"
            )
            json.dumps(report_values(report))
            counts["reports"] += 1
        except DataError:
            counts["refused"] += 1
        except Exception as error:  # noqa: BLE001  # whatever else it is, it is what we look for
            where = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__}-{Path(where.filename).stem}-{where.lineno}"
            if kind not in failures:
                (out / f"failure-{kind}{path.suffix}").write_bytes(path.read_bytes())
                (out / f"failure-{kind}.txt").write_text(
                    f"repairs {repairs}\n{traceback.format_exc()}", "utf-8", "backslashreplace"
                )
            failures.add(kind)
        signal.alarm(0)
        path.unlink()
        (out / f"counts-{seed}.json").write_text(
            json.dumps(counts | {"failures": sorted(failures)})
        )


def main() -> None:
    """Run workers until the time is up; one that dies leaves its input and is replaced."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--more", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.worker:
        work(given.out, given.seconds, given.seed, given.more)
        return
    until, number, deaths = time.monotonic() + given.seconds, 0, []
    while (left := until - time.monotonic()) > 0:
        seed = given.seed * 1000 + number
        number += 1
        command = [sys.executable, __file__, str(given.out), "--worker", "--seed", str(seed)]
        command += ["--seconds", str(left), *(["--more", str(given.more)] if given.more else [])]
        code = subprocess.run(command, check=False).returncode
        for path in given.out.glob(f"current-{seed}*") if code else ():
            deaths.append(code)
            path.rename(given.out / f"death-{seed}-{abs(code)}{path.suffix}")
        if code and not deaths:
            raise SystemExit(f"the worker could not start (exit status {code})")
    total: dict[str, int] = {}
    failures: set[str] = set()
    for file in given.out.glob("counts-*.json"):
        found = json.loads(file.read_text())
        failures.update(found.pop("failures"))
        for name, count in found.items():
            total[name] = total.get(name, 0) + count
    print(json.dumps({**total, "failures": sorted(failures), "deaths": deaths}))
    raise SystemExit(1 if failures or deaths else 0)


if __name__ == "__main__":
    main()
