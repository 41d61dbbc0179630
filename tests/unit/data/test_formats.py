"""Each format gives the conversation that it means."""

import json

import pytest

from glmforge.data import Message, Problem
from glmforge.data.conversation import Conversation
from glmforge.data.formats import to_conversations
from glmforge.data.quality import examine
from glmforge.data.reading import Record
from glmforge.data.rules import check
from glmforge.data.shapes import ROLE_NAMES, ShapeOptions, read_messages
from glmforge.data.sources import ReadOptions, iterate
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError

# Files of shared/data: conversations that its SOURCE.txt counts, and further answers of a list.
REAL_SETS = {
    "adgen_excerpt/train.json": 30,
    "adgen_excerpt/dev.json": 20,
    "belle/zh_seed_tasks.json": 175,
    "belle/eval_set.json": 1000,
    "chatglm6b_improve/data_sample.jsonl": 100,
    "chatglm_efficient_tuning/self_cognition.json": 80,
    "chatglm_efficient_tuning/oaast_sft_zh.json": 689,
    "chatglm_efficient_tuning/examples.json": 2,
    "crosswoz/crosswoz_val_chat.jsonl": 500,
    "llamafactory_demo/alpaca_zh_demo.json": 1000,
    "llamafactory_demo/alpaca_en_demo.json": 999,
    "llamafactory_demo/identity.json": 91,
    "llamafactory_demo/glaive_toolcall_zh_demo.json": 300,
    "llamafactory_demo/glaive_toolcall_en_demo.json": 300,
    "llamafactory_demo/reason_tool_use_demo_50.jsonl": 50,
    "llamafactory_demo/v1_sft_demo.jsonl": 500,
    **{
        f"ms_swift_formats/{name}": 3
        for name in (
            "alpaca.csv", "alpaca.jsonl", "alpaca2.csv", "chatml.jsonl", "conversations.jsonl",
            "sharegpt.jsonl", "swift_multi.json", "swift_multi.jsonl", "swift_pre.csv",
            "swift_pre.jsonl", "swift_single.csv", "swift_single.jsonl",
        )
    },
}  # fmt: skip


def one(value, **options):
    (found,) = to_conversations(Record(source="x:1", value=value), ShapeOptions(**options))
    return found


def pairs(conversation):
    return [(message.role, message.text) for message in conversation.messages]


@pytest.mark.parametrize("name", REAL_SETS)
def test_a_real_set_gives_every_record_and_no_problem(shared, name):
    items = list(iterate(shared / "data" / name, ReadOptions()))
    assert [str(item) for item in items if isinstance(item, Problem)] == []
    assert len(items) == REAL_SETS[name]


def test_the_yaml_corpus_is_read_whole(shared):
    items = list(iterate(shared / "data/chatterbot_zh", ReadOptions()))
    assert all(isinstance(item, Conversation) for item in items)
    assert len(items) == 552


@pytest.mark.parametrize(
    ("name", "rule", "count"),
    [
        ("llamafactory_demo/identity.json", "placeholder", 85),
        ("llamafactory_demo/v1_sft_demo.jsonl", "placeholder", 50),
        ("belle/eval_set.json", "empty-content", 369),
        ("chatglm_efficient_tuning/oaast_sft_zh.json", "placeholder", 0),
        ("adgen_excerpt/train.json", "placeholder", 0),
        ("chatglm6b_improve/data_sample.jsonl", "placeholder", 0),
    ],
)
def test_quirks_are_counted_as_the_description_counts_them(shared, name, rule, count):
    report = examine(iterate(shared / "data" / name, ReadOptions()))
    assert report.rules.get(rule, 0) == count


def test_roles_of_the_real_tool_set_match_its_description(shared):
    roles = {"user": 0, "assistant": 0, "observation": 0}
    calls = 0
    path = shared / "data/llamafactory_demo/glaive_toolcall_zh_demo.json"
    for conversation in iterate(path, ReadOptions()):
        for message in conversation.messages:
            roles[message.role] += 1
            calls += message.is_call
    assert roles == {"user": 722, "assistant": 724 + 216, "observation": 218}
    assert calls == 216


QUESTION_AND_ANSWER = [("user", "q"), ("assistant", "a")]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"conversations": [{"role": "user", "content": "q"}, {"role": "bot", "content": "a"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversation": [{"human": "q", "assistant": "a"}]},
        {"instruction": "q", "input": "", "output": "a"},
        {"instruction": "q", "output": "a", "history": []},
        {"content": "q", "summary": "a"},
        {"prompt": "q", "response": "a", "history": None},
        {"query": "q", "response": "a"},
        {"question": "q", "std_answer": "a", "class": "x"},
        {"instruction": "q", "instances": [{"input": "", "output": "a"}]},
        {"messages": [
            {"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
            {"role": "assistant", "content": [{"type": "text", "value": "a"}], "loss_weight": 1.0},
        ]},
    ],
)  # fmt: skip
def test_every_spelling_of_one_question_and_answer_gives_the_same(value):
    assert pairs(one(value)) == QUESTION_AND_ANSWER


def test_alpaca_joins_input_and_keeps_history_and_system():
    value = {"instruction": "译", "input": "hello", "output": "你好", "system": "s",
             "history": [["q1", "a1"]]}  # fmt: skip
    assert pairs(one(value)) == [
        ("system", "s"), ("user", "q1"), ("assistant", "a1"),
        ("user", "译\nhello"), ("assistant", "你好"),
    ]  # fmt: skip


def test_text_alone_is_for_continued_pretraining():
    assert one({"text": "文"}).is_text
    assert one({"response": "文"}).is_text


def test_columns_are_renamed_by_the_config():
    value = {"ask": "q", "reply": "a"}
    assert pairs(one(value, columns={"query": "ask", "response": "reply"})) == QUESTION_AND_ANSWER
    problem = one(value, columns={"query": "asks", "response": "reply"})
    assert "no field 'asks'" in str(problem)


CALL = Message(role="assistant", content="", name="w", arguments='{"c": 1}')


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "function": {"name": "w", "arguments": '{"c": 1}'}}]}],
        [{"role": "assistant", "content": "", "function_call": {
            "name": "w", "arguments": {"c": 1}}}],
        [{"from": "function_call", "value": '{"name": "w", "arguments": {"c": 1}}'}],
        [{"role": "tool_call", "content": '[{"name": "w", "arguments": {"c": 1}}]'}],
        [{"role": "assistant", "content": [
            {"type": "tool_call", "value": '{"name": "w", "arguments": {"c": 1}}'}]}],
        [{"role": "tool", "name": "w", "parameters": {"c": 1}, "observation": "r"}],
        [{"role": "assistant", "content": '{"name": "w", "arguments": {"c": 1}}'},
         {"role": "observation", "content": "r"}],
    ],
)  # fmt: skip
def test_every_spelling_of_a_call_gives_the_same(value):
    conversation = one({"messages": [{"role": "user", "content": "q"}, *value]})
    assert conversation.messages[1] == CALL


def test_words_and_parallel_calls_become_messages_of_their_own():
    conversation = one({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "让我查", "tool_calls": [
            {"function": {"name": "w", "arguments": '{"c": 1}'}},
            {"function": {"name": "v", "arguments": "{}"}}]},
    ]})  # fmt: skip
    assert [m.name for m in conversation.messages] == ["", "", "w", "v"]


def test_a_chatglm3_call_stays_verbatim():
    content = "```python\ntool_call(city='杭州')\n```"
    conversation = one({"messages": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "metadata": "w", "content": content},
    ]})  # fmt: skip
    assert conversation.messages[1] == Message(
        role="assistant", name="w", content=content, arguments='{"city": "杭州"}'
    )


def test_tools_keep_their_fields_and_order_as_list_or_text():
    tools = [{"name": "b", "z": None, "a": 1.0}]
    message = {"messages": [{"role": "user", "content": "q"}]}
    for written in (tools, json.dumps(tools)):
        found = one({**message, "tools": written})
        assert json.dumps(list(found.tools)) == json.dumps(tools)
    carried = {"messages": [{"role": "system", "content": "", "tools": tools}]}
    assert one(carried).tools == tuple(tools)


def test_marks_of_untrained_messages_are_honoured():
    for mark in ({"train": False}, {"loss": 0}, {"loss_weight": 0.0}, {"weight": 0}):
        value = {"messages": [{"role": "assistant", "content": "a", **mark}]}
        assert one(value).messages[0].train is False
    half = {"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}
    assert one(half).rule == "bad-train-mark"


def test_content_that_is_no_text_is_flagged_and_never_spelled(shared):
    """Case D06: lines 3 to 9, 11 and 12 cannot be read or break a rule; see test_rules.py."""
    items = list(iterate(shared / "cases/D06/train.jsonl", ReadOptions()))
    unread = {item.source: item.rule for item in items if isinstance(item, Problem)}
    assert unread == {
        "train.jsonl:4": "not-text",
        "train.jsonl:5": "missing-content",
        "train.jsonl:6": "not-text",
        "train.jsonl:7": "not-text",
        "train.jsonl:8": "not-text",
        "train.jsonl:9": "not-text",
        "train.jsonl:11": "not-a-list",
        "train.jsonl:12": "not-an-object",
    }
    flattened = iterate(shared / "cases/D06/train.jsonl", ReadOptions(repairs=("flatten",)))
    texts = [m.content for c in flattened if isinstance(c, Conversation) for m in c.messages]
    assert "分段内容" in texts
    assert not any(word in text for text in texts for word in ("None", "True", "42", "answer"))


def test_an_unknown_role_names_the_nearest_one():
    problem = one({"messages": [{"role": "asistant", "content": "a"}]})
    assert str(problem) == (
        "x:1: message 1 has the role 'asistant' [unknown-role]; did you mean 'assistant'?"
    )


def test_an_unknown_format_names_its_fields_and_the_known_ones():
    problem = one({"frage": "q", "antwort": "a"})
    assert "frage, antwort" in problem.text
    assert "data.columns" in problem.advice


def test_thinking_before_a_call_is_kept_in_a_real_set(shared):
    """53 of the set's messages think before they call."""
    path = shared / "data/llamafactory_demo/reason_tool_use_demo_50.jsonl"
    items = list(iterate(path, ReadOptions()))
    calls = [m for item in items for m in item.messages if m.is_call and m.reasoning]
    assert len(calls) == 53


def test_thinking_that_is_no_text_is_an_error():
    answer = {"role": "assistant", "content": "a", "reasoning_content": 5}
    problem = one({"messages": [{"role": "user", "content": "q"}, answer]})
    assert problem.rule == "not-text"
    assert "reasoning_content of message 2 is 5" in problem.text


TOOLS = [{"type": "function", "function": {"name": "w", "parameters": {}}}]
CALL_TEXT = '{"name": "w", "arguments": {"c": 1}}'


def test_a_record_with_tools_may_end_on_a_call_written_as_json():
    asked = [{"role": "user", "content": "q"}, {"role": "assistant", "content": CALL_TEXT}]
    for value in (
        {"messages": asked, "tools": TOOLS},
        {"messages": [{"role": "system", "content": "", "tools": TOOLS}, *asked]},
        {"messages": [*asked, {"role": "user", "content": "q"}], "tools": TOOLS},
        {"instruction": "q", "output": CALL_TEXT, "tools": TOOLS},
    ):
        assert CALL in one(value).messages
        messages = value.get("messages")
        assert not messages or CALL in conversation_of(messages, value.get("tools")).messages
    assert one({"messages": asked}).messages[1].content == CALL_TEXT  # the user asked for JSON


def test_each_of_several_calls_written_as_json_before_a_result_is_a_call():
    call = {"role": "assistant", "content": CALL_TEXT}
    found = one({"messages": [{"role": "user", "content": "q"}, call, call,
                              {"role": "observation", "content": "r"}]})  # fmt: skip
    assert found.messages[1:3] == (CALL, CALL)


@pytest.mark.parametrize("role", ["user", "human", "system", "tool"])
@pytest.mark.parametrize(
    "calls",
    [
        {"content": "", "tool_calls": [{"function": {"name": "w", "arguments": "{}"}}]},
        {"content": "words", "function_call": {"name": "w", "arguments": "{}"}},
        {"content": [{"type": "tool_call", "value": CALL_TEXT}]},
        {"content": [{"type": "reasoning", "value": "想"}, {"type": "text", "value": "t"}]},
        {"content": "words", "reasoning_content": "想"},
    ],
)
def test_only_the_assistant_calls_and_thinks(role, calls):
    problem = one({"messages": [{"role": "user", "content": "q"}, {"role": role, **calls}]})
    assert problem.rule in ("bad-call", "bad-reasoning")
    assert f"message 2 has the role {role!r}" in problem.text


def test_empty_call_fields_on_any_role_mean_no_call():
    nothing = {"tool_calls": None, "function_call": None, "reasoning_content": ""}
    found = one({"messages": [{"role": "user", "content": "q", **nothing}]})
    assert found.messages == (Message(role="user", content="q"),)


def test_a_message_with_two_kinds_of_call_fields_is_an_error():
    call = {"name": "w", "arguments": "{}"}
    both = {"role": "assistant", "content": "", "tool_calls": [call], "function_call": call}
    assert one({"messages": [{"role": "user", "content": "q"}, both]}).rule == "bad-call"


def test_a_part_whose_type_is_no_text_is_an_error():
    parts = [{"type": ["text"], "value": "t"}]
    assert one({"messages": [{"role": "user", "content": parts}]}).rule == "not-text"


OWN = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
PAIR = {"instruction": "q", "output": "a"}
TURNS_RECORD = {"conversation": [{"human": "q", "assistant": "a"}]}


@pytest.mark.parametrize("record", [{"messages": OWN}, {"conversations": OWN}, PAIR, TURNS_RECORD])
def test_a_system_text_of_the_record_goes_first_and_must_be_text(record):
    assert pairs(one({**record, "system": "S"}))[0] == ("system", "S")
    for none in ("", None):
        assert pairs(one({**record, "system": none})) == [("user", "q"), ("assistant", "a")]
    for wrong in (5, 0, False, [], ["S"], {"content": "S"}):
        problem = one({**record, "system": wrong})
        assert (problem.rule, "system" in problem.text) == ("not-text", True)


def test_two_system_texts_that_differ_are_an_error():
    def record(system, own):
        return {"system": system, "messages": [{"role": "system", "content": own}, *OWN]}

    assert one(record("S", "T")).rule == "two-systems"
    for same in (record("S", "S"), record("S", ""), record("", "S"), record(None, "S")):
        found = pairs(one(same))
        assert found == [("system", "S"), ("user", "q"), ("assistant", "a")]


def test_tools_that_differ_between_record_and_messages_are_an_error():
    def record(tools, carried):
        system = {"role": "system", "content": "", "tools": carried}
        return {"messages": [system, *OWN], "tools": tools}

    assert one(record(TOOLS, [{"name": "v"}])).rule == "two-tools"
    for same in (record(TOOLS, json.dumps(TOOLS)), record([], TOOLS), record(TOOLS, None)):
        assert one(same).tools == tuple(TOOLS)


@pytest.mark.parametrize(
    ("tool", "what"),
    [
        ({"type": "function", "function": None}, "a function that is null, not an object"),
        ({"type": "function", "function": "w"}, 'a function that is "w", not an object'),
        ({"type": "function", "function": ["w"]}, "a function that is a list, not an object"),
        ({"type": "function", "function": {}}, "no name"),
        ({"type": "function", "function": {"name": 5}}, "a name that is 5, not text"),
        ({"type": "function", "function": {"name": ""}}, "no name"),
        ({"type": "function"}, "no name"),
        ({"name": None}, "no name"),
        ({"name": ["w"]}, "a name that is a list, not text"),
        ({}, "no name"),
        ("w", "is \"w\", not an object"),
        (None, "is null, not an object"),
    ],
)  # fmt: skip
def test_a_malformed_tool_is_an_error_that_names_it(tool, what):
    for tools in ([TOOLS[0], tool], json.dumps([TOOLS[0], tool])):
        problem = one({"messages": OWN, "tools": tools})
        assert problem.rule == "bad-tools"
        assert what in problem.text
        assert "tool 2" in problem.text
        with pytest.raises(DataError, match=r"tool 2 .*\[bad-tools\]"):
            conversation_of(OWN, tools)


def test_tools_of_other_types_need_no_name():
    tools = [{"type": "code_interpreter"}, {"type": "web_search", "web_search": {"k": 1}}]
    assert one({"messages": OWN, "tools": tools}).tools == tuple(tools)


def test_half_a_surrogate_in_a_tool_or_a_name_is_an_error():
    for tools, answer in (
        ([{"name": "w", "description": "\ud83d"}], OWN[1]),
        (None, {"role": "assistant", "metadata": "\ud83d", "content": "{}"}),
    ):
        record = one({"messages": [OWN[0], answer], "tools": tools})
        assert [problem.rule for problem in check(record)] == ["lone-surrogate"]


@pytest.mark.parametrize("role", sorted(ROLE_NAMES))
def test_a_message_of_a_role_and_a_text_is_read_as_one_with_empty_fields_beside(role):
    """The short way of most messages leads where the long one does."""
    item = {"role": role, "content": '{"name": "f", "arguments": {}}'}
    short, long = (
        read_messages([{**item, **beside}], "messages", ShapeOptions())
        for beside in ({}, {"tool_calls": None})
    )
    assert short == long
    assert short[0].role == ROLE_NAMES[role]
