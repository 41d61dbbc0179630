"""Every rule about one record, and the repairs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import Conversation, Message
from glmforge.data.formats import to_conversations
from glmforge.data.reading import Record
from glmforge.data.rules import (
    _SUSPICIOUS,
    CONTROL_CHARACTERS,
    CONTROL_SPELLINGS,
    PLACEHOLDERS,
    SURROGATES,
    check,
    repair,
)
from glmforge.data.sources import ReadOptions, iterate


def conversation(*pairs):
    roles = {"s": "system", "u": "user", "a": "assistant", "o": "observation"}
    return Conversation(
        messages=tuple(Message(role=roles[role], content=text) for role, text in pairs),
        source="x:1",
    )


def rules(*pairs):
    return [f"{p.rule}:{p.level}" for p in check(conversation(*pairs))]


GOOD = (("s", "s"), ("u", "q"), ("a", "a"), ("u", "q"), ("a", "a"))


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ((("a", "a"),), "role-order:error"),
        ((("s", "s"), ("a", "a")), "role-order:error"),
        ((("u", "q"), ("u", "q"), ("a", "a")), "role-order:error"),
        ((("u", "q"), ("a", "a"), ("a", "a")), "role-order:error"),
        ((("s", "1"), ("s", "2"), ("u", "q"), ("a", "a")), "role-order:error"),
        ((("u", "q"), ("s", "s"), ("a", "a")), "system-in-the-middle:error"),
        ((("u", "q"), ("o", "o"), ("a", "a")), "observation-without-call:error"),
        ((("u", "q"), ("a", "a"), ("o", "o"), ("u", "q"), ("a", "a")), "role-order:error"),
        ((("u", "q"),), "no-assistant:error"),
        ((), "empty-record:error"),
        ((("u", "q"), ("a", "")), "empty-content:error"),
        ((("u", "q"), ("a", " \n\t")), "empty-content:error"),
        ((("u", "q"), ("a", "\u200b\ufeff ")), "empty-content:error"),
        ((("u", "<image>这是什么"), ("a", "a")), "placeholder:warning"),
        ((("u", ""), ("a", "a")), "empty-content:warning"),
        ((("u", "x\ud83d"), ("a", "a")), "lone-surrogate:error"),
        ((("u", "x\x00\x1b[31m"), ("a", "a")), "control-character:warning"),
        ((("u", "{{name}}"), ("a", "a")), "placeholder:warning"),
        ((("u", "我是<NAME>"), ("a", "a")), "placeholder:warning"),
        ((("u", "q\n"), ("a", "a")), "outer-newline:warning"),
        ((("u", "\ufffd"), ("a", "a")), "replacement-character:warning"),
    ],
)
def test_a_fault_is_named(pairs, rule):
    assert rule in rules(*pairs)


def test_a_good_dialogue_has_no_problem():
    assert rules(*GOOD) == []
    assert rules(("s", ""), ("u", "q"), ("a", "a"), ("u", "q")) == []


def test_a_dialogue_with_every_answer_marked_untrained_is_named():
    messages = (
        Message(role="user", content="q"),
        Message(role="assistant", content="a", train=False),
    )
    (problem,) = check(Conversation(messages=messages, source="x:1"))
    assert problem.rule == "nothing-trained"


def levels(path):
    found = {}
    for item in iterate(path, ReadOptions()):
        faults = check(item) if isinstance(item, Conversation) else [item]
        line = int(item.source.rsplit(":", 1)[1])
        found[line] = sorted({f"{fault.rule}:{fault.level}" for fault in faults})
    return found


def test_case_d06_flags_all_but_the_first_line(shared):
    found = levels(shared / "cases/D06/train.jsonl")
    assert [line for line in range(1, 13) if found[line]] == list(range(2, 13))
    assert found[2] == found[3] == ["empty-content:error"]
    assert found[10] == ["empty-content:warning"]


def test_case_d10_names_every_line_with_control_spellings(shared):
    found = levels(shared / "cases/D10/train.jsonl")
    assert found == {key: ["control-spelling:warning"] for key in range(1, 5)}
    spelled = {
        p.source: p.text
        for c in iterate(shared / "cases/D10/train.jsonl", ReadOptions())
        for p in check(c)
    }
    assert "<|endoftext|> <|system|> <|user|>" in spelled["train.jsonl:2"]


def test_case_d12_tells_broken_text_from_rare_text(shared):
    found = levels(shared / "cases/D12/train.jsonl")
    assert found == {
        1: [],
        2: [],
        3: ["lone-surrogate:error"],
        4: ["control-character:warning"],
    }


def test_no_report_holds_raw_control_characters_or_surrogates(shared):
    for item in iterate(shared / "cases/D12/train.jsonl", ReadOptions()):
        for problem in check(item):
            assert str(problem).isprintable()


def test_answers_of_which_one_is_not_to_be_trained_are_not_merged():
    """The other would lose its label with it; the order of roles stays the fault that it is."""
    said = conversation(("u", "1"), ("a", "2"), ("a", "3"), ("u", "4"), ("a", "5"))
    messages = list(said.messages)
    messages[1] = replace(messages[1], train=False)
    merged, _ = repair(said.with_messages(messages), ("merge",))
    assert [m.content for m in merged.messages] == ["1", "2", "3", "4", "5"]
    assert [problem.rule for problem in check(merged)] == ["role-order"]


def test_a_system_message_in_the_middle_is_one_fault():
    """What comes after it is judged as if it were not there."""
    said = conversation(("u", "q"), ("s", "s"), ("a", "a"), ("u", "q"), ("a", "a"))
    assert [problem.rule for problem in check(said)] == ["system-in-the-middle"]


def test_neighbours_of_one_role_are_merged_only_on_request():
    faulty = conversation(("u", "1"), ("u", "2"), ("a", "3"), ("a", "4"))
    assert repair(faulty, ()) == (faulty, [])
    merged, applied = repair(faulty, ("merge",))
    assert [m.content for m in merged.messages] == ["1\n2", "3\n4"]
    assert applied == ["merge"]
    assert check(merged) == []


def test_white_space_is_trimmed_only_on_request():
    trimmed, applied = repair(conversation(("u", " q\n"), ("a", "\na")), ("trim",))
    assert [m.content for m in trimmed.messages] == ["q", "a"]
    assert applied == ["trim"]
    assert repair(conversation(*GOOD), ("trim", "merge"))[1] == []


ODD = st.sampled_from("ab<[{|}>/s_opMASKgu\x00\x1b\ud83d�\n 中unk")


@given(text=st.text(ODD | st.characters()))
def test_the_quick_look_passes_over_no_finding(text):
    patterns = (SURROGATES, CONTROL_CHARACTERS, CONTROL_SPELLINGS, PLACEHOLDERS)
    if "�" in text or any(pattern.search(text) for pattern in patterns):
        assert _SUSPICIOUS.search(text)


def test_half_a_surrogate_in_the_thinking_is_an_error_and_merging_keeps_both_thoughts():
    answers = (
        Message(role="assistant", content="a", reasoning="一"),
        Message(role="assistant", content="b", reasoning="二\ud83d"),
    )
    dialogue = Conversation(messages=(Message(role="user", content="q"), *answers), source="x:1")
    assert "lone-surrogate" in [problem.rule for problem in check(dialogue)]
    merged, _ = repair(dialogue, ["merge"])
    assert merged.messages[1].reasoning == "一\n二\ud83d"


@pytest.mark.parametrize("spelling", ["<n>", "<|tab|>", "<|blank_2|>", "<|blank_80|>"])
def test_spellings_of_white_space_have_a_warning_that_says_who_reads_them_so(spelling):
    (problem,) = check(conversation(("u", f"前{spelling}后"), ("a", "a")))
    assert (problem.rule, problem.level) == ("blank-spelling", "warning")
    assert spelling in problem.text
    assert "ChatGLM-6B reads" in problem.advice
    assert "plain text" in problem.advice


def test_both_kinds_of_spellings_have_their_own_warning_and_near_ones_none():
    found = rules(("u", "<n> [gMASK] <|blank_1|> <|blank_81|>"), ("a", "a"))
    assert found == ["control-spelling:warning", "blank-spelling:warning"]
    assert rules(("u", "<|blank_1|> <|blank_81|> <|tab> <nn>"), ("a", "a")) == []


def test_a_finding_is_one_line_and_shows_chinese_as_it_is():
    bad = Record(source="x:1", value={"a\nb\x1b": "问"})
    (unknown,) = to_conversations(bad)
    assert "a\\x0ab\\x1b" in str(unknown)
    assert str(unknown).isprintable()
    (no_text,) = to_conversations(Record(source="x:1", value={"messages": "问"}))
    assert "问" in str(no_text)


def test_merging_is_not_advised_where_it_does_nothing():
    said = conversation(("u", "q"), ("a", "c"), ("a", "d"))
    first, second, third = said.messages
    (problem,) = check(said)
    assert problem.advice.startswith("set repair: [merge]")
    marked = said.with_messages((first, replace(second, train=False), third))
    (problem,) = check(repair(marked, ["merge"])[0])
    assert problem.advice.startswith("give them one mark (one is trained, one is not)")
