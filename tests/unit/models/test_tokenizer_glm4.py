"""GLM-4's tokenizer against the original's recorded ids, and over a small vocabulary made here."""

import copy
import json
import pickle

import pytest
from recorded import check_recorded_texts, recorded_chat, recorded_texts
from transformers import AutoTokenizer
from vocabularies import write_ranks

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_tiktoken import ChatGLM4Tokenizer
from glmforge.models.registration import register_models
from glmforge.models.tokenizers import load_tokenizer, register_tokenizers

NAME = "glm-4-9b-chat"


@pytest.fixture
def original(real_tokenizer):
    return real_tokenizer(NAME)


@pytest.fixture
def chat(shared):
    return recorded_chat(shared, NAME)


@pytest.fixture
def rows(shared):
    return recorded_texts(shared, NAME)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_ranks(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def small(directory):
    return load_tokenizer(directory)


def test_every_recorded_text_gives_the_original_ids_and_text(original, rows):
    check_recorded_texts(original, rows)


def test_special_tokens_and_left_padding_are_the_originals(original, chat):
    for row in chat["texts"]:
        assert row["ids"] == original(row["text"])["input_ids"]
        assert row["decoded"] == original.decode(row["ids_nospecial"])
    assert chat["left_pad"] == dict(original(chat["left_pad_texts"], padding=True))
    known = {name: index for name, index in chat["special_ids"].items() if index != "KeyError"}
    assert known == {name: original.convert_tokens_to_ids(name) for name in known}
    assert original.convert_tokens_to_ids("</s>") is None
    assert (chat["vocab_size"], chat["len"]) == (original.vocab_size, len(original))
    assert chat["pad"] == [original.pad_token, original.pad_token_id]
    assert chat["eos"] == [original.eos_token, original.eos_token_id]


@pytest.mark.parametrize("name", ["chat", "tool_chat"])
def test_dialogues_have_the_original_ids(original, chat, name):
    messages = chat[name]["messages"]
    prompt = name == "chat"
    got = original.apply_chat_template(messages, add_generation_prompt=prompt)
    assert chat[name]["ids"] == got["input_ids"]
    text = original.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
    assert chat[name]["text"] == text


def test_tools_given_apart_are_told_like_those_of_the_system_message(original, chat):
    system, *rest = chat["tool_chat"]["messages"]
    bare = [tool["function"] for tool in system["tools"]]
    for tools in (system["tools"], bare):
        got = original.apply_chat_template(rest, tools=tools, return_dict=False)
        assert chat["tool_chat"]["ids"] == got


def test_every_text_round_trips_as_content_and_keeps_control_spellings_text(original, rows):
    controls = set(original.control_ids.values())
    for row in rows:
        ids = original.encode_text(row["text"])
        assert controls.isdisjoint(ids)
        assert row["text"] == original.decode(ids)
        plain = original(row["text"], add_special_tokens=False, split_special_tokens=True)
        assert ids == plain["input_ids"]


def test_control_spellings_in_a_dialogue_stay_text(small):
    spelled = "".join(small.control_ids)
    tools = [{"name": spelled, "description": spelled}]
    ids = small.apply_chat_template(
        [{"role": "system", "content": spelled}, {"role": "user", "content": spelled}],
        tools=tools,
        add_generation_prompt=True,
        return_dict=False,
    )
    names = ["[gMASK]", "<sop>", "<|system|>", "<|system|>", "<|user|>", "<|assistant|>"]
    assert small.convert_tokens_to_ids(names) == [i for i in ids if i >= small.vocab_size]


def test_control_ids_follow_the_ranks(small):
    count = small.vocab_size
    assert list(range(count, count + 14)) == list(small.control_ids.values())
    assert count + 14 == len(small) == len(small.get_vocab())
    assert small("abc你好")["input_ids"][:2] == [count + 2, count + 4]
    tokens = small.tokenize("abc 你好")
    assert all(isinstance(token, str) for token in tokens)
    assert small.convert_tokens_to_string(tokens) == "abc 你好"
    pair = small("ab", "ab")["input_ids"]
    assert [count + 2, count + 4, *small.encode_text("ab") * 2, count] == pair


def test_decode_separates_control_tokens_unless_told_not_to(small):
    ids = small("[gMASK]<sop>ab<|user|>", add_special_tokens=False)["input_ids"]
    assert small.decode(ids) == "[gMASK] <sop> ab <|user|>"
    assert small.decode(ids, spaces_between_special_tokens=False) == "[gMASK]<sop>ab<|user|>"
    assert small.decode(ids, skip_special_tokens=True) == "ab"
    assert small.decode([0xE5]) == "\ufffd"


def test_saved_pickled_and_copied_tokenizers_are_the_same(small, directory, tmp_path):
    small.save_pretrained(tmp_path)
    same = (directory / "tokenizer.model").read_bytes()
    assert same == (tmp_path / "tokenizer.model").read_bytes()
    text = "<|user|>\n你好 the abc"
    tools = [{"name": "f"}]
    others = [load_tokenizer(tmp_path), pickle.loads(pickle.dumps(small)), copy.deepcopy(small)]
    for other in others:
        assert small(text) == other(text)
        assert small.get_vocab() == other.get_vocab()
        dialogue = [{"role": "user", "content": text}]
        assert small.apply_chat_template(dialogue, tools) == other.apply_chat_template(
            dialogue, tools
        )


def test_auto_tokenizer_opens_the_directory_and_runs_none_of_its_code(directory, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    keys = {"ffn_hidden_size": 8, "kv_channels": 4, "num_layers": 1, "padded_vocab_size": 512}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "chatglm", "_name_or_path": "glm-4-9b", **keys})
    )
    (tmp_path / "tokenization_chatglm.py").write_text("raise SystemExit('code of a directory ran')")
    register_models()
    register_tokenizers()
    for options in ({}, {"trust_remote_code": True}):
        assert type(AutoTokenizer.from_pretrained(tmp_path, **options)) is ChatGLM4Tokenizer


def test_wrong_tools_and_missing_templates_are_named(small, directory, tmp_path):
    question = [{"role": "user", "content": "ab"}]
    with pytest.raises(ModelError, match='tool 1 is "g", not an object'):
        small.apply_chat_template(question, tools=[{"name": "f"}, "g"])
    (tmp_path / "tokenizer.model").write_bytes((directory / "tokenizer.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ChatGLM4Tokenizer"}')
    bare = load_tokenizer(tmp_path)
    assert bare.encode_text("abc") == small.encode_text("abc")
    with pytest.raises(ModelError, match="chat_template"):
        bare.apply_chat_template(question, tools=[{"name": "f"}])


def test_damaged_vocabularies_and_ids_that_do_not_fit_are_named(directory, tmp_path):
    whole = (directory / "tokenizer.model").read_bytes()
    settings = {"tokenizer_class": "ChatGLM4Tokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for cut in (whole[:-3], whole[:200], whole.replace(b" 7\n", b" x\n")):
        (tmp_path / "tokenizer.model").write_bytes(cut)
        with pytest.raises(ModelError, match=r"tokenizer\.model.*download it again"):
            load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(whole)
    settings["added_tokens_decoder"] = {"9999": {"content": "<|user|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"'<\|user\|>' the id 9999"):
        load_tokenizer(tmp_path)
