"""Seen means: stands in what the run trained on, to the letter; held out means it does not."""

import json

import pytest

from glmforge.compare.prompts import Prompt
from glmforge.compare.run_data import validation_of
from glmforge.compare.seen import mark_seen
from glmforge.config import load_config_file
from glmforge.data import Message, read_conversations


def dialogue(*texts, system=None):
    roles = ("user", "assistant") * len(texts)
    head = [{"role": "system", "content": system}] if system else []
    return {"messages": [*head, *({"role": r, "content": t} for r, t in zip(roles, texts))]}


@pytest.fixture
def run(tmp_path, base_dir):
    def build(rows, **data):
        train = tmp_path / "train.jsonl"
        train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = {"train": str(train), "max_length": 64, **data}
        config = tmp_path / "c.yaml"
        config.write_text(
            json.dumps(
                {
                    "model": {"model_name_or_path": str(base_dir)},
                    "method": "lora",
                    "data": settings,
                    "training": {"output_dir": str(tmp_path / "run")},
                }
            ),
            encoding="utf-8",
        )
        return load_config_file(config)

    return build


def prompt(*texts, name="p1"):
    roles = ("user", "assistant") * len(texts)
    messages = tuple(Message(role=r, content=t) for r, t in zip(roles, texts))
    return Prompt(id=name, messages=messages, source="")


def marks(prompts, runs, tokenizer, notes=None):
    say = (notes if notes is not None else []).append
    return [found.seen for found in mark_seen(prompts, runs, tokenizer, say)]


def test_a_question_is_seen_with_its_whole_history_only(run, tokenizer):
    config = run([dialogue("a?", "A", "b?", "B", system="be kind"), dialogue("c?", "C")])
    asked = [
        prompt("a?"),
        prompt(" c?\n"),
        prompt("a?", "A", "b?"),
        prompt("b?"),
        prompt("a?", "other", "b?"),
        prompt("A?"),
    ]
    assert marks(asked, [config], tokenizer) == [True, True, True, False, False, False]


def test_what_a_run_held_out_is_not_seen(run, tokenizer):
    config = run([dialogue(f"q {n}?", f"A {n}") for n in range(20)], validation_size=5)
    asked = [prompt(f"q {n}?", name=f"p{n}") for n in range(20)]
    found = marks(asked, [config], tokenizer)
    assert found.count(True) == 15
    assert found.count(False) == 5


def test_without_a_run_nothing_is_known(run, tokenizer):
    assert marks([prompt("a?")], [], tokenizer) == [None]


def test_training_data_that_is_gone_leaves_prompts_unmarked_and_says_so(run, tokenizer, tmp_path):
    config = run([dialogue("a?", "A")])
    (tmp_path / "train.jsonl").unlink()
    notes = []
    assert marks([prompt("a?")], [config], tokenizer, notes) == [None]
    assert "cannot be read" in notes[0]


def test_training_files_are_read_as_the_run_read_them(run, tokenizer, tmp_path):
    config = run([{"frage": "a?", "antwort": "A"}], columns={"query": "frage",
                                                             "response": "antwort"})  # fmt: skip
    assert len(read_conversations(tmp_path / "train.jsonl", columns=config.data.columns)) == 1
    assert marks([prompt("a?")], [config], tokenizer) == [True]


def test_validation_rows_are_those_a_run_held_out(run, tokenizer):
    config = run([dialogue(f"q {n}?", f"A {n}") for n in range(20)], validation_size=5)
    files, rows = validation_of(config, tokenizer)
    held = {
        f"q {n}?"
        for n, seen in enumerate(
            marks([prompt(f"q {n}?", name=f"p{n}") for n in range(20)], [config], tokenizer)
        )
        if not seen
    }
    lines = {int(row.source.rsplit(":", 1)[1]) for row in rows}
    assert (files, {f"q {line - 1}?" for line in lines}) == ((), held)
