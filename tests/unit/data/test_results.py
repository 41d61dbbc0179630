"""Calls and results: none without the other, in one order."""

import pytest

from glmforge.data import encode_rows
from glmforge.data.rules import check
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def calls(*names, **more):
    made = [{"id": f"id-{n}", "function": {"name": n, "arguments": "{}"}} for n in names]
    return {"role": "assistant", "content": None, "tool_calls": made, **more}


def result(name, text=None, with_id=True):
    found = {"role": "tool", "content": text or f"of {name}"}
    return found | ({"tool_call_id": f"id-{name}"} if with_id else {})


def rules_of(*messages):
    return {problem.rule: str(problem) for problem in check(conversation_of(messages))}


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ((calls("f"), USER, ANSWER), "message 2 (assistant) calls 'f', and no result of it follows "
                                     "before message 3 (user)"),
        ((calls("f"), ANSWER), "before message 3 (assistant)"),
        ((calls("f", "g"), result("f"), ANSWER), "message 3 (assistant) calls 'g'"),
        ((calls("f", "g"), result("g"), ANSWER), "message 2 (assistant) calls 'f'"),
        ((calls("f", "g"), result("f", with_id=False), ANSWER), "message 3 (assistant) calls 'g'"),
        ((calls("f", "g"), result("f"), result("h"), ANSWER), "message 3 (assistant) calls 'g'"),
    ],
)  # fmt: skip
def test_a_call_without_a_result_inside_a_dialogue_is_an_error(messages, named):
    found = rules_of(USER, *messages)
    assert named in found.pop("call-without-result")
    assert not found


def test_every_call_without_a_result_is_refused_when_it_is_encoded(stub):
    with pytest.raises(DataError, match="call-without-result"):
        encode_rows([USER, calls("f"), USER, ANSWER], stub["glm4"])


@pytest.mark.parametrize(
    "messages",
    [
        (calls("f"),),
        (calls("f", "g"),),
        (calls("f"), result("f"), ANSWER),
        (calls("f", "g"), result("f", with_id=False), result("g", with_id=False), ANSWER),
        (calls("f", "g"), result("f", "[1, 2]", with_id=False), ANSWER),
        (calls("f", train=False), USER, ANSWER),
        (calls("f"), result("f"), calls("f"), result("f"), ANSWER),
    ],
)
def test_calls_with_results_and_those_at_the_end_are_none(messages):
    assert not rules_of(USER, *messages)


@pytest.mark.parametrize("family", ["chatglm3", "glm4"])
def test_a_call_ends_with_the_token_of_its_result(stub, family):
    for messages in ([USER, calls("f")], [USER, calls("f"), result("f"), ANSWER]):
        ((_, labels),) = encode_rows(messages, stub[family])
        text = stub[family].decode([label for label in labels if label != -100])
        assert text.split("⟦")[1].startswith("<|observation|>⟧")


def test_results_are_put_in_the_order_of_their_calls_by_ids_and_that_is_told():
    messages = (USER, calls("f", "g"), result("g"), result("f"), ANSWER)
    found = conversation_of(messages)
    assert [m.content for m in found.messages[3:5]] == ["of f", "of g"]
    told = rules_of(*messages)["results-out-of-order"]
    assert "the results in messages 4, 5 stood in another order" in told
    assert {problem.level for problem in check(found)} == {"warning"}


def test_without_ids_results_stay_as_they_are():
    swapped = (result("g", with_id=False), result("f", with_id=False))
    found = conversation_of((USER, calls("f", "g"), *swapped, ANSWER))
    assert [m.content for m in found.messages[3:5]] == ["of g", "of f"]
    assert not check(found)
