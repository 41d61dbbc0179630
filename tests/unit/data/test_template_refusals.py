"""What a model's own chat template cannot do is said, and no token is trained by mistake."""

import pytest
from test_chat_template import CHATML, tokenizer_with, trained

from glmforge.data import build_examples, encode_rows, generation_prompt
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError

ASK = {"role": "user", "content": "问"}
ANSWER = {"role": "assistant", "content": "答"}
CALL = {"role": "assistant", "content": "",
        "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}  # fmt: skip
CALLS = CHATML.replace(
    "{{ m.content }}",
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}",
)


@pytest.mark.parametrize("marks", [(False, True), (True, False)])
def test_a_turn_of_which_a_part_is_not_to_be_trained_is_refused(marks):
    """Words and call of one turn are one rendered message: the wrong one would be trained."""
    said = {"role": "assistant", "content": "SECRET"}
    turn = [dict(message, train=mark) for message, mark in zip([said, CALL], marks, strict=True)]
    tokenizer = tokenizer_with(CALLS)
    with pytest.raises(DataError, match=r"others of its turn \(messages 2 to 3\) are") as caught:
        encode_rows([ASK, *turn], tokenizer)
    assert f"message {3 if marks[0] else 2} is not to be trained" in str(caught.value)
    whole = [{**message, "train": False} for message in turn]
    result = {"role": "tool", "content": "r"}
    ((text, _),) = trained(tokenizer, encode_rows([ASK, *whole, result, ANSWER], tokenizer))
    assert text == "答<|im_end|>"


@pytest.mark.parametrize(
    "code",
    ["m.content.index('zz')", "{}['x'] + 1", "1 / 0", "[].pop()", "raise_exception('no')", "m.a.b"],
)
def test_whatever_the_code_of_a_template_raises_refuses_the_record(code):
    tokenizer = tokenizer_with(CHATML.replace("{{ m.content }}", f"{{{{ {code} }}}}"))
    with pytest.raises(DataError, match="chat template refuses the dialogue"):
        encode_rows([ASK, ANSWER], tokenizer)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}", "{{ messages[0", {"rag": CHATML, "tool": CHATML}],
)
def test_a_template_that_renders_nothing_is_an_error_of_the_tokenizer(template):
    """Once, and not once a record."""
    tokenizer = tokenizer_with(template)
    with pytest.raises(DataError, match="chat template cannot be used") as caught:
        build_examples([conversation_of([ASK, ANSWER])] * 3, tokenizer, max_length=64)
    assert len(caught.value.problems) == 1
    assert "chat_template.jinja" in str(caught.value)


def test_words_before_the_thinking_that_a_template_drops_are_not_lost_in_silence():
    strips = CHATML.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' and '</think>' in m.content %}<think>"
        "{{ m.content.split('</think>')[0].split('<think>')[-1] }}</think>"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}",
    )
    tokenizer = tokenizer_with(strips)
    with pytest.raises(DataError, match="does not render the content of message 2"):
        encode_rows([ASK, {"role": "assistant", "content": "开头<think>想</think>后"}], tokenizer)
    whole = {"role": "assistant", "content": "<think>想</think>后"}
    ((text, _),) = trained(tokenizer, encode_rows([ASK, whole], tokenizer))
    assert text == "<think>想</think>后<|im_end|>"


def test_markers_that_are_added_and_not_special_are_control_spellings_in_a_question():
    """In other messages they are the model's own words, as in calls written out by hand."""
    tokenizer = tokenizer_with(CHATML)
    tokenizer.add_tokens(["<tool_call>", "你好吗"])
    for spelled, refused in (("说 <tool_call> 的意思", True), ("你好吗", False)):
        messages = [{"role": "user", "content": spelled}, ANSWER]
        if refused:
            with pytest.raises(DataError, match="spells <tool_call>"):
                encode_rows(messages, tokenizer)
            with pytest.raises(DataError, match="spells <tool_call>"):
                generation_prompt(messages[:1], tokenizer)
        else:
            assert encode_rows(messages, tokenizer)
    call = {"role": "assistant", "content": "<tool_call>{}"}
    assert encode_rows([ASK, call], tokenizer)


def test_answers_inside_a_dialogue_without_a_stop_token_are_refused():
    """The last one gets a token that ends a turn in this vocabulary."""
    template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer = tokenizer_with(template)
    with pytest.raises(DataError, match="with no token that generation stops at"):
        encode_rows([ASK, ANSWER, ASK, ANSWER], tokenizer)
    ((text, _),) = trained(
        tokenizer, encode_rows([ASK, ANSWER, ASK, ANSWER], tokenizer, labels="last_turn")
    )
    assert text == "答\n<|user|>"  # a stop token of this vocabulary


def test_a_cut_that_costs_no_trained_token_is_no_cut_answer():
    """Only the line break after the terminator is over the limit."""
    tokenizer = tokenizer_with(CHATML)
    ((ids, _),) = encode_rows([ASK, ANSWER], tokenizer)
    dialogue = [conversation_of([ASK, ANSWER])]
    for over, outcome in ((1, "shortened"), (3, "cut")):
        found = build_examples(
            dialogue, tokenizer, max_length=len(ids) - over, truncation="truncate_right"
        )
        assert getattr(found.counts, outcome) == 1, (over, found.counts)
