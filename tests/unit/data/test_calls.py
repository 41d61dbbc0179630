"""Tool calls in any spelling: written in the family's own words; reported where they are none."""

import json

import pytest

from glmforge.data import Conversation, Message, encode_rows
from glmforge.data.formats import to_conversations
from glmforge.data.reading import Record
from glmforge.data.rules import check
from glmforge.data.segments import IGNORED
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError
from glmforge.tool_calls import json_call

TOOLS = [{"name": "get_weather", "parameters": {}}]
ASK = {"role": "user", "content": "q"}
RESULT = [{"role": "observation", "content": "r"}, {"role": "assistant", "content": "a"}]
JSON = '{"city": "杭州"}'
CODE = "```python\ntool_call(city='杭州')\n```"


def said(content, **fields):
    return {"role": "assistant", "content": content, **fields}


SPELLINGS = {
    "tool_calls": said(None, tool_calls=[{"function": {"name": "get_weather", "arguments": JSON}}]),
    "GLM-4 with metadata": said(JSON, metadata="get_weather"),
    "ChatGLM3 with metadata": said(CODE, metadata="get_weather"),
    "GLM-4 as text": said(f"get_weather\n{JSON}"),
    "ChatGLM3 as text": said(f"get_weather\n{CODE}"),
    "JSON as text": said(f'{{"name": "get_weather", "arguments": {JSON}}}'),
}
TRAINED = {
    "chatglm3": f"get_weather\n{CODE}⟦<|observation|>⟧",
    "glm4": f"get_weather\n{JSON}⟦<|observation|>⟧",
}


def trained(tokenizer, messages, tools):
    ((ids, labels),) = encode_rows(messages, tokenizer, tools)
    return tokenizer.decode([i for i, label in zip(ids, labels) if label != IGNORED])


@pytest.mark.parametrize("family", TRAINED)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_call_in_any_spelling_is_trained_in_the_familys_own_words(stub, family, spelling):
    """At the end of a record with the tool, and before a result."""
    call = SPELLINGS[spelling]
    assert trained(stub[family], [ASK, call], TOOLS) == TRAINED[family]
    assert trained(stub[family], [ASK, call, *RESULT], None).startswith(TRAINED[family])


def test_the_familys_own_spelling_stays_as_it_is(stub):
    """Blanks and quotes included."""
    json_text, code = '{ "city":"杭州" }', '```python\ntool_call(city = "杭州")\n```'
    for family, text in (("glm4", json_text), ("chatglm3", code)):
        call = said(text, metadata="get_weather")
        found = trained(stub[family], [ASK, call], TOOLS)
        assert found == f"get_weather\n{text}⟦<|observation|>⟧"


def findings(messages, tools=None):
    (found,) = to_conversations(
        Record(source="x:1", value={"messages": messages, "tools": tools or []})
    )
    return [(problem.rule, problem.level, problem.text) for problem in check(found)]


@pytest.mark.parametrize(
    "text", [f"get_weather\n{JSON}", f"get_weather\n{CODE}", SPELLINGS["JSON as text"]["content"]]
)
def test_what_only_reads_like_a_call_is_text_with_a_warning(stub, text):
    """Without the tool and without a result it may be what the user asked for."""
    for tools in (None, [{"name": "other"}])[: 1 if text.startswith("{") else 2]:
        ((rule, level, words),) = findings([ASK, said(text)], tools)
        assert (rule, level) == ("call-as-text", "warning")
        assert "message 2 (assistant) reads like a call of 'get_weather'" in words
        assert trained(stub["glm4"], [ASK, said(text)], tools) == f"\n{text}⟦<|user|>⟧"


@pytest.mark.parametrize("text", ["weather", "见下\n你好", "python\nprint(1)", "{} ok", "a\n{x}"])
def test_other_texts_do_not_read_like_calls(text):
    assert findings([ASK, said(text)], TOOLS) == []


def test_a_result_after_a_text_that_is_no_call_is_a_warning():
    ((rule, level, words),) = findings([ASK, said("让我查一下"), *RESULT])
    assert (rule, level) == ("call-as-text", "warning")
    assert "message 2 (assistant), which a tool's result follows, is no call" in words


def test_a_text_that_begins_with_a_tools_name_and_is_no_call_is_a_warning():
    for text in ("get_weather", 'get_weather\n{"city": "杭'):
        ((rule, level, words),) = findings([ASK, said(text)], TOOLS)
        assert (rule, level) == ("call-as-text", "warning")
        assert "message 2 (assistant) begins with the tool's name 'get_weather'" in words


BAD = (
    "",
    "杭州",
    '{"t": NaN}',
    '{"t": -Infinity}',
    '["杭州"]',
    '"杭州"',
    "null",
    '{"city": "杭',
    "city=杭州",
)


@pytest.mark.parametrize("family", ["chatglm3", "glm4"])
@pytest.mark.parametrize("arguments", BAD)
@pytest.mark.parametrize("shape", ["tool_calls", "function_call", "metadata", "role"])
def test_arguments_that_are_no_json_object_are_an_error(stub, family, arguments, shape):
    function = {"name": "get_weather", "arguments": arguments}
    call = {
        "tool_calls": said("", tool_calls=[{"function": function}]),
        "function_call": said("", function_call=function),
        "metadata": said(arguments, metadata="get_weather"),
        "role": {"role": "function_call", "content": json.dumps(function)},
    }[shape]
    rules = findings([ASK, call, *RESULT], TOOLS)
    assert ("bad-call", "error") in [finding[:2] for finding in rules]
    with pytest.raises(DataError, match=r"calls 'get_weather' with arguments that are no JSON obj"):
        encode_rows([ASK, call, *RESULT], stub[family], TOOLS)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\u2028b", "\n"])
@pytest.mark.parametrize("kind", ["tool_calls", "function_call"])
def test_a_call_has_a_name_of_one_line(name, kind):
    """It is the header of the message; without one, the arguments would be an answer."""
    function = {"name": name, "arguments": JSON}
    call = {"tool_calls": [{"function": function}], "function_call": function}[kind]
    record = Record(source="x:1", value={"messages": [ASK, said("", **{kind: call}), *RESULT]})
    (problem,) = to_conversations(record)
    assert problem.rule == "bad-call"
    assert "has a tool name of no or several lines" in problem.text


def test_arguments_that_json_cannot_write_are_an_error():
    call = {"function": {"name": "f", "arguments": {"t": float("nan")}}}
    record = Record(source="x:1", value={"messages": [ASK, said("", tool_calls=[call]), *RESULT]})
    (problem,) = to_conversations(record)
    assert problem.rule == "bad-call"


def test_broken_code_of_a_told_tool_is_an_error_and_other_code_is_not():
    broken = said("```python\ntool_call(city='杭\n```", metadata="get_weather")
    assert findings([ASK, broken, *RESULT], TOOLS)[0][0] == "bad-call"
    for name, text in (("interpreter", "```python\nprint(1)\n```"), ("python", "print(1)")):
        assert findings([ASK, said(text, metadata=name), *RESULT], TOOLS) == []


def test_no_arguments_are_an_empty_object(stub):
    for function in ({"name": "now"}, {"name": "now", "arguments": None}):
        call = said("", tool_calls=[{"function": function}])
        assert trained(stub["glm4"], [ASK, call], None) == "now\n{}⟦<|observation|>⟧"


def test_tools_in_two_places_must_agree(stub):
    """With the wrapper of the OpenAI format or without, in a file and from Python."""
    wrapped = [{"type": "function", "function": TOOLS[0]}]
    carrying = [{"role": "system", "content": "s", "tools": TOOLS}, ASK, said("a")]
    assert conversation_of(carrying, wrapped).tools == tuple(wrapped)
    assert conversation_of(carrying, json.dumps(wrapped)).tools == tuple(wrapped)
    assert findings(carrying, wrapped) == []
    other = [{"name": "other"}]
    for encode in (conversation_of, lambda m, t: encode_rows(m, stub["glm4"], t)):
        with pytest.raises(DataError, match=r"tools in two places, which differ \[two-tools\]"):
            encode(carrying, other)


@pytest.mark.parametrize(
    ("name", "found"), [("get_weather", []), ("python", []), ("get_wether", ["unlisted-tool"])]
)
def test_a_call_of_a_tool_that_the_record_does_not_list_has_a_warning(name, found):
    messages = (
        Message(role="user", content="q"),
        Message(role="assistant", content="", name=name, arguments="{}"),
    )
    tools = ({"type": "function", "function": {"name": "get_weather"}},)
    problems = check(Conversation(messages=messages, tools=tools, source="x:1"))
    assert [problem.rule for problem in problems] == found
    for problem in problems:
        assert problem.level == "warning"
        assert "calls 'get_wether', and the record's tools list only 'get_weather'" in problem.text
    assert check(Conversation(messages=messages, source="x:1")) == []


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (r'{"city": "\u676d\u5dde"}', '{"city": "杭州"}'),
        (r'{"mood":  "\ud83d\ude00"}', '{"mood":  "😀"}'),
        (r'{"a": "\u0041\n\\u676d", "b": "\ud83d"}', r'{"a": "\u0041\n\\u676d", "b": "\ud83d"}'),
        (r'{"a": "\ud8zz\udc.."', r'{"a": "\ud8zz\udc.."'),
    ],
)
def test_escapes_of_an_ascii_writer_are_undone_and_the_rest_of_the_json_stays(arguments, written):
    assert json_call(arguments) == written


def test_escaped_arguments_train_the_same_tokens_as_plain_ones(stub):
    escaped = r'{"city": "\u676d\u5dde"}'
    call = said(None, tool_calls=[{"function": {"name": "get_weather", "arguments": escaped}}])
    for family, text in TRAINED.items():
        assert trained(stub[family], [ASK, call], TOOLS) == text


@pytest.mark.parametrize(("name", "is_refused"), [("a\nb", True), ("  ", False), ("", False)])
def test_a_tool_name_in_metadata_is_one_line(tmp_path, name, is_refused):
    """A blank one is none, as an empty one: the text is an answer."""
    called = {"role": "assistant", "metadata": name, "content": "x"}
    record = {"messages": [{"role": "user", "content": "q"}, called]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    (found,) = iterate(tmp_path / "a.jsonl", ReadOptions())
    if is_refused:
        assert (found.rule, found.text) == ("bad-metadata", "message 2 has 'a\\nb' as metadata")
    else:
        assert not found.messages[1].is_call
