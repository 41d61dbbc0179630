"""How fast dialogues become examples, against the path users have without glmforge.

The plain path: ``datasets.map`` over rows, one ``tokenizer.encode`` a message in Python, the
template written out in the row function, no rules, no counts. Ours: ``preparing.prepare`` from
the file to a verified set on disk, with 1 and 2 processes. Run on a quiet machine:
``python benchmarks/data_throughput.py MODEL_DIR dialogues.jsonl [copies]``.
"""

import functools
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def plain_path(path: Path, model: str) -> tuple[float, int]:
    """Seconds and tokens of the plain path on one process."""
    from datasets import load_dataset

    from glmforge.models import load_tokenizer

    tokenizer = load_tokenizer(model)
    role_ids = {
        role: tokenizer.convert_tokens_to_ids(f"<|{role}|>")
        for role in ("system", "user", "assistant", "observation")
    }
    prefix = [tokenizer.convert_tokens_to_ids(token) for token in ("[gMASK]", "sop")]

    def encode(row: dict) -> dict:
        ids, labels = list(prefix), [-100] * len(prefix)
        for message in row["conversations"]:
            piece = tokenizer.encode("\n", add_special_tokens=False)
            piece += tokenizer.encode(message["content"], add_special_tokens=False)
            ids += [role_ids[message["role"]], *piece]
            trained = message["role"] == "assistant"
            labels += [-100, *(piece if trained else [-100] * len(piece))]
        return {"input_ids": ids, "labels": labels}

    start = time.perf_counter()
    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(path.parent))
    done = rows.map(encode, remove_columns=rows.column_names, load_from_cache_file=False)
    tokens = sum(map(len, done["input_ids"]))
    return time.perf_counter() - start, tokens


def our_path(path: Path, model: str, workers: int) -> tuple[float, int]:
    """Seconds and tokens of ``prepare``."""
    from glmforge.data.preparing import PrepareSettings, prepare
    from glmforge.models import load_tokenizer

    with tempfile.TemporaryDirectory() as root:
        start = time.perf_counter()
        found = prepare(
            path,
            functools.partial(load_tokenizer, model),
            root,
            PrepareSettings(max_length=8192),
            workers=workers,
        )
        return time.perf_counter() - start, found.counts.total_tokens


def main() -> None:
    """Print one JSON line a path."""
    model, source, copies = sys.argv[1], Path(sys.argv[2]), int((*sys.argv, "10")[3])
    lines = source.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dialogues.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for copy in range(copies):  # distinct texts: no path may profit from repetition
                for line in lines:
                    record = json.loads(line)
                    for message in record["conversations"]:
                        message["content"] += f"{copy}"
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        dialogues = copies * len(lines)
        measured = {"plain": functools.partial(plain_path, path, model)}
        measured |= {f"prepare, {n}": functools.partial(our_path, path, model, n) for n in (1, 2)}
        for name, run in measured.items():
            seconds, tokens = run()
            print(
                json.dumps(
                    {
                        "path": name,
                        "dialogues_per_second": round(dialogues / seconds, 1),
                        "tokens_per_second": round(tokens / seconds),
                        "seconds": round(seconds, 2),
                        "load_average": os.getloadavg()[0],
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
