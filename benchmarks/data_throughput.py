"""How fast dialogues become examples, against the path users have without glmforge.

The plain path: ``datasets.map`` over rows, a slow ``PreTrainedTokenizer`` as the original model
directories bring it (``tokenizer_speed.py``), the template written out in the row function, no
rules, no counts. Ours: ``preparing.prepare`` from
the file to a verified set on disk, with 1 and 2 processes, each of which uses one core. Run on a
quiet machine: ``python benchmarks/data_throughput.py MODEL_DIR dialogues.jsonl [copies]``.
Processor seconds are given too: they hold on a busy machine.
"""

import functools
import json
import os
import sys
import tempfile
import time
from pathlib import Path


def plain_path(path: Path, model: str) -> int:
    """Tokens of the plain path on one process."""
    from datasets import load_dataset
    from tokenizer_speed import SentencePieceTextByText

    from glmforge.models import load_tokenizer

    tokenizer = SentencePieceTextByText(load_tokenizer(model))
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

    rows = load_dataset("json", data_files=str(path), split="train", cache_dir=str(path.parent))
    done = rows.map(encode, remove_columns=rows.column_names, new_fingerprint="plain")
    return sum(map(len, done["input_ids"]))


def our_path(path: Path, model: str, workers: int) -> int:
    """Tokens of ``prepare``."""
    from glmforge.data.preparing import PrepareSettings, prepare
    from glmforge.models import load_tokenizer

    with tempfile.TemporaryDirectory() as root:
        make = functools.partial(load_tokenizer, model)
        found = prepare(path, make, root, PrepareSettings(max_length=8192), workers=workers)
        return found.counts.total_tokens


def write_copies(source: Path, target: Path, copies: int) -> int:
    """Write distinct copies of dialogues: no path may profit from repetition."""
    lines = source.read_text(encoding="utf-8").splitlines()
    with target.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for line in lines:
                record = json.loads(line)
                for message in record["conversations"]:
                    message["content"] += f"{copy}"
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return copies * len(lines)


def processor_seconds() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Print one JSON line a path, and one with the ratios."""
    model, source, copies = sys.argv[1], Path(sys.argv[2]), int((*sys.argv, "10")[3])
    import glmforge.models  # noqa: F401  (imports are no part of any path)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dialogues.jsonl"
        dialogues = write_copies(source, path, copies)
        measured = {"plain": functools.partial(plain_path, path, model)}
        measured |= {f"prepare, {n}": functools.partial(our_path, path, model, n) for n in (1, 2)}
        wall: dict[str, float] = {}
        busy: dict[str, float] = {}
        for name, run in measured.items():
            start, used = time.perf_counter(), processor_seconds()
            tokens = run()
            wall[name] = time.perf_counter() - start
            busy[name] = processor_seconds() - used
            values = {
                "path": name,
                "dialogues_per_second": round(dialogues / wall[name], 1),
                "tokens_per_second": round(tokens / wall[name]),
                "seconds": round(wall[name], 2),
                "processor_seconds": round(busy[name], 2),
                "load_average": os.getloadavg()[0],
            }
            print(json.dumps(values), flush=True)
    one, two = wall["prepare, 1"], wall["prepare, 2"]
    ratios = {
        "dialogues": dialogues,
        "ratio_of_one_process": round(wall["plain"] / one, 2),
        "ratio_of_one_process_by_processor_time": round(busy["plain"] / busy["prepare, 1"], 2),
        "ratio_of_two_processes": round(wall["plain"] / two, 2),
        "efficiency_of_two_processes": round(one / two / 2, 3),
    }
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
