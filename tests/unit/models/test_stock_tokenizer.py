"""The fast tokenizers of exports give the original's ids, in text and in dialogues."""

import itertools
import json
import random

import pytest
from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer
from vocabularies import SENTENCES, write_bpe, write_ranks, write_unigram

from glmforge.errors import ModelError
from glmforge.models import load_tokenizer
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from glmforge.models.stock_templates import PART_BREAK
from glmforge.models.stock_tokenizer import stock_tokenizer
from glmforge.models.vendor_form import rebuild_vocabulary

PUBLISHED = ["chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"]
WEATHER = {
    "name": "get_weather",
    "description": "查询天气",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, shared, tmp_path_factory):
    """(name, our tokenizer, the stock one as stock transformers opens it)."""
    ours = load_tokenizer(shared / "tokenizers" / request.param)
    directory = tmp_path_factory.mktemp("stock")
    stock_tokenizer(ours).save_pretrained(directory)
    return request.param, ours, AutoTokenizer.from_pretrained(directory)


@pytest.fixture(params=["chatglm2", "chatglm3", "glm4"])
def small(request, tmp_path):
    """The same pair of a small vocabulary made here."""
    if request.param == "glm4":
        ours = load_tokenizer(write_ranks(tmp_path))
    else:
        own = ChatGLM2Tokenizer if request.param == "chatglm2" else ChatGLM3Tokenizer
        ours = own(str(write_bpe(tmp_path) / "tokenizer.model"))
    stock_tokenizer(ours).save_pretrained(tmp_path / "stock")
    return ours, AutoTokenizer.from_pretrained(tmp_path / "stock")


def spelled(stock, text):
    return any(token.content in text for token in stock.added_tokens_decoder.values())


def dialogues_of(family):
    plain = [
        {"role": "user", "content": "你好"},
        {"role": "assistant", "content": " 您好！\n\n请问？ "},
        {"role": "user", "content": "  sop and eop"},
    ]
    yield plain, None
    yield plain[:1], None
    if family == "chatglm2":
        yield plain[:2], None
        return
    yield [{"role": "system", "content": "短"}, *plain, {"role": "assistant", "content": ""}], None
    called = [
        {"role": "assistant", "metadata": "get_weather", "content": "call()"},
        {"role": "tool", "content": '{"temp": 20}'},
    ]
    call = {"name": "get_weather", "arguments": {"city": "杭州", "n": [1, None, 2.5], "q": "it's"}}
    other = {"name": "now", "arguments": {}}
    asked = {"role": "assistant", "content": None, "tool_calls": [{"function": call}, other]}
    told = {"role": "tool", "content": '{"temp": 20}', "tool_call_id": "1"}
    yield [*plain, asked, told], None
    yield [*plain, {**asked, "content": "看一下。"}, told], [WEATHER]
    yield [*plain, {"role": "assistant", "content": "", "function_call": call}], None
    for tools in ([WEATHER], [{"type": "function", "function": WEATHER}]):
        yield [*plain, *called], tools
        yield [{"role": "system", "content": "短", "tools": tools}, *plain], None
        yield [{"role": "system", "content": "短"}, *plain], tools


def test_every_recorded_text_gives_the_originals_ids(shared, published):
    """All 200, but where a control token is spelled, which stock machinery always finds."""
    name, _, stock = published
    with (shared / f"golden/tokenizer_{name}.jsonl").open(encoding="utf-8", newline="\n") as file:
        rows = [json.loads(line) for line in file]
    plain = [row for row in rows if name.startswith("glm-4") or not spelled(stock, row["text"])]
    assert len(plain) >= 190
    for row in plain:
        assert stock(row["text"], add_special_tokens=False)["input_ids"] == row["ids"]
    for row in rows:
        if not spelled(stock, row["text"]):
            assert stock.decode(row["ids"]) == row["decoded"]


def test_special_tokens_pairs_and_left_padding_are_the_originals(shared, published):
    """The start of a text, the form of a pair, padding on the left."""
    name, _, stock = published
    chat = json.loads((shared / f"golden/chat_{name}.json").read_text(encoding="utf-8"))
    for row in chat["texts"]:
        if name.startswith("glm-4") or not spelled(stock, row["text"]):
            assert stock(row["text"])["input_ids"] == row["ids"]
    padded = stock(chat["left_pad_texts"], padding=True)
    assert padded["input_ids"] == chat["left_pad"]["input_ids"]
    assert padded["attention_mask"] == chat["left_pad"]["attention_mask"]
    if isinstance(chat["pair"], dict):
        assert stock(chat["pair"]["a"], chat["pair"]["b"])["input_ids"] == chat["pair"]["ids"]


def test_recorded_dialogues_have_the_originals_ids(shared, published):
    """The chat_*.json of the three generations, tools included."""
    name, _, stock = published
    facts = json.loads((shared / f"golden/chat_{name}.json").read_text(encoding="utf-8"))
    thanks = {"role": "user", "content": "谢谢"}
    if name == "glm-4-9b-chat":
        cases = [(facts["chat"]["messages"], True, facts["chat"]["ids"])]
        cases.append((facts["tool_chat"]["messages"], False, facts["tool_chat"]["ids"]))
    elif name == "chatglm3-6b":
        texts = itertools.chain.from_iterable(facts["chat"]["history"])
        turns = zip(("user", "assistant") * 9, texts)
        history = [{"role": role, "content": text} for role, text in turns]
        cases = [([*history, thanks], True, facts["chat"]["ids_from_chat_input"])]
        cases.append(([*facts["chat"]["tool_history"], thanks], True, facts["chat"]["tool_ids"]))
    else:
        texts = ["你好", "你好👋！有什么可以帮助你的吗？", "介绍一下杭州", "杭州是浙江省省会。"]
        history = [{"role": r, "content": t} for r, t in zip(("user", "assistant") * 2, texts)]
        cases = [([*history, thanks], True, facts["chat"]["ids"])]
    for messages, prompt, ids in cases:
        options = {"add_generation_prompt": prompt, "return_dict": False}
        assert stock.apply_chat_template(messages, **options) == ids


def random_texts():
    """Cut and shuffled from real text and odd characters: 2,000 of them."""
    draw = random.Random(5)
    odd = "ﾃｽﾄ０１２…—「」\t\r\n  é́ 👩‍👩‍👧🇨🇳 \x00\u2028 ∀x∈ℝ def f(): {}[]"
    pool = "".join(SENTENCES) + odd * 3
    return ["".join(draw.choices(pool, k=draw.randint(1, 40))) for _ in range(2000)]


def test_random_texts_give_our_ids(published):
    """Texts that no one has written, so that every fallback is used."""
    _, ours, stock = published
    texts = random_texts()
    assert stock(texts, add_special_tokens=False)["input_ids"] == ours.encode_texts(texts)


def test_dialogues_give_our_ids(small):
    """Blanks at the ends, empty answers, tools in each place where they may stand."""
    ours, stock = small
    for messages, tools in dialogues_of(ours.family):
        for prompt in (False, True):
            options = {"tools": tools, "add_generation_prompt": prompt, "return_dict": False}
            expected = ours.apply_chat_template(messages, **options)
            assert stock.apply_chat_template(messages, **options) == expected


def test_what_a_template_cannot_say_is_an_error(small):
    """An unknown role, turns out of order for ChatGLM2: as ours."""
    ours, stock = small
    wrong = [[{"role": "narrator", "content": "x"}]]
    wrong += [[{"role": "user", "content": content}] for content in (None, ["x"], 5)]
    wrong.append([{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}])
    question = {"role": "user", "content": "x"}
    wrong.append([question, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}])
    if ours.family == "chatglm2":
        wrong.append([{"role": "assistant", "content": "x"}])
        call = {"name": "f", "arguments": {}}
        wrong.append([question, {"role": "assistant", "content": "", "tool_calls": [call]}])
    for messages in wrong:
        with pytest.raises(TemplateError):
            stock.apply_chat_template(messages)
        with pytest.raises(ModelError):
            ours.apply_chat_template(messages)


def test_arguments_as_text_are_refused_where_they_are_written_one_by_one(small):
    """Jinja reads no JSON; GLM-4 writes it as it is."""
    ours, stock = small
    if ours.family == "chatglm2":
        return
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    expected = ours.apply_chat_template(messages, return_dict=False)
    if ours.family == "glm4":
        assert stock.apply_chat_template(messages, return_dict=False) == expected
    else:
        with pytest.raises(TemplateError, match="give them as an object"):
            stock.apply_chat_template(messages)


def test_sop_inside_words_stays_text(small):
    """The reason for the other name of that token."""
    ours, stock = small
    for text in ("philosophy", "sop", "[MASK] eop"):
        if ours.family != "glm4":
            ids = stock(text, add_special_tokens=False)["input_ids"]
            assert ids == ours.encode_text(text)
    assert stock.convert_tokens_to_ids("<sop>") == ours.convert_tokens_to_ids(
        "<sop>" if ours.family == "glm4" else "sop"
    )


def test_users_own_tokens_keep_their_ids(tmp_path):
    """A token that was added to the vocabulary is added to the fast one."""
    ours = load_tokenizer(write_bpe(tmp_path))
    ours.add_tokens(["<order>"])
    stock = stock_tokenizer(ours)
    assert stock.convert_tokens_to_ids("<order>") == ours.convert_tokens_to_ids("<order>")
    assert PART_BREAK not in stock.get_vocab()


def test_chatglm_6b_has_no_fast_tokenizer(tmp_path):
    """Its normaliser and blanks have no counterpart; the error says what to do."""
    with pytest.raises(ModelError, match="keep the chatglm layout"):
        stock_tokenizer(load_tokenizer(write_unigram(tmp_path)))


def test_a_vocabulary_file_is_rebuilt_from_the_fast_tokenizer(published, tmp_path):
    """The original's pieces, kinds and ids; GLM-4's file byte for byte."""
    name, ours, stock = published
    rebuild_vocabulary(stock, ours.family, tmp_path / "tokenizer.model")
    if name == "glm-4-9b-chat":
        ours.save_vocabulary(str(tmp_path), "ours")
        written = (tmp_path / "ours-tokenizer.model").read_bytes()
        assert (tmp_path / "tokenizer.model").read_bytes() == written
        return
    again = type(ours)(str(tmp_path / "tokenizer.model"))
    for index in range(ours.sp_model.get_piece_size()):
        for fact in ("id_to_piece", "is_byte", "is_control", "is_unknown"):
            assert getattr(again.sp_model, fact)(index) == getattr(ours.sp_model, fact)(index)
    texts = random_texts()
    assert again.encode_texts(texts) == ours.encode_texts(texts)
