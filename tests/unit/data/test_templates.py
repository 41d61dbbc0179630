"""The label rule, held for every family on invented dialogues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glmforge.data import build_examples, encode_conversation, encode_rows, generation_prompt
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError

FAMILIES = ["chatglm", "chatglm2", "chatglm3", "glm4"]
WORDS = st.text(alphabet="你好世界水氢 abc\n。", min_size=1, max_size=6).filter(str.strip)
TURNS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4)


def dialogue(turns, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return messages


def trained_texts(tokenizer, rows):
    """Decoded runs of labels of all rows, control tokens in brackets."""
    texts = []
    for _, labels in rows:
        run = []
        for label in [*labels, -100]:
            if label != -100:
                run.append(label)
            elif run:
                texts.append(tokenizer.decode(run))
                run = []
    return texts


@pytest.mark.parametrize("family", FAMILIES)
@given(turns=TURNS, system=st.none() | WORDS)
def test_the_trained_texts_are_the_answers_and_their_terminators(stub, family, turns, system):
    tokenizer = stub[family]
    rows = encode_rows(dialogue(turns, system), tokenizer)
    inner = {"chatglm": "<eop>", "chatglm2": "</s>"}.get(family, "<|user|>")
    last = {"chatglm": "<eop>", "glm4": "<|user|>"}.get(family, "</s>")
    newline = "\n" if family in ("chatglm3", "glm4") else ""
    ends = [inner] * (len(turns) - 1) + [last]
    expected = [f"{newline}{answer}⟦{end}⟧" for (_, answer), end in zip(turns, ends)]
    assert expected == trained_texts(tokenizer, rows)


@pytest.mark.parametrize("family", FAMILIES)
@given(turns=TURNS, system=st.none() | WORDS)
def test_what_precedes_each_answer_is_its_generation_prompt(stub, family, turns, system):
    tokenizer = stub[family]
    messages = dialogue(turns, system)
    rows = encode_rows(messages, tokenizer)
    starts = [
        (ids, at)
        for ids, labels in rows
        for at in range(1, len(ids))
        if labels[at] != -100 and labels[at - 1] == -100
    ]
    assert len(turns) == len(starts)
    first = len(messages) - 2 * len(turns)
    for number, (ids, at) in enumerate(starts):
        history = messages[: first + 2 * number + 1]
        assert ids[:at] == generation_prompt(history, tokenizer)


@pytest.mark.parametrize("family", FAMILIES)
@given(turns=TURNS)
def test_labels_are_the_ids_or_untrained_and_the_first_is_untrained(stub, family, turns):
    for ids, labels in encode_rows(dialogue(turns), stub[family]):
        assert len(ids) == len(labels)
        assert labels[0] == -100
        assert all(label in (-100, token) for token, label in zip(ids, labels))


def test_a_dialogue_becomes_one_row_or_one_row_a_turn(stub):
    messages = dialogue([("a", "b"), ("c", "d"), ("e", "f")])
    numbers = {family: len(encode_rows(messages, stub[family])) for family in FAMILIES}
    assert numbers == {"chatglm": 3, "chatglm2": 3, "chatglm3": 1, "glm4": 1}
    last = {
        family: len(encode_rows(messages, stub[family], labels="last_turn")) for family in FAMILIES
    }
    assert dict.fromkeys(FAMILIES, 1) == last


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_last_turn_is_trained_on_request(stub, family):
    messages = dialogue([("水？", "H2O"), ("盐？", "NaCl"), ("多谢", "不客气")], "回答要简短。")
    texts = trained_texts(stub[family], encode_rows(messages, stub[family], labels="last_turn"))
    assert len(texts) == 1
    assert "不客气" in texts[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_message_marked_untrained_stays_in_the_history_only(stub, family):
    messages = dialogue([("a", "one"), ("c", "two")])
    messages[1]["loss"] = False
    rows = encode_rows(messages, stub[family])
    texts = trained_texts(stub[family], rows)
    assert len(texts) == 1
    assert "two" in texts[0]
    assert "one" in stub[family].decode(rows[-1][0])


@pytest.mark.parametrize("family", ["chatglm3", "glm4"])
def test_an_observation_is_not_trained_and_a_call_ends_with_its_token(stub, family):
    tokenizer = stub[family]
    messages = [
        {"role": "user", "content": "天气"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "w", "arguments": '{"city": "杭州"}'}}],
        },
        {"role": "tool", "content": "20"},
        {"role": "assistant", "content": "二十度"},
    ]
    call = {
        "chatglm3": "w\n```python\ntool_call(city='杭州')\n```",
        "glm4": 'w\n{"city": "杭州"}',
    }[family]
    end = {"chatglm3": "</s>", "glm4": "<|user|>"}[family]
    texts = trained_texts(tokenizer, encode_rows(messages, tokenizer))
    assert [f"{call}⟦<|observation|>⟧", f"\n二十度⟦{end}⟧"] == texts
    unanswered = trained_texts(tokenizer, encode_rows(messages[:2], tokenizer))
    assert [f"{call}⟦<|observation|>⟧"] == unanswered


@pytest.mark.parametrize("family", ["chatglm3", "glm4"])
def test_a_second_message_of_the_assistant_opens_with_a_trained_role_token(stub, family):
    """The model itself writes <|assistant|> between its words and its call."""
    messages = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "让我查",
            "tool_calls": [{"function": {"name": "w", "arguments": "{}"}}],
        },
    ]
    (text,) = trained_texts(stub[family], encode_rows(messages, stub[family]))
    assert text.startswith("\n让我查⟦<|assistant|>⟧w\n")


def test_typed_control_spellings_stay_text(stub):
    messages = dialogue([("<|user|> [gMASK]", "</s> <|assistant|>")])
    for family in FAMILIES:
        ids, _ = encode_conversation(messages, stub[family])
        controls = [token for token in ids if token < stub[family].FIRST_CHARACTER]
        assert len(controls) == {"chatglm": 3, "chatglm2": 3, "chatglm3": 5, "glm4": 5}[family]


@pytest.mark.parametrize("family", ["chatglm", "chatglm2"])
def test_tools_in_a_generation_without_tools_are_refused_with_the_way_out(stub, family):
    with pytest.raises(DataError, match=r"no format for tools.*use ChatGLM3 or GLM-4"):
        encode_rows(dialogue([("a", "b")]), stub[family], tools=[{"name": "w"}])


def test_a_dialogue_without_an_answer_is_refused(stub):
    with pytest.raises(DataError, match="no assistant message, so nothing to train on"):
        encode_conversation([{"role": "user", "content": "a"}], stub["chatglm3"])


def test_unknown_labels_are_named_with_the_known_ones(stub):
    with pytest.raises(DataError, match=r"'every'.*all_turns, last_turn, official"):
        encode_rows(dialogue([("a", "b")]), stub["chatglm3"], labels="every")


def test_the_encoders_are_public(stub):
    import glmforge

    messages = dialogue([("a", "b")])
    rows = glmforge.encode_rows(messages, stub["chatglm3"])
    assert rows == [glmforge.encode_conversation(messages, stub["chatglm3"])]


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
OBSERVED = {"role": "observation", "content": "o"}


@pytest.mark.parametrize(
    ("messages", "rule"),
    [
        ([], "empty-record"),
        ([USER], "no-assistant"),
        ([USER, {"role": "assistant", "content": ""}], "empty-content"),
        ([ANSWER], "role-order"),
        ([USER, USER, ANSWER], "role-order"),
        ([USER, ANSWER, ANSWER], "role-order"),
        ([USER, ANSWER, {"role": "system", "content": "s"}, USER, ANSWER], "system-in-the-middle"),
        ([USER, OBSERVED, ANSWER], "observation-without-call"),
        ([{"role": "user", "content": "\ud83d"}, ANSWER], "lone-surrogate"),
        ([USER, {**ANSWER, "train": False}], "nothing-trained"),
    ],
)
@pytest.mark.parametrize("encode", [encode_rows, encode_conversation])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_public_encoders_refuse_what_training_refuses(stub, family, encode, messages, rule):
    with pytest.raises(DataError, match=rf"\[{rule}\]") as caught:
        encode(messages, stub[family])
    record = conversation_of(messages)
    with pytest.raises(DataError) as refused:
        build_examples([record], stub[family], max_length=64)
    assert refused.value.problems == caught.value.problems


def test_a_last_turn_that_is_not_trained_leaves_nothing_under_last_turn(stub):
    messages = [USER, ANSWER, USER, {**ANSWER, "train": False}]
    assert encode_rows(messages, stub["chatglm3"])
    with pytest.raises(DataError, match=r"\[nothing-trained\]"):
        encode_rows(messages, stub["chatglm3"], labels="last_turn")


def test_a_glm4_call_at_the_end_is_trained_as_in_the_middle(stub):
    call = {"role": "assistant", "content": '{"name": "f", "arguments": {"k": 1}}'}
    rows = encode_rows([USER, call], stub["glm4"], tools=[{"name": "f"}])
    assert trained_texts(stub["glm4"], rows) == ['f\n{"k": 1}⟦<|observation|>⟧']
