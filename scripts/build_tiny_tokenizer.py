"""Train the tokenizer of the tests' tiny model on the packaged training dialogues.

    .venv/bin/python scripts/build_tiny_tokenizer.py [OUT_DIR]

writes tokenizer.model and tokenizer_config.json, by default into tests/tiny_model.
The same dialogues and the same sentencepiece version give the same bytes. Run it again, and commit
what it wrote, whenever train.jsonl changes.
"""

import json
import sys
from pathlib import Path

from glmforge.data.vocabulary import train_vocabulary

ROOT = Path(__file__).resolve().parent.parent
DEMO_DIR = ROOT / "src/glmforge/assets/demo"
TINY_MODEL = ROOT / "tests/tiny_model"
PIECES = 3000  # 9 control tokens come on top; config.json pads 3,009 rows to 3,072


def build_tokenizer(out_dir: Path) -> Path:
    """Train on every message of train.jsonl, in file order, and return the directory."""
    lines = (DEMO_DIR / "train.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [message["content"] for line in lines for message in json.loads(line)["messages"]]
    return train_vocabulary(texts, out_dir, PIECES)


if __name__ == "__main__":
    directory = build_tokenizer(Path(sys.argv[1]) if len(sys.argv) > 1 else TINY_MODEL)
    print(f"wrote {directory}/tokenizer.model ({PIECES:,} pieces)")
