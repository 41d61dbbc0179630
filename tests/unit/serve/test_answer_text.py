"""An answer while it comes: whole characters, stop strings, tool calls; joined, the whole text."""

import random

import pytest

from glmforge.models import load_tokenizer
from glmforge.models.stock_tokenizer import stock_tokenizer
from glmforge.serve.answer_text import AnswerText, TokenText
from glmforge.tool_calls import ToolCall
from small_models import TINY_MODEL

TEXT = "你好，世界！😀👩‍🚀 naïve café — 龘 𠮷野家\n\n  - code:\tx = 1\n答：тест العربية "
FAMILIES = ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TINY_MODEL)


def pieces_of(tokenizer, ids):
    text = TokenText(tokenizer)
    return [text.push(token) for token in ids] + [text.finish()]


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_of_any_family_join_to_what_decoding_at_once_gives(shared, family):
    """Also for ids at random, control tokens among them; no piece shows half a character."""
    tokenizer = load_tokenizer(shared / "tokenizers" / family)
    ids = tokenizer.encode_text(TEXT)
    pieces = pieces_of(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)
    draw = random.Random(0)
    for _ in range(200):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(1, 30))]
        whole = tokenizer.decode(ids).rstrip("\ufffd")
        assert "".join(pieces_of(tokenizer, ids)).rstrip("\ufffd") == whole, ids


def test_a_character_of_several_tokens_comes_whole_and_a_cut_one_not_at_all(tokenizer):
    """Bytes of an emoji stand in tokens of their own."""
    ids = tokenizer.encode_text("a😀")
    assert len(ids) >= 5
    pieces = pieces_of(tokenizer, ids)
    assert [piece for piece in pieces if piece][-1] == "😀"
    assert "".join(pieces_of(tokenizer, ids[:-1])) == "a"


def test_stock_tokenizers_have_made_up_control_tokens_left_out(tokenizer):
    """Else the answer, given back as history, would be refused or read as control tokens."""
    stock = stock_tokenizer(tokenizer)
    made_up = stock.convert_tokens_to_ids("<|system|>")
    ids = [*stock("你好")["input_ids"], made_up, *stock("吗")["input_ids"]]
    assert "".join(pieces_of(stock, ids)).replace(" ", "") == "你好吗"


def shown(tokenizer, text, **options):
    """(pieces, text, call, stopped) of an answer that is `text`."""
    answer = AnswerText(tokenizer, **options)
    pieces = []
    for token in tokenizer.encode_text(text):
        pieces.append(answer.push(token))
        if answer.stopped:
            break
    rest, call = answer.finish()
    return [piece for piece in [*pieces, rest] if piece], answer.text, call, answer.stopped


@pytest.mark.parametrize("text", ["\n 你好 世界 \n ", "one\ntwo", "", " \n"])
def test_white_space_around_an_answer_is_not_shown(tokenizer, text):
    """Neither piece by piece nor in the end; inside it stays."""
    pieces, whole, call, stopped = shown(tokenizer, text)
    assert "".join(pieces) == whole == text.strip()
    assert (call, stopped) == (None, False)


@pytest.mark.parametrize(
    ("text", "stops", "expected", "stopped"),
    [
        ("one END two", ["END"], "one", True),
        ("one ENDless", ["ENDX"], "one ENDless", False),
        ("aab aaab", ["aaab"], "aab", True),
        ("EN", ["END"], "EN", False),
        ("x 停止 y", ["停止", "y"], "x", True),
        ("first\n\nsecond", ["\n\n"], "first", True),
    ],
)
def test_nothing_from_a_stop_string_on_is_shown(tokenizer, text, stops, expected, stopped):
    """What may be its beginning waits until that is known."""
    pieces, whole, _, ended = shown(tokenizer, text, stops=stops)
    assert "".join(pieces) == whole == expected
    assert ended is stopped


CHATGLM3 = "get_weather\n```python\ntool_call(city='杭州', days=2, flags=[True, None])\n```"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (CHATGLM3, '{"city": "杭州", "days": 2, "flags": [true, null]}'),
        ('get_weather\n{"city": "杭州"}', '{"city": "杭州"}'),
        ("get_weather\n{}", "{}"),
        ("get_weather\n```python\ntool_call()\n```", "{}"),
    ],
)
def test_a_call_is_read_in_both_spellings_and_never_shown_as_text(tokenizer, text, arguments):
    """Its name on the first line, its arguments as JSON."""
    pieces, whole, call, _ = shown(tokenizer, text, tool_names=["get_weather", "get_time"])
    assert call == ToolCall(name="get_weather", arguments=arguments)
    assert (pieces, whole) == ([], "")


@pytest.mark.parametrize(
    "text",
    [
        "get_weather\n{not json}",
        "get_weather\n[1]",
        "get_weather\n```python\ntool_call(__import__('os').getcwd())\n```",
        "get_weather\n```python\nother(city='x')\n```",
        "get_weather\n```python\ntool_call('x')\n```",
        "get_weather",
        "get_we",
        "other_tool\n{}",
        '\nget_weather\n{"city": "x"}',
        "get it\nhere",
    ],
)
def test_what_is_no_call_of_a_known_tool_stays_text(tokenizer, text):
    """Nothing is run, guessed or lost."""
    pieces, whole, call, _ = shown(tokenizer, text, tool_names=["get_weather"])
    assert call is None
    assert "".join(pieces) == whole == text.strip()


def test_without_tools_a_line_like_a_name_is_shown_at_once(tokenizer):
    """Only a request with tools waits for the first line."""
    pieces, whole, call, _ = shown(tokenizer, CHATGLM3)
    assert len(pieces) > 5
    assert (whole, call) == (CHATGLM3, None)
