"""What the original tokenizers gave for 200 texts and some dialogues, under shared/golden."""

import json


def recorded_texts(shared, name):
    """The rows of a tokenizer: text, its ids, and what they decode to."""
    path = shared / f"golden/tokenizer_{name}.jsonl"
    with path.open(encoding="utf-8", newline="\n") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 200
    return rows


def recorded_chat(shared, name):
    """Special tokens, pairs, padding and dialogues."""
    return json.loads((shared / f"golden/chat_{name}.json").read_text(encoding="utf-8"))


def check_recorded_texts(tokenizer, rows):
    """The same ids in a batch and one by one, and the same texts back."""
    texts = [row["text"] for row in rows]
    ids = [row["ids"] for row in rows]
    assert ids == tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert ids == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert [row["decoded"] for row in rows] == tokenizer.batch_decode(ids)
