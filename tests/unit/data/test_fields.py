"""Fields of a record: lists written as text, tools, and questions and answers under other names."""

import csv
import io
import json

import pytest

from glmforge.data import Problem, read_conversations
from glmforge.data.sources import ReadOptions, iterate
from glmforge.errors import DataError

ASKED = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TURNS = [{"human": "q", "assistant": "a"}]
TOOL = {"name": "f", "description": "d"}


def as_lines(path, record):
    path = path.with_suffix(".jsonl")
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def as_table(path, record):
    file = io.StringIO()
    cells = [v if isinstance(v, str) else json.dumps(v) for v in record.values()]
    csv.writer(file).writerows([record.keys(), cells])
    path.with_suffix(".csv").write_text(file.getvalue(), encoding="utf-8")
    return path.with_suffix(".csv")


def said(path, **columns):
    (found,) = read_conversations(path, columns=columns)
    return [(message.role, message.content) for message in found.messages]


@pytest.mark.parametrize(
    "record",
    [
        {"instruction": "q", "output": "a", "history": [["x", "y"]]},
        {"query": "q", "response": "a", "history": []},
        {"messages": ASKED},
        {"conversations": ASKED},
        {"conversation": TURNS},
    ],
)
def test_a_list_written_as_text_is_the_same_in_json_and_in_a_table(tmp_path, record):
    written = {k: v if isinstance(v, str) else json.dumps(v) for k, v in record.items()}
    expected = said(as_lines(tmp_path / "a", record))
    assert said(as_lines(tmp_path / "b", written)) == expected
    assert said(as_table(tmp_path / "c", record)) == expected
    foreign = {f"their_{key}": value for key, value in written.items()}
    mapped = {key: f"their_{key}" for key in written}
    assert said(as_lines(tmp_path / "d", foreign), **mapped) == expected
    assert said(as_table(tmp_path / "e", foreign), **mapped) == expected


@pytest.mark.parametrize("write", [as_lines, as_table])
@pytest.mark.parametrize("text", ["none", "[oh", '{"a": 1}'])
def test_text_that_is_no_list_is_a_fault_wherever_it_stands(tmp_path, write, text):
    path = write(tmp_path / "a", {"instruction": "q", "output": "a", "history": text})
    with pytest.raises(DataError, match="history is not a list"):
        read_conversations(path)


@pytest.mark.parametrize("tools", [TOOL, json.dumps(TOOL), "text", 5, json.dumps("text")])
@pytest.mark.parametrize("place", ["record", "message"])
def test_tools_that_are_no_list_are_refused(tmp_path, tools, place):
    record = {"messages": ASKED, "tools": tools}
    if place == "message":
        record = {"messages": [{"role": "system", "content": "s", "tools": tools}, *ASKED]}
    (problem,) = iterate(as_lines(tmp_path / "a", record), ReadOptions())
    assert problem.rule == "bad-tools"
    assert "write a list of tools: [{...}]" in problem.advice


@pytest.mark.parametrize("write", [as_lines, as_table])
@pytest.mark.parametrize(
    "names",
    [("question", "answer"), ("问题", "回答"), ("q", "a"), ("Prompt", "Completion"),
     ("prompt", "answer"), ("question", "response"), ("instruction", "answer")],
)  # fmt: skip
def test_a_question_and_an_answer_under_other_names_are_told_their_mapping(tmp_path, write, names):
    path = write(tmp_path / "a", dict(zip(names, ["问什么", "答什么"], strict=True)))
    (problem,) = iterate(path, ReadOptions())
    assert isinstance(problem, Problem)
    assert problem.rule == "unknown-format"
    proposed = problem.advice.removeprefix("map them: ").partition(",")[0].split("--column ")[1:]
    columns = dict(pair.strip().split("=") for pair in proposed)
    assert said(path, **columns) == [("user", "问什么"), ("assistant", "答什么")]


def test_a_table_of_questions_in_a_text_file_is_not_trained_as_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("问题,回答\n问,答\n", encoding="utf-8")
    (problem,) = iterate(path, ReadOptions())
    assert problem.rule == "unknown-format"


def test_several_questions_get_no_mapping_that_would_lose_one(tmp_path):
    path = as_lines(tmp_path / "a", {"context": "c", "question": "q", "answer": "a"})
    (problem,) = iterate(path, ReadOptions())
    assert "--column" not in problem.advice


@pytest.mark.parametrize("name", ["chatgpt", "bing", "bard", "gpt"])
def test_the_speakers_of_sharegpt_exports_are_the_assistant(tmp_path, name):
    turns = [{"from": "human", "value": "q"}, {"from": name, "value": "a"}]
    path = as_lines(tmp_path / "a", {"conversations": turns})
    assert said(path) == [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"value": "another"}, "a content and a value, which differ"),
        ({"from": "human"}, "the role 'assistant' and is from 'human'"),
        ({"train": True, "loss": 0}, "marked as trained and as not trained"),
        ({"content": "<think>x</think>a", "reasoning_content": "y"}, "thinking in its text and in"),
    ],
)
def test_what_a_message_says_in_two_ways_is_refused_where_they_differ(tmp_path, more, words):
    """One of them would be left out."""
    path = as_lines(tmp_path / "a", {"messages": [ASKED[0], ASKED[1] | more]})
    (problem,) = iterate(path, ReadOptions())
    assert (problem.rule, words in problem.text) == ("two-values", True)
    same = {"value": "a", "from": "gpt", "train": 1, "loss": True, "reasoning_content": ""}
    path = as_lines(tmp_path / "a", {"messages": [ASKED[0], ASKED[1] | same]})
    assert said(path) == [("user", "q"), ("assistant", "a")]


def test_a_repair_that_is_set_is_not_advised(tmp_path):
    parts = [{"role": "user", "content": []}, ASKED[1]]
    path = as_lines(tmp_path / "a", {"messages": parts, "instruction": ""})
    for repairs in ((), ("flatten",)):
        (problem,) = iterate(path, ReadOptions(repairs=repairs))
        assert problem.advice == "this trains text only"  # it would not help
    path = as_lines(tmp_path / "b", {"instruction": "q", "output": ["a", "b"]})
    (problem,) = iterate(path, ReadOptions())
    assert problem.advice == "this trains text only"


@pytest.mark.parametrize(
    "parts", [["调", "用"], [{"text": "调"}, {"text": "用"}], [{"type": "text", "text": "调用"}]]
)
def test_flatten_joins_text_parts_wherever_they_stand(tmp_path, parts):
    """Alone, beside calls, with a type or without."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    for more in ({}, {"tool_calls": [call]}):
        answer = {"role": "assistant", "content": parts, **more}
        path = as_lines(tmp_path / "a", {"messages": [ASKED[0], answer]})
        (found,) = iterate(path, ReadOptions(repairs=("flatten",)))
        assert found.messages[1].content == "调用"
        assert len(found.messages) == (3 if more else 2)


@pytest.mark.parametrize(
    "parts", [[], [1], [{"type": "text", "text": 1}], ["a", {"type": "image_url", "image_url": {}}]]
)
@pytest.mark.parametrize("more", [{}, {"tool_calls": [{"function": {"name": "f"}}]}])
def test_flatten_is_not_advised_where_it_does_not_help(tmp_path, parts, more):
    answer = {"role": "assistant", "content": parts, **more}
    path = as_lines(tmp_path / "a", {"messages": [ASKED[0], answer]})
    (problem,) = iterate(path, ReadOptions())
    assert (problem.rule, problem.advice) == ("not-text", "this trains text only")
    (problem,) = iterate(path, ReadOptions(repairs=("flatten",)))
    assert problem.rule == "not-text"
