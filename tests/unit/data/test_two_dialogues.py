"""A record that holds a dialogue twice is read only where both say the same."""

import pytest

from glmforge.data.formats import to_conversations
from glmforge.data.reading import Record

ASKED = {"role": "user", "content": "问"}
SAID = {"messages": [ASKED, {"role": "assistant", "content": "答"}]}


def one(value):
    (found,) = to_conversations(Record(source="x:1", value=value))
    return found


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"conversations": [{"from": "human", "value": "问"}]}, "conversations"),
        ({"conversation": [{"human": "问", "assistant": "另"}]}, "conversation"),
        ({"instruction": "问", "input": "", "output": "另"}, "instruction/output"),
        ({"query": "问", "response": ["答"]}, "query/response"),
    ],
)
def test_a_record_with_two_dialogues_that_differ_is_an_error_naming_both(other, named):
    problem = one({**other, **SAID})
    assert (problem.rule, problem.level) == ("two-dialogues", "error")
    assert f"in messages and in {named}, which differ" in problem.text


@pytest.mark.parametrize(
    "other",
    [
        {"conversations": [{"from": "human", "value": "问"}, {"from": "gpt", "value": "答"}]},
        {"instruction": "问", "output": "答"},
        {"instruction": "", "output": "", "conversations": []},
        {"prompt": "问", "text": "问：问 答：答"},
    ],
)
def test_a_second_dialogue_that_says_the_same_or_nothing_is_none(other):
    found = one({**SAID, **other})
    assert [(m.role, m.text) for m in found.messages] == [("user", "问"), ("assistant", "答")]
