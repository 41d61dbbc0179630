"""Prompts come from any file that holds questions, each with its place and id."""

import json
from pathlib import Path

import pytest

from glmforge.compare.prompts import prompt_values, read_prompts
from glmforge.errors import DataError


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_text_file_has_a_question_a_line(tmp_path):
    path = tmp_path / "q.txt"
    path.write_text("\ufefffirst?\n\n  second?  \n", encoding="utf-8")
    found = read_prompts(path)
    assert [(p.id, p.text, p.source) for p in found] == [
        ("p1", "first?", f"{path}:1"),
        ("p2", "second?", f"{path}:3"),
    ]


def test_dialogues_give_their_last_question_and_its_answer(tmp_path):
    path = write(
        tmp_path / "d.jsonl",
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "a?"},
                {"role": "assistant", "content": "A"},
                {"role": "user", "content": "b?"},
                {"role": "assistant", "content": "B"},
            ]
        },
        {"messages": [{"role": "user", "content": "open?"}]},
        {"instruction": "c?", "input": "", "output": "C"},
    )
    first, second, third = read_prompts(path)
    assert first.history == (("system", "be brief"), ("user", "a?"), ("assistant", "A"),
                             ("user", "b?"))  # fmt: skip
    assert [p.reference for p in (first, second, third)] == ["B", None, "C"]
    assert third.text == "c?"


def test_our_own_shape_carries_ids_references_and_checks(tmp_path):
    path = write(
        tmp_path / "o.jsonl",
        {"prompt": "a?", "id": "x", "reference": "A", "system": "s", "check": {"any": ["A"]}},
        "b?",
        {"prompt": "c?"},
    )
    found = read_prompts(path)
    assert [p.id for p in found] == ["x", "p2", "p3"]
    assert (found[0].reference, found[0].check) == ("A", {"any": ["A"]})
    assert found[0].messages[0].role == "system"
    assert json.loads(json.dumps(prompt_values(found)))[1]["messages"] == [["user", "b?"]]


def test_every_problem_is_reported_at_once(tmp_path):
    path = write(
        tmp_path / "bad.jsonl",
        {"prompt": "a?", "id": "x"},
        {"prompt": "b?", "id": "x"},
        {"prompt": " ", "check": {"numbr": 1}},
        {"prompt": "c?", "answer": "C"},
        {"messages": [{"role": "assistant", "content": "only"}]},
    )
    with pytest.raises(DataError) as found:
        read_prompts(path)
    text = str(found.value)
    for part in ("bad.jsonl:3: the prompt is empty", "unknown check 'numbr'",
                 "bad.jsonl:4: unknown field 'answer'", "bad.jsonl:5: no user message",
                 "2 prompts have the id 'x'"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize("whole", [True, False])
def test_places_are_named_by_the_path_that_was_given(tmp_path, monkeypatch, whole):
    """In prompts and in problems, of a file and of a directory."""
    monkeypatch.chdir(tmp_path)
    folder = Path("ask")
    folder.mkdir()
    path = write(folder / "q.jsonl", "a?", {"prompt": " "}, {"messages": [{"role": "usr"}]})
    with path.open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    with pytest.raises(DataError) as found:
        read_prompts(path if whole else folder)
    places = [problem.partition(": ")[0] for problem in found.value.problems]
    assert places == ["ask/q.jsonl:2", "ask/q.jsonl:3", "ask/q.jsonl:4"]
    write(path, "a?")
    assert [prompt.source for prompt in read_prompts(path)] == ["ask/q.jsonl:1"]


def test_a_file_without_prompts_is_refused(tmp_path):
    (tmp_path / "q.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no prompt in it"):
        read_prompts(tmp_path / "q.txt")
    with pytest.raises(DataError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")


def test_a_history_stands_before_the_question_and_must_be_pairs(tmp_path):
    turns = [["a?", "A"], ["b?", "B"]]
    path = write(tmp_path / "h.jsonl", {"prompt": "c?", "history": turns, "check": {"any": ["C"]}})
    (found,) = read_prompts(path)
    assert [message.content for message in found.messages] == ["a?", "A", "b?", "B", "c?"]
    wrong = write(tmp_path / "w.jsonl", {"prompt": "c?", "history": ["a?", "A"]})
    with pytest.raises(DataError, match=r"w\.jsonl:1: history is .*question, answer"):
        read_prompts(wrong)
