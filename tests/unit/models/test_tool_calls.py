"""A call in OpenAI's ``tool_calls`` is written in a prompt as it is trained, or refused by name."""

import pytest
from transformers.utils import get_json_schema
from vocabularies import write_bpe, write_ranks, write_unigram

from glmforge.data.templates import encode_conversation, generation_prompt
from glmforge.errors import DataError, ModelError
from glmforge.models import load_tokenizer
from glmforge.models.glm.tokenization_chat import read_tools

QUESTION = {"role": "user", "content": "杭州天气"}
RESULT = {"role": "tool", "tool_call_id": "1", "content": '{"t": 1}'}
FUNCTION = {"name": "get_weather", "arguments": {"city": "杭州", "days": [1, None, True]}}
AS_TEXT = {"name": "get_weather", "arguments": '{"city": "杭州"}'}
CALLS = {
    "null content": {"content": None, "tool_calls": [{"type": "function", "function": FUNCTION}]},
    "no content": {"tool_calls": [{"type": "function", "function": FUNCTION}]},
    "empty content": {"content": "", "tool_calls": [FUNCTION]},
    "words before": {"content": "看一下。", "tool_calls": [{"function": FUNCTION}]},
    "arguments as text": {"content": "", "tool_calls": [{"function": AS_TEXT}]},
    "two calls": {"content": "", "tool_calls": [{"function": FUNCTION}, {"function": AS_TEXT}]},
    "the older key": {"content": None, "function_call": FUNCTION},
    "none at all": {"content": "好", "tool_calls": [], "function_call": None},
}


@pytest.fixture(scope="module", params=["chatglm2", "chatglm", "chatglm3", "glm4"])
def tokenizer(request, tmp_path_factory):
    write = {"chatglm": write_unigram, "glm4": write_ranks}.get(request.param)
    directory = tmp_path_factory.mktemp(request.param)
    if write:
        return load_tokenizer(write(directory))
    return load_tokenizer(write_bpe(directory, request.param))


@pytest.mark.parametrize("shape", CALLS)
def test_a_prompt_writes_a_call_as_training_does(tokenizer, shape):
    messages = [QUESTION, {"role": "assistant", **CALLS[shape]}]
    called = shape != "none at all"
    if called:
        messages.append(RESULT)
    if called and tokenizer.family in ("chatglm", "chatglm2"):
        with pytest.raises(ModelError, match=r"message 1 has tool_calls, which .* cannot make"):
            tokenizer.apply_chat_template(messages)
        return
    messages.append(QUESTION)
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == generation_prompt(messages, tokenizer)
    if called:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        arguments = "tool_call(city='杭州'" if tokenizer.family == "chatglm3" else '"city": "杭州"'
        assert "<|assistant|>get_weather\n" in text
        assert arguments in text


def test_calls_that_cannot_be_written_are_named_all_at_once(tokenizer):
    if tokenizer.family not in ("chatglm3", "glm4"):
        return
    wrong = [
        {**QUESTION, "tool_calls": [FUNCTION]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, "f"]},
        {"role": "assistant", "content": None},
        {"role": ["user"], "content": "x"},
    ]
    with pytest.raises(ModelError) as error:
        tokenizer.apply_chat_template(wrong)
    user, first, second, content, role = error.value.problems
    assert "message 0 has tool_calls, which a message of role 'user' cannot make" in user
    assert "message 1 has no tool name" in first
    assert "message 1 has no tool name" in second
    assert "message 2 (assistant) has content None: it must be a text" in content
    assert "message 3 has role ['user']" in role


def test_chatglm3_needs_an_object_of_arguments_in_prompts_and_rows(tmp_path):
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    call = {"name": "f", "arguments": "[1]"}
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(ModelError, match=r"no JSON object: '\[1\]'"):
        tokenizer.apply_chat_template(messages)
    with pytest.raises(DataError, match=r"no JSON object: '\[1\]'"):
        encode_conversation(messages, tokenizer)


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ({"type": "function", "function": None}, "tool 0 has a function that is null"),
        ({"type": "function", "function": "name"}, "tool 0 has a function that is"),
        ({"description": "nameless"}, "tool 0 has no name"),
    ],
)
def test_a_malformed_tool_is_named(tool, complaint):
    """The same finding as in data, not a TypeError and not null in the prompt."""
    with pytest.raises(ModelError, match=complaint):
        read_tools([tool])


@pytest.mark.parametrize("name", ["chatglm3-6b", "glm-4-9b-chat"])
def test_tools_that_differ_from_those_of_the_dialogue_are_refused(shared, name):
    tokenizer = load_tokenizer(shared / "tokenizers" / name)
    tool = {"name": "w", "description": "d", "parameters": {}}
    carrying = [
        {"role": "system", "content": "", "tools": [tool]},
        {"role": "user", "content": "q"},
    ]
    wrapped = [{"type": "function", "function": tool}]
    assert tokenizer.apply_chat_template(carrying, tools=wrapped, tokenize=False)
    with pytest.raises(ModelError, match="differ from `tools`"):
        tokenizer.apply_chat_template(carrying, tools=[{**tool, "name": "v"}], tokenize=False)


def get_weather(city: str) -> str:
    """Say the weather.

    Args:
        city: its name
    """
    return city


def undescribed(city):
    return city


def test_a_python_function_is_a_tool_as_its_description_is(tokenizer):
    if tokenizer.family not in ("chatglm3", "glm4"):
        return
    messages = [QUESTION]
    written = tokenizer.apply_chat_template(messages, tools=[get_weather], tokenize=False)
    schema = get_json_schema(get_weather)
    assert written == tokenizer.apply_chat_template(messages, tools=[schema], tokenize=False)
    assert "its name" in written
    with pytest.raises(ModelError, match="tool 0 is a function that transformers cannot describe"):
        tokenizer.apply_chat_template(messages, tools=[undescribed])
