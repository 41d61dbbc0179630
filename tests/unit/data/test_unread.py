"""Fields that no format reads: competing texts are refused, the others named in one line."""

import json

import pytest

from glmforge.data import Counts, read_conversations
from glmforge.data.formats import to_conversations
from glmforge.data.quality import examine
from glmforge.data.quality_text import report_lines
from glmforge.data.reading import Record
from glmforge.data.shapes import ShapeOptions
from glmforge.data.sources import ReadOptions, iterate, load_examples
from glmforge.data.unread import count_unread, unread_line

ASKED = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TOOL = {"name": "f", "parameters": {}}


def one(value, **columns):
    (found,) = to_conversations(Record(source="x:1", value=value), ShapeOptions(columns=columns))
    return found


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"text": "t", "response": "r"}, "text"),
        ({"text": "t", "prompt": "p"}, "prompt"),
        ({"prompt": "p", "input": "i", "response": "r"}, "input"),
        ({"query": "q", "context": "c", "response": "r"}, "context"),
        ({"instruction": "i", "query": "q", "response": "r"}, "instruction"),
        ({"instruction": "i", "output": "b", "response": "c"}, "response"),
        ({"content": "a", "summary": "b", "Output": "c"}, "Output"),
        ({"query": "p", "response": "r", "q": "other"}, "q"),
        ({"messages": ASKED, "history": [["x", "y"]]}, "history"),
        ({"messages": ASKED, "history": [{"role": "user", "content": "x"}]}, "history"),
        ({"messages": [*ASKED, ASKED[0]], "response": "the last answer"}, "response"),
    ],
)
def test_a_question_or_an_answer_that_would_be_lost_is_refused(value, name):
    problem = one(value)
    assert problem.rule == "competing-field"
    assert f"leaves out the text of its field {name!r}" in problem.text


@pytest.mark.parametrize(
    "value",
    [
        {"instruction": "i", "input": "n", "output": "b", "response": "b ", "query": ""},
        {"query": "q", "response": "r", "prompt": "q", "input": None, "output": ["other"]},
        {"text": "t", "answer": "", "user": "somebody"},
    ],
)
def test_the_same_text_twice_and_what_is_no_text_are_no_faults(value):
    assert not hasattr(one(value), "rule")


@pytest.mark.parametrize("name", ["q", "user_input", "问", "utterance", "system_message"])
def test_a_response_beside_any_other_text_is_no_text_for_pretraining(name):
    """Its question would be left out; fields that tell of a text are no part of it."""
    assert one({name: "你好吗", "response": "很好"}).rule == "unknown-format"
    assert one({"response": "很好", "source": "web", "id": 3}).messages[0].role == "text"
    assert "--column query=q" in one({"q": "你好吗", "response": "很好"}).advice


def test_a_null_field_is_there_and_empty_and_the_filled_format_is_read():
    found = one({"prompt": None, "response": "a3"})
    assert [(m.role, m.content) for m in found.messages] == [("user", ""), ("assistant", "a3")]
    value = {"messages": None, "instruction": "i", "input": None, "output": "o", "text": None}
    assert [m.content for m in one(value).messages] == ["i", "o"]
    assert one({"prompt": None, "response": None, "text": "t"}).messages[0].content == "t"


def test_chosen_columns_say_what_is_read():
    found = one({"query": "q", "response": "r", "output": "o"}, response="response")
    assert [m.content for m in found.messages] == ["q", "r"]
    assert found.unread == ("output",)


def test_a_system_prompt_is_the_system_text():
    for value in ({"prompt": "q", "response": "a"}, {"messages": ASKED}):
        found = one({**value, "system_prompt": "SP"})
        assert next((m.role, m.content) for m in found.messages) == ("system", "SP")
        assert not found.unread
        assert one({**value, "system_prompt": "SP", "system": "S"}).rule == "two-systems"


def test_functions_are_tools_and_must_agree_with_them():
    for value in ({"messages": ASKED}, {"query": "q", "response": "a"}):
        assert one({**value, "functions": [TOOL]}).tools == (TOOL,)
    assert one({"messages": ASKED, "functions": [TOOL], "tools": [{"name": "g"}]}).rule == (
        "two-tools"
    )


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ({"messages": ASKED, "images": ["x.png"], "documents": [], "id": 3}, ["images", "id"]),
        ({"messages": ASKED, "train": False}, ["train"]),
        ({"messages": ASKED, "history": [["q", "a"]]}, ["history"]),
        ({"messages": ASKED, "response": "another"}, ["response"]),
        ({"text": "t", "title": "u", "url": None}, ["title"]),
        ({"query": "q", "response": "a", "history": [], "score": 0.5}, ["score"]),
        ({"messages": [{**ASKED[0], "images": ["x"], "name": "bob"}, ASKED[1]]},
         ["messages[].images", "messages[].name"]),
        ({"messages": [{**ASKED[0], "train": False}, {**ASKED[1], "train": True}]},
         ["messages[].train (user)"]),
        ({"conversations": [ASKED[0], {**ASKED[1], "thought": "t"}]}, ["conversations[].thought"]),
        ({"messages": [ASKED[0], {"role": "assistant", "tool_calls": [{"function": TOOL}]},
                       {"role": "tool", "name": "f", "tool_call_id": "1", "content": "r"},
                       ASKED[1]]}, []),
    ],
)  # fmt: skip
def test_fields_that_are_not_read_are_named(value, names):
    assert sorted(one(value).unread) == sorted(names)


def test_one_line_tells_of_them_in_check_and_in_counts(stub, tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"messages": ASKED, "id": 1, "images": ["x"]}, {"messages": ASKED, "id": 2}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    line = "fields not read: id × 2, images × 1"
    for tokenizer in (None, stub["chatglm3"]):
        report = examine(iterate(path, ReadOptions()), tokenizer=tokenizer, max_length=8)
        assert report_lines(report).count(line) == 1
    counts = load_examples(path, stub["chatglm3"], max_length=64).counts
    assert unread_line(counts.unread) == line
    both = Counts()
    both.add(counts)
    both.add(counts)
    assert both.unread == {"id": 4, "images": 2}
    assert not unread_line({})
    assert len(read_conversations(path)) == 2


def test_names_without_end_are_counted_in_bounded_memory():
    counts = {}
    for number in range(1000):
        count_unread(counts, [f"key{number}"])
    assert len(counts) == 200
    assert unread_line(counts).endswith(" and 192 more")


def test_a_fields_name_is_safe_to_print_whatever_it_is():
    """Found by the fuzzer: a CSV header with a control character in it."""
    line = unread_line({"i\x1dDo\nput": 2, "x" * 500: 1})
    assert line == "fields not read: i\\x1dDo\\nput × 2, " + "x" * 60 + "… × 1"
