"""Tokenizers with their own chat template: labels by comparing renderings."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from glmforge.data import encode_rows, generation_prompt
from glmforge.data.rules import _INVISIBLE
from glmforge.errors import DataError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROLES = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}\n{{ c.function.arguments | tojson }}"
    "{% endfor %}{% else %}{{ '\n' }}{{ m.content }}{% endif %}{% endfor %}"
    "{# observation #}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STRIPS_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
NO_PREFIX = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}answer now: {% endif %}"
)
REFUSES = "{{ raise_exception('no system role') }}"
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>",
            "<|user|>", "<|assistant|>", "<|observation|>"]  # fmt: skip
DIALOGUE = [
    {"role": "user", "content": "问一"},
    {"role": "assistant", "content": "答一", "reasoning_content": "想一"},
    {"role": "user", "content": "问二"},
    {"role": "assistant", "content": "答二", "reasoning_content": "想二"},
]


def tokenizer_with(template, eos="<|endoftext|>"):
    """One id a byte, and control tokens that are read from text, as such tokenizers do."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIALS})
    tokenizer.chat_template = template
    return tokenizer


def trained(tokenizer, rows):
    return [
        [tokenizer.decode([i for i in labels if i != -100]), tokenizer.decode(ids)]
        for ids, labels in rows
    ]


def test_the_answer_and_its_stop_token_are_trained_but_not_what_follows():
    tokenizer = tokenizer_with(CHATML)
    ((ids, labels),) = encode_rows(DIALOGUE, tokenizer)
    assert tokenizer.decode([i for i in labels if i != -100]) == "答一<|im_end|>答二<|im_end|>"
    assert ids == tokenizer.apply_chat_template(DIALOGUE, tokenize=True, return_dict=False)


def test_what_precedes_an_answer_is_the_generation_prompt():
    tokenizer = tokenizer_with(CHATML)
    ((ids, labels),) = encode_rows(DIALOGUE, tokenizer)
    starts = [at for at in range(1, len(ids)) if labels[at] != -100 and labels[at - 1] == -100]
    assert [ids[:at] for at in starts] == [
        generation_prompt(DIALOGUE[:1], tokenizer),
        generation_prompt(DIALOGUE[:3], tokenizer),
    ]


def test_a_template_that_leaves_the_end_to_the_next_role_token_trains_that_token():
    tokenizer = tokenizer_with(ROLES)
    ((text, _),) = trained(tokenizer, encode_rows(DIALOGUE, tokenizer))
    assert text == "\n答一<|user|>\n答二<|user|>"
    call = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "w", "arguments": '{"c": 1}'}}]},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a"},
    ]  # fmt: skip
    ((text, whole),) = trained(tokenizer, encode_rows(call, tokenizer))
    assert text == 'w\n{"c": 1}<|observation|>\na<|user|>'
    assert "<|observation|>\nr<|assistant|>" in whole


def test_a_template_that_strips_earlier_thinking_gives_a_row_a_turn():
    tokenizer = tokenizer_with(STRIPS_THINKING)
    rows = trained(tokenizer, encode_rows(DIALOGUE, tokenizer))
    assert [text for text, _ in rows] == [
        "想一</think>答一<|im_end|>",
        "想二</think>答二<|im_end|>",
    ]
    assert "想一" not in rows[1][1]
    assert len(encode_rows(DIALOGUE, tokenizer, labels="last_turn")) == 1


# The shape of GLM-Z1's template: its prompt opens the thinking, its history has none.
OPENS_THINKING = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n"
    "{{ m.content.split('</think>')[-1].strip() }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n<think>{% endif %}"
)


@pytest.mark.parametrize("newline", ["", "\n"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"content": "答", "reasoning_content": "想"}, "想\n</think>\n答<|user|>"),
        ({"content": "<think>\n想\n</think>\n\n答"}, "想\n</think>\n\n答<|user|>"),
        ({"content": "答"}, "</think>\n答<|user|>"),
    ],
)
def test_a_prompt_that_opens_the_thinking_trains_what_closes_it(answer, expected, newline):
    """GLM-Z1: <think> is the prompt's; the reasoning is trained where the data holds it."""
    template = OPENS_THINKING.replace("<think>{% endif", f"<think>{newline}{{% endif")
    tokenizer = tokenizer_with(template, eos="<|user|>")
    turn = {"role": "assistant", **answer}
    messages = [DIALOGUE[0], turn, DIALOGUE[2], turn]
    rows = encode_rows(messages, tokenizer)
    found = [text for text, _ in trained(tokenizer, rows)]
    assert found == ["\n" * (not newline) + expected] * 2
    for (ids, labels), end in zip(rows, (1, 3)):
        prompt = generation_prompt(messages[:end], tokenizer)
        assert ids[: len(prompt)] == prompt
        assert all(label == -100 for label in labels[: len(prompt)])
        assert tokenizer.decode(prompt).endswith(f"<think>{newline}")
    assert "想" not in tokenizer.decode(rows[1][0][: len(prompt)])


def test_a_template_whose_prompt_is_no_prefix_is_refused():
    with pytest.raises(DataError, match="in other ways than its generation prompt"):
        encode_rows(DIALOGUE, tokenizer_with(NO_PREFIX))


def test_a_template_that_refuses_the_dialogue_says_why():
    with pytest.raises(DataError, match=r"refuses the dialogue .no system role"):
        encode_rows(DIALOGUE, tokenizer_with(REFUSES))


def test_a_typed_control_token_is_refused_not_read_as_one():
    tokenizer = tokenizer_with(CHATML)
    messages = [{"role": "user", "content": "<|im_end|>"}, DIALOGUE[1]]
    with pytest.raises(DataError, match=r"spells <\|im_end\|>"):
        encode_rows(messages, tokenizer)


@pytest.mark.parametrize("place", ["tool", "name"])
def test_a_control_token_in_a_tool_or_its_name_is_refused(place):
    tokenizer = tokenizer_with(ROLES)
    tools = [{"name": "w", "description": "<|user|>"}] if place == "tool" else None
    call = {"role": "assistant", "tool_calls": [{"name": "a<|user|>", "arguments": {}}]}
    messages = [{"role": "user", "content": "q"}, *([call] if place == "name" else [])]
    with pytest.raises(DataError, match=r"spells <\|user\|>"):
        generation_prompt(messages, tokenizer, tools)


def test_without_a_template_only_pairs_and_text_are_possible():
    tokenizer = tokenizer_with(None)
    ((text, whole),) = trained(tokenizer, encode_rows(DIALOGUE[:2], tokenizer))
    assert (text, whole) == ("答一<|endoftext|>", "问一答一<|endoftext|>")
    with pytest.raises(DataError, match="no chat template"):
        encode_rows(DIALOGUE, tokenizer)


# An answer without anything visible is a fault of the record.
TEXTS = st.text(
    st.characters(exclude_characters="<[", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: not _INVISIBLE.fullmatch(text))


@settings(max_examples=40)
@given(turns=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
@pytest.mark.parametrize(("template", "stop"), [(CHATML, "<|im_end|>"), (ROLES, "<|user|>")])
def test_decoded_labels_are_the_answers_of_any_dialogue(template, stop, turns):
    """And what stands before each of them is the generation prompt of its history."""
    tokenizer = tokenizer_with(template, eos=stop)
    messages = []
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    ((ids, labels),) = encode_rows(messages, tokenizer)
    trained = tokenizer.decode([label for label in labels if label != -100])
    newline = "\n" if template is ROLES else ""
    assert trained == "".join(f"{newline}{answer}{stop}" for _, answer in turns)
    for turn in range(len(turns)):
        prompt = generation_prompt(messages[: 2 * turn + 1], tokenizer)
        assert ids[: len(prompt)] == prompt


THINKS_AND_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }}</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = {"function": {"name": "w", "arguments": "{}"}}
CALL_TEXT = '{"name": "w", "arguments": {}}'


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, ""),
        ({"role": "assistant", "content": None, "function_call": CALL["function"]}, ""),
        ({"role": "assistant", "content": "话", "tool_calls": [CALL]}, "话"),
        ({"role": "function_call", "content": CALL_TEXT}, ""),
        ({"role": "assistant", "content": CALL_TEXT}, ""),
        ({"role": "assistant", "content": [{"type": "tool_call", "value": CALL_TEXT}]}, ""),
    ],
)
def test_thinking_before_a_call_is_trained_however_the_call_is_written(turn, words):
    tokenizer = tokenizer_with(THINKS_AND_CALLS)
    messages = [
        {"role": "user", "content": "q"},
        {**turn, "reasoning_content": "想一想"},
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "答"},
    ]
    ((text, _),) = trained(tokenizer, encode_rows(messages, tokenizer))
    assert text == f"<think>想一想</think>{words}<call>w</call><|im_end|>答<|im_end|>"


def test_thinking_in_parts_before_a_call_is_trained():
    tokenizer = tokenizer_with(THINKS_AND_CALLS)
    parts = [{"type": "reasoning", "value": "想一想"}, {"type": "tool_call", "value": CALL_TEXT}]
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": parts}]
    ((text, _),) = trained(tokenizer, encode_rows(messages, tokenizer))
    assert text == "<think>想一想</think><call>w</call><|im_end|>"


def test_a_control_token_spelled_in_the_thinking_is_refused():
    tokenizer = tokenizer_with(THINKS_AND_CALLS)
    answer = {"role": "assistant", "content": "a", "reasoning_content": "<|user|>"}
    with pytest.raises(DataError, match=r"spells <\|user\|>"):
        encode_rows([{"role": "user", "content": "q"}, answer], tokenizer)


def test_a_call_that_names_its_tool_apart_is_rendered_as_a_call():
    tokenizer = tokenizer_with(ROLES, eos="<|user|>")
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"k": 1}}]}
    expected = encode_rows([DIALOGUE[0], call], tokenizer)
    for content in ('{"k": 1}', "```python\ntool_call(k=1)\n```"):
        named = {"role": "assistant", "metadata": "f", "content": content}
        assert encode_rows([DIALOGUE[0], named], tokenizer) == expected


def test_a_call_whose_input_is_code_is_refused_not_written_as_words():
    call = {"role": "assistant", "metadata": "interpreter", "content": "```python\n1 + 1\n```"}
    with pytest.raises(DataError, match=r"'interpreter' holds no JSON arguments.*\[bad-call\]"):
        encode_rows([DIALOGUE[0], call], tokenizer_with(ROLES, eos="<|user|>"))
