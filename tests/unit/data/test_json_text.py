"""JSON that Python reads and loses part of, or fails on: a fault with its place and a way out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import Conversation, Problem
from glmforge.data.calls import call_findings
from glmforge.data.json_text import DEEPEST, BadJson, read_json
from glmforge.data.preparing import PrepareSettings, prepare
from glmforge.data.sources import ReadOptions, iterate
from glmforge.errors import DataError
from glmforge.tool_calls import python_arguments

PAIR = '{"query": "问", "response": "答"}'
ASK, SAY = '{"role": "user", "content": "q"}', '{"role": "assistant", "content": "a"}'
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def items(path, text):
    path.write_text(text, encoding="utf-8")
    return list(iterate(path, ReadOptions()))


def read(path, text):
    """(sources of what is good, problems) of a file."""
    found = items(path, text)
    problems = [item for item in found if isinstance(item, Problem)]
    return [item.source for item in found if isinstance(item, Conversation)], problems


@given(value=VALUES, indent=st.sampled_from([None, 1]))
def test_whole_json_is_read_as_python_reads_it(value, indent):
    text = json.dumps(value, indent=indent)
    assert read_json(f" \n{text}\n") == value
    with pytest.raises(json.JSONDecodeError, match="Extra data"):
        read_json(f"{text} ]")


@given(value=VALUES, other=VALUES, key=st.text(max_size=3), depth=st.integers(0, 4))
def test_a_key_that_stands_twice_is_a_fault_at_any_depth(value, other, key, depth):
    name, one, two = json.dumps(key), json.dumps(value), json.dumps(other)
    text = '{"a": [' * depth + f'{{{name}: {one}, "more": 1, {name} : {two}}}' + "]}" * depth
    with pytest.raises(BadJson) as caught:
        read_json(text)
    assert caught.value.rule == "doubled-key"
    assert repr(key) in caught.value.text or key == "more"
    assert caught.value.end == len(text)


@pytest.mark.parametrize(
    "doubled",
    [
        f'{{"messages": [{ASK}, {SAY}], "messages": [{ASK}]}}',
        f'{{"messages": [{ASK}, {{"role": "assistant", "content": "a", "content": "b"}}]}}',
        '{"query": "q", "response": "a", "tools": [{"name": "f", "parameters": {"x":1,"x":1}}]}',
        '{"query": "q", "response": "a", "side": {"n": 1, "n": 1}}',
    ],
)
def test_lines_arrays_and_documents_name_the_doubled_key_and_read_on(tmp_path, doubled):
    for text, place, good in (
        (f"{PAIR}\n{doubled}\n{PAIR}\n", "a.json:2", ["a.json:1", "a.json:3"]),
        (f"[{PAIR},\n{doubled}, {PAIR}]", "a.json:2", ["a.json:1", "a.json:2#2"]),
        (f"[{PAIR}, {doubled}]", "a.json:1#2", ["a.json:1"]),
        (f"{PAIR}\n\n{doubled}\n".replace(", ", ",\n"), "a.json:4", ["a.json:1"]),
    ):
        found, (problem,) = read(tmp_path / "a.json", text)
        assert (found, problem.source, problem.rule) == (good, place, "doubled-key")
        assert "twice in one object" in problem.text


def test_doubled_keys_in_json_that_stands_as_text_are_faults_too(tmp_path):
    tools = json.dumps('[{"name": "f", "name": "g"}]')
    call = json.dumps('{"name": "f", "arguments": {"x": 1, "x": 2}}')
    history = json.dumps('[{"a": 1, "a": 2}]')
    for text in (
        f'{{"query": "q", "response": "a", "tools": {tools}}}',
        f'{{"messages": [{ASK}, {{"role": "function_call", "content": {call}}}]}}',
        f'{{"query": "q", "response": "a", "history": {history}}}',
    ):
        _, (problem,) = read(tmp_path / "a.jsonl", text)
        assert (problem.source, problem.rule) == ("a.jsonl:1", "doubled-key")
    arguments = json.dumps('{"x": 1, "x": 2}')
    function = f'{{"name": "f", "arguments": {arguments}}}'
    answer = f'{{"role": "assistant", "tool_calls": [{{"function": {function}}}]}}'
    (found,) = items(tmp_path / "a.jsonl", f'{{"messages": [{ASK}, {answer}]}}')
    ((rule, text, *_),) = call_findings(found.messages, [])
    assert rule == "bad-call"
    assert "the key 'x' twice" in text
    assert python_arguments("tool_call(x=1, x=2)") is None


def test_a_second_list_of_a_yaml_corpus_is_not_passed_over(tmp_path):
    text = "conversations:\n- [q, a]\nconversations:\n- [r, b]\n"
    good, (problem,) = read(tmp_path / "a.yml", text)
    assert (good, problem.rule) == ([], "doubled-key")


def nested(levels):
    return f'{{"a": {"[" * (levels - 1)}{"]" * (levels - 1)}}}'


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (nested(DEEPEST + 1), "nested more than 100 levels deep"),
        (f'{{"n": -{"9" * 4301}}}', "an integer of more than 4,300 digits"),
    ],
)
def test_values_that_python_fails_on_are_told_in_words_for_people(stub, tmp_path, bad, words):
    for text, place in (
        (f"{PAIR}\n{bad}\n{PAIR}\n", "a.json:2"),
        (f"[{PAIR},\n{bad}, {PAIR}]", "a.json:2"),
    ):
        good, (problem,) = read(tmp_path / "a.json", text)
        assert (len(good), problem.source, problem.rule) == (2, place, "not-json")
        assert words in problem.text
        assert "limit" not in str(problem)  # Python's own words
    path = tmp_path / "a.json"
    path.write_text(f"[{bad}]", encoding="utf-8")
    with pytest.raises(DataError, match=words):
        prepare(path, lambda: stub["glm4"], tmp_path / "sets", PrepareSettings(max_length=64))


@pytest.mark.parametrize("text", ["[" * 100_000, f"[{PAIR}," + '{"a":' * 100_000])
def test_what_is_too_deep_to_find_its_end_ends_the_reading_in_words(tmp_path, text):
    _, (problem,) = read(tmp_path / "a.json", text)
    assert "nested more than 100 levels deep" in problem.text
    assert "nothing after it was read" in problem.advice
    assert "recursion" not in str(problem)


def test_a_hundred_levels_and_any_number_of_messages_are_no_fault(tmp_path):
    assert read_json(nested(DEEPEST)) == json.loads(nested(DEEPEST))
    text = f'{{"messages": [{", ".join([ASK, SAY] * DEEPEST)}]}}'
    assert read(tmp_path / "a.jsonl", text) == (["a.jsonl:1"], [])


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        (f"[{PAIR},\n{PAIR},\n]", "a comma too many", "a.json:3"),
        (f"[{PAIR},\n,{PAIR}]", "a comma too many", "a.json:2"),
        (f"[\n,{PAIR}, {PAIR}]", "a comma too many", "a.json:2"),
        (f"[{PAIR}\n{PAIR}]", "no comma between this record and the one before", "a.json:2"),
    ],
)
def test_commas_that_json_does_not_allow_are_told_and_the_records_read(
    tmp_path, text, words, place
):
    good, (problem,) = read(tmp_path / "a.json", text)
    assert len(good) == 2
    assert (problem.source, problem.rule) == (place, "not-json")
    assert words in problem.text


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl"])
@pytest.mark.parametrize(
    "text", ["[注] 一段文字\n\n又一段\n", "{{name}}\n又一段\n", "[1]\n又一段\n"]
)
def test_a_text_that_begins_like_json_is_refused_with_the_way_to_give_it(tmp_path, name, text):
    _, problems = read(tmp_path / name, text)
    problem = next(problem for problem in problems if problem.rule == "not-json")
    assert ('write it as JSON Lines, {"text": "..."}' in problem.advice) == (name != "a.jsonl")
    if name != "a.jsonl":  # the advice holds
        assert len(read(tmp_path / name, f"前言\n\n{text}")[0]) >= 2
