"""Pack the corpus and the vocabulary into one small file, for a training machine without them.

    python carry.py pack DATA TOKENIZER corpus.tar.xz
    python carry.py unpack corpus.tar.xz DIR

About a fifth of the text's size. Text travels, not token ids: xz packs both to the same size within
a few percent, and the receiving machine prepares the text with the product itself in seconds.
"""

import lzma
import sys
import tarfile
from pathlib import Path

DATA = ("prose.jsonl", "prose_held_out.jsonl", "chat.jsonl", "chat_held_out.jsonl")
TOKENIZER = ("tokenizer.model", "tokenizer_config.json")


def pack(data: Path, tokenizer: Path, out: Path) -> None:
    with lzma.open(out, "wb", preset=9) as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for folder, names in ((data, DATA), (tokenizer, TOKENIZER)):
                for name in names:
                    info = tarfile.TarInfo(name)
                    info.size = (folder / name).stat().st_size
                    with (folder / name).open("rb") as file:
                        tar.addfile(info, file)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB")


def unpack(packed: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "r:xz") as tar:
        tar.extractall(out, filter="data")


if __name__ == "__main__":
    verb, *paths = sys.argv[1:]
    {"pack": pack, "unpack": unpack}[verb](*map(Path, paths))
