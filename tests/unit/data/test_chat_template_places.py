"""What a chat template has no place for is refused or counted; calls find the place they have."""

import pytest
from test_chat_template import CHATML, OPENS_THINKING, tokenizer_with, trained

from glmforge.data import build_examples, encode_rows, generation_prompt
from glmforge.data.rendered import left_out
from glmforge.data.templates import conversation_of
from glmforge.errors import DataError

# The shape of GLM-4-0414's template: a call is a message that its metadata names.
METADATA = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{% for t in tools %}## {{ t.function.name }}\n"
    "{{ t.function | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{% set meta = m.get('metadata', '') %}"
    "{% if m.role in ['system', 'user', 'assistant', 'observation'] %}<|{{ m.role }}|>{{ meta }}\n"
    "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOOLS = [{"name": "weather", "description": "看天气", "parameters": {"type": "object"}}]
QUESTION = {"role": "user", "content": "杭州天气"}
RESULT = {"role": "tool", "content": '{"t": 20}'}
ANSWER = {"role": "assistant", "content": "二十度"}


def call(arguments='{"city": "杭州"}', **more):
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"function": function}], **more}


def chatml(calls="", content="{{ m.content }}"):
    """ChatML whose messages write content and calls in these ways."""
    body = content + "{% for c in m.tool_calls or [] %}" + calls + "{% endfor %}"
    return CHATML.replace("{{ m.content }}", body)


def test_a_call_is_handed_to_a_template_as_metadata_where_it_reads_that():
    tokenizer = tokenizer_with(METADATA, eos="<|user|>")
    messages = [QUESTION, call(), RESULT, ANSWER]
    ((text, whole),) = trained(tokenizer, encode_rows(messages, tokenizer, TOOLS))
    assert text == 'weather\n{"city": "杭州"}<|observation|>\n二十度<|user|>'
    assert '## weather\n{"name": "weather"' in whole
    assert '<|observation|>\n{"t": 20}<|assistant|>' in whole
    prompt = generation_prompt(messages[:3], tokenizer, TOOLS)
    assert tokenizer.decode(prompt) + "\n二十度<|user|>" == whole


def test_words_and_calls_of_one_turn_are_messages_of_their_own_there():
    """As in GLM-4's own format, and a last call ends with the token of its result."""
    tokenizer = tokenizer_with(METADATA, eos="<|user|>")
    turn = call(content="我查")
    turn["tool_calls"] *= 2
    ((text, _),) = trained(tokenizer, encode_rows([QUESTION, turn], tokenizer))
    one = '<|assistant|>weather\n{"city": "杭州"}'
    assert text == f"\n我查{one}{one}<|observation|>"


def test_a_call_that_a_prompt_which_opens_the_thinking_cannot_begin_is_refused():
    template = OPENS_THINKING.replace("|>\n{{", "|>{{ m.metadata }}{# observation #}{{ '\n' }}{{")
    tokenizer = tokenizer_with(template, eos="<|user|>")
    messages = [QUESTION, call(), RESULT, ANSWER]
    with pytest.raises(DataError, match="renders a call in other ways than its generation prompt"):
        encode_rows(messages, tokenizer)
    messages[1]["train"] = False
    ((text, whole),) = trained(tokenizer, encode_rows(messages, tokenizer))
    assert text == "\n</think>\n二十度<|user|>"
    assert '<|assistant|>weather\n{"city": "杭州"}<|observation|>' in whole


@pytest.mark.parametrize(
    "calls",
    [
        "{{ c.function.name }}: {{ c.function.arguments | tojson }}",
        "{{ c.function.name + ': ' + c.function.arguments }}",
        "{{ c.function.name }}: {{ c.function.arguments }}",
    ],
)
def test_arguments_are_given_as_the_template_reads_them(calls):
    tokenizer = tokenizer_with(chatml(calls))
    ((text, _),) = trained(tokenizer, encode_rows([QUESTION, call(), RESULT, ANSWER], tokenizer))
    assert text == 'weather: {"city": "杭州"}<|im_end|>二十度<|im_end|>'


def test_arguments_in_elements_of_their_own_are_found():
    calls = (
        "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<k>{{ k }}</k>"
        "<v>{{ v if v is string else v | tojson }}</v>{% endfor %}"
    )
    tokenizer = tokenizer_with(chatml(calls))
    arguments = {"city": '杭"州', "days": [1, 2], "now": True, "none": None}
    ((text, _),) = trained(tokenizer, encode_rows([QUESTION, call(arguments)], tokenizer))
    assert '<k>city</k><v>杭"州</v>' in text


NO_SYSTEM = "{% for m in messages if m.role != 'system' %}" + CHATML.partition("%}")[2]
NAMES_ONLY = chatml("{{ c.function.name }}")


@pytest.mark.parametrize(
    ("template", "messages", "tools", "missing"),
    [
        (CHATML, [QUESTION, ANSWER], TOOLS, "the tools"),
        (CHATML, [QUESTION, call(), RESULT, ANSWER], None, r"the call of 'weather' \(message 2\)"),
        (NAMES_ONLY, [QUESTION, call()], None, r"the call of 'weather' \(message 2\)"),
        (NO_SYSTEM, [{"role": "system", "content": "a"}, QUESTION, ANSWER], None,
         "the system message"),
        (chatml("", "{{ m.content[:4] }}"), [{"role": "user", "content": "长长的问题"}, ANSWER],
         None, r"the content of message 1 \(user\)"),
    ],
)  # fmt: skip
def test_what_a_template_does_not_render_is_named(template, messages, tools, missing):
    tokenizer = tokenizer_with(template)
    with pytest.raises(DataError, match=rf"template does not render {missing}.*\[not-rendered\]"):
        encode_rows(messages, tokenizer, tools)


def test_a_result_that_is_not_rendered_is_named():
    calls = "{{ c.function.name }}: {{ c.function.arguments | tojson }}"
    template = chatml(calls).replace("in messages %}", "in messages if m.role != 'tool' %}", 1)
    with pytest.raises(DataError, match=r"the content of message 3 \(observation\)"):
        encode_rows([QUESTION, call(), RESULT, ANSWER], tokenizer_with(template))


def test_a_bare_tool_gets_the_wrapper_that_templates_expect():
    template = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + CHATML
    ((_, whole),) = trained(
        tokenizer_with(template), encode_rows([QUESTION, ANSWER], tokenizer_with(template), TOOLS)
    )
    assert whole.startswith('{"type": "function", "function": {"name": "weather"')


@pytest.mark.parametrize(
    ("template", "answer", "number"),
    [
        (CHATML, {"reasoning_content": "想"}, 1),
        (CHATML, {"content": "<think>想</think>答"}, 0),
        (chatml(content="{{ m.reasoning_content }}{{ m.content }}"),
         {"reasoning_content": "想"}, 0),
        (chatml(content="{{ m.content.split('</think>')[-1] }}"),
         {"content": "<think>想</think>答"}, 1),
        (OPENS_THINKING, {"reasoning_content": "想"}, 0),
        (OPENS_THINKING, {"content": "<think>想</think>答"}, 0),
        (None, {"reasoning_content": "想"}, 1),
    ],
)  # fmt: skip
def test_thinking_that_a_template_has_no_place_for_is_counted(template, answer, number):
    tokenizer = tokenizer_with(template, eos="<|user|>")
    conversation = conversation_of([QUESTION, {**ANSWER, **answer}])
    counts = build_examples([conversation], tokenizer, max_length=512).counts
    assert counts.left_out_reasoning == number
    assert ("1 thinking texts left out" in str(counts)) == bool(number)


def test_texts_are_found_as_templates_trim_and_escape_them_and_only_in_order():
    messages = conversation_of(
        [{"role": "system", "content": " s "}, {"role": "user", "content": 'a "b"\nc '}, ANSWER]
    ).messages
    assert left_out(r'{"a \"b\"\nc"} s 二十度', messages, ()) == []
    assert left_out('s 二十度 a "b"\nc', messages, ()) == [
        "the content of message 3 (assistant)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("messages", "tools", "lost"),
    [
        ([{"role": "system", "content": "你是客服"}, QUESTION], None, "the system message"),
        ([QUESTION], TOOLS, "the tools"),
        ([QUESTION, call(), RESULT], None, "the call of 'weather'"),
        ([QUESTION, ANSWER, {"role": "user", "content": "好"}], None, "the content of message 2"),
    ],
)
def test_a_prompt_is_refused_too_where_the_template_leaves_a_part_of_it_out(messages, tools, lost):
    """Or a chat, a served request or an evaluation would ask without it, and say nothing."""
    users = (
        "{% for m in messages if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(DataError, match=f"does not render {lost}"):
        generation_prompt(messages, tokenizer_with(users), tools)
