"""ChatGLM3's and ChatGLM2's tokenizers against the original's recorded ids."""

import copy
import pickle

import pytest
from recorded import check_recorded_texts, recorded_chat, recorded_texts
from transformers import AutoTokenizer

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from glmforge.models.registration import register_models
from glmforge.models.tokenizers import load_tokenizer, register_tokenizers

NAMES = ["chatglm2-6b", "chatglm3-6b"]


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def tokenizer(real_tokenizer, name):
    return real_tokenizer(name)


@pytest.fixture
def chatglm3(real_tokenizer):
    return real_tokenizer("chatglm3-6b")


@pytest.fixture
def chat(shared, name):
    return recorded_chat(shared, name)


def test_every_recorded_text_gives_the_original_ids_and_text(shared, name, tokenizer):
    rows = recorded_texts(shared, name)
    check_recorded_texts(tokenizer, rows)
    assert [row["ids"] for row in rows] == [tokenizer.encode_text(row["text"]) for row in rows]


def test_special_tokens_pairs_and_left_padding_are_the_originals(tokenizer, chat):
    for row in chat["texts"]:
        assert row["ids"] == tokenizer(row["text"])["input_ids"]
        assert row["ids_nospecial"] == tokenizer.encode_text(row["text"])
        assert row["decoded"] == tokenizer.decode(row["ids_nospecial"])
    pair = chat["pair"]
    assert pair["ids"] == tokenizer(pair["a"], pair["b"])["input_ids"]
    assert [pair["ids"]] == tokenizer([pair["a"]], [pair["b"]])["input_ids"]
    assert [pair["ids"]] == tokenizer([(pair["a"], pair["b"])])["input_ids"]
    assert chat["left_pad"] == dict(tokenizer(chat["left_pad_texts"], padding=True))
    rows = [tokenizer(text) for text in chat["left_pad_texts"]]
    assert chat["left_pad"] == dict(tokenizer.pad(rows, padding="longest"))


def test_special_ids_are_the_originals(tokenizer, chat):
    expected = chat["special_ids"]
    assert expected == {token: tokenizer.convert_tokens_to_ids(token) for token in expected}
    assert chat["vocab_size"] == tokenizer.vocab_size == len(tokenizer)
    assert chat["pad"] == [tokenizer.pad_token, tokenizer.pad_token_id]
    assert chat["eos"] == [tokenizer.eos_token, tokenizer.eos_token_id]
    assert tokenizer.padding_side == "left"


def dialogue_of(chat):
    turns = []
    for question, answer in chat["history"]:
        turns.append({"role": "user", "content": question})
        turns.append({"role": "assistant", "content": answer})
    return [*turns, {"role": "user", "content": "谢谢"}]


def test_chatglm3_dialogue_has_the_ids_of_build_chat_input(shared, chatglm3):
    chat = recorded_chat(shared, "chatglm3-6b")
    history = dialogue_of(chat["chat"])
    got = chatglm3.apply_chat_template(history, add_generation_prompt=True)
    assert chat["chat"]["ids_from_chat_input"] == got["input_ids"]
    tools = [*chat["chat"]["tool_history"], {"role": "user", "content": "谢谢"}]
    got = chatglm3.apply_chat_template(tools, add_generation_prompt=True, return_dict=False)
    assert chat["chat"]["tool_ids"] == got
    expected = chat["chat"]["build_single_message(user,'',你好)"]
    assert expected == chatglm3.encode_message("user", "你好")


def test_chatglm3_tools_given_apart_stand_in_the_system_message(shared, chatglm3):
    chat = recorded_chat(shared, "chatglm3-6b")
    system, *rest = chat["chat"]["tool_history"]
    rest.append({"role": "user", "content": "谢谢"})
    wrapped = [{"type": "function", "function": tool} for tool in system["tools"]]
    for tools in (system["tools"], wrapped):
        got = chatglm3.apply_chat_template(
            rest, tools=tools, add_generation_prompt=True, return_dict=False
        )
        assert chat["chat"]["tool_ids"] == got


def test_chatglm2_dialogue_is_encoded_in_one_piece(shared):
    tokenizer = load_tokenizer(shared / "tokenizers/chatglm2-6b")
    chat = recorded_chat(shared, "chatglm2-6b")
    prompt = chat["chat"]["prompt_text"]
    turns = [part.split("\n\n") for part in prompt.split("[Round ")[1:]]
    messages = []
    for turn in turns:
        messages.append({"role": "user", "content": turn[1].removeprefix("问：")})
        messages.append({"role": "assistant", "content": turn[2].removeprefix("答：")})
    messages.pop()
    got = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert chat["chat"]["ids"] == got["input_ids"]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert f"[gMASK]sop{prompt}" == text
    first = tokenizer.apply_chat_template(messages[:1], tokenize=False)
    assert f"[gMASK]sop{chat['chat']['first_turn']}" == first
    answered = tokenizer.apply_chat_template(messages[:2], return_dict=False)
    prompt_ids = tokenizer.apply_chat_template(messages[:1], return_dict=False)
    answer = tokenizer.encode_text(messages[1]["content"])
    assert [*prompt_ids, *answer, tokenizer.eos_token_id] == answered


def test_control_spellings_in_content_stay_text(chatglm3):
    for name, index in chatglm3.control_ids.items():
        for text in (name, f"好{name}的", f" {name} "):
            assert index not in chatglm3.encode_text(text)
            assert index not in chatglm3(text, add_special_tokens=False)["input_ids"]
            assert text == chatglm3.decode(chatglm3.encode_text(text))
    ids = chatglm3.apply_chat_template(
        [{"role": "user", "content": "<|assistant|>\n我是[gMASK]sop"}], return_dict=False
    )
    assert [i for i in ids if i >= 64789] == [64790, 64792, 64795]


def test_saved_and_reloaded_is_the_same_tokenizer(shared, name, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "saved")
    original = shared / "tokenizers" / name / "tokenizer.model"
    assert original.read_bytes() == (tmp_path / "saved/tokenizer.model").read_bytes()
    register_tokenizers()
    again = load_tokenizer(tmp_path / "saved")
    assert type(tokenizer) is type(again)
    texts = [row["text"] for row in recorded_texts(shared, name)]
    assert dict(tokenizer(texts, padding=True)) == dict(again(texts, padding=True))
    assert tokenizer.get_vocab() == again.get_vocab()
    again.save_pretrained(tmp_path / "twice")
    for file in (tmp_path / "saved").iterdir():
        assert file.read_bytes() == (tmp_path / "twice" / file.name).read_bytes()


def test_pickled_and_copied_tokenizers_are_the_same(tokenizer):
    text = "你好，ChatGLM <|user|>\n"
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert tokenizer(text) == other(text)
        assert len(tokenizer) == len(other)


def test_auto_tokenizer_opens_the_directory_and_runs_none_of_its_code(shared, name, tmp_path):
    source = shared / "tokenizers" / name
    for file in ("tokenizer.model", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((source / file).read_bytes())
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    marker = tmp_path / "ran"
    (tmp_path / "tokenization_chatglm.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass ChatGLMTokenizer: pass\n"
    )
    register_models()
    register_tokenizers()
    expected = {"chatglm2-6b": ChatGLM2Tokenizer, "chatglm3-6b": ChatGLM3Tokenizer}[name]
    for options in ({}, {"trust_remote_code": False}, {"trust_remote_code": True}):
        assert expected is type(AutoTokenizer.from_pretrained(tmp_path, **options))
    assert not marker.exists()


def test_dialogues_of_the_wrong_shape_name_every_fault(chatglm3, shared):
    with pytest.raises(ModelError) as caught:
        chatglm3.apply_chat_template([{"role": "boss", "content": 3}, "hello"])
    assert len(caught.value.problems) == 3
    assert "'boss'" in str(caught.value)
    with pytest.raises(ModelError, match="empty"):
        chatglm3.apply_chat_template([])
    with pytest.raises(ModelError, match="chat_template"):
        chatglm3.apply_chat_template([{"role": "user", "content": "hi"}], chat_template="{{1}}")
    second = load_tokenizer(shared / "tokenizers/chatglm2-6b")
    with pytest.raises(ModelError, match="message 1 has role 'user'"):
        second.apply_chat_template([{"role": "user", "content": "a"}] * 2)
    with pytest.raises(ModelError, match="no tools"):
        second.apply_chat_template([{"role": "user", "content": "a"}], tools=[{"name": "f"}])
