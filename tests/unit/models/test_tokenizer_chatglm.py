"""ChatGLM-6B's tokenizer against the original's recorded ids, both published vocabularies."""

import copy
import json
import pickle

import pytest
from recorded import check_recorded_texts, recorded_chat, recorded_texts
from sentencepiece import sentencepiece_model_pb2
from vocabularies import ICE_CONTROLS, train, write_unigram

from glmforge.errors import ModelError
from glmforge.models.chatglm.tokenization import read_blanks, write_blanks
from glmforge.models.tokenizers import load_tokenizer

NAME = "chatglm-6b"


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
    return write_unigram(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def small(directory):
    return load_tokenizer(directory)


def test_every_recorded_text_gives_the_original_ids_and_text(original, rows):
    check_recorded_texts(original, rows)


def test_special_tokens_pairs_and_left_padding_are_the_originals(original, chat):
    for row in chat["texts"]:
        assert row["ids"] == original(row["text"])["input_ids"]
        assert row["decoded"] == original.decode(row["ids_nospecial"])
    assert chat["pair"]["ids"] == original(chat["pair"]["a"], chat["pair"]["b"])["input_ids"]
    padded = original(chat["left_pad_texts"], padding=True)
    assert chat["left_pad"]["input_ids"] == padded["input_ids"]
    assert padded["attention_mask"] == [[0] * 4 + [1] * 4, [1] * 8]
    expected = chat["special_ids"]
    assert expected == {token: original.convert_tokens_to_ids(token) for token in expected}
    assert chat["vocab_size"] == original.vocab_size == len(original)
    for name in ("pad", "eos", "unk"):
        got = [getattr(original, f"{name}_token"), getattr(original, f"{name}_token_id")]
        assert chat[name] == got


def test_dialogues_have_the_original_ids(original, chat):
    turns = chat["chat"]["prompt_text"].split("[Round ")[1:]
    messages = []
    for turn in turns:
        _, question, answer, *_ = [*turn.split("\n"), ""]
        messages.append({"role": "user", "content": question.removeprefix("问：")})
        messages.append({"role": "assistant", "content": answer.removeprefix("答：")})
    messages.pop()
    got = original.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert chat["chat"]["ids"] == got
    single = original.apply_chat_template(messages[:1], return_dict=False)
    assert original(messages[0]["content"])["input_ids"] == single
    answered = original.apply_chat_template(messages[:2], return_dict=False)
    answer = original.encode_text(messages[1]["content"])
    assert [*single, *answer, original.eos_token_id] == answered


def test_the_first_vocabulary_gives_the_same_ids_after_its_image_tokens(
    shared, original, rows, tmp_path
):
    proto = sentencepiece_model_pb2.ModelProto.FromString(
        (shared / "tokenizers/chatglm-6b/ice_text.model").read_bytes()
    )
    del proto.pieces[130_000:]
    proto.trainer_spec.byte_fallback = False
    (tmp_path / "ice_text.model").write_bytes(proto.SerializeToString())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ChatGLMTokenizer"}')
    old = load_tokenizer(tmp_path)
    texts = [row["text"] for row in rows]
    expected = [[index + 20_000 for index in row["ids"]] for row in rows]
    assert expected == old(texts, add_special_tokens=False)["input_ids"]
    assert [row["decoded"] for row in rows] == old.batch_decode(expected)
    names = ["[MASK]", "[gMASK]", "<sop>", "<eop>", "<pad>"]
    assert old.convert_tokens_to_ids(names) == [150_000, 150_001, 150_004, 150_005, 20_003]
    assert len(old) == 150_344
    old.save_pretrained(tmp_path / "saved")
    saved = (tmp_path / "saved/ice_text.model").read_bytes()
    assert (tmp_path / "ice_text.model").read_bytes() == saved
    assert expected[:9] == load_tokenizer(tmp_path / "saved").encode_texts(texts[:9])


def test_config_json_tells_the_vocabularies_apart_where_the_tokenizer_config_does_not(
    directory, small, tmp_path
):
    (tmp_path / "ice_text.model").write_bytes((directory / "ice_text.model").read_bytes())
    for first_id, offset in ((130_004, 0), (150_004, 20_000)):
        (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": first_id}))
        tokenizer = load_tokenizer(tmp_path)
        expected = [index + offset for index in small.encode_text("您好")]
        assert expected == tokenizer.encode_text("您好")


def test_blanks_are_pieces_of_their_own():
    text = "a\tb\n" + " " * 83 + "c d"
    assert write_blanks(text) == "a<|tab|>b<n><|blank_80|><|blank_3|>c d"
    assert read_blanks(write_blanks(text)) == text
    assert read_blanks("<|blank_81|><|blank_1|>") == "<|blank_81|><|blank_1|>"


def test_control_spellings_are_ids_for_the_tokenizer_and_text_for_content(small):
    control = small.control_ids
    hello = small.encode_text("您好")
    parsed = small("您好 <sop> 您好<eop>", add_special_tokens=False)["input_ids"]
    assert [*hello, control["<sop>"], *hello, control["<eop>"]] == parsed
    everything = "".join(control)
    for ids in (
        small.encode_text(everything),
        small(everything, add_special_tokens=False, split_special_tokens=True)["input_ids"],
    ):
        assert set(control.values()).isdisjoint(ids)
    ids = small.apply_chat_template(
        [{"role": "user", "content": everything}, {"role": "assistant", "content": everything}],
        return_dict=False,
    )
    expected = [control["[gMASK]"], control["<sop>"], control["<eop>"]]
    assert expected == [index for index in ids if index in control.values()]


def test_saved_pickled_and_copied_tokenizers_are_the_same(small, directory, tmp_path):
    small.save_pretrained(tmp_path)
    same = (directory / "ice_text.model").read_bytes()
    assert same == (tmp_path / "ice_text.model").read_bytes()
    text = "您好 <sop>\n  Hello, you"
    others = [load_tokenizer(tmp_path), pickle.loads(pickle.dumps(small)), copy.deepcopy(small)]
    for other in others:
        assert type(small) is type(other)
        assert small(text) == other(text)
        assert small.get_vocab() == other.get_vocab()
        assert small.decode(small(text)["input_ids"]) == other.decode(small(text)["input_ids"])


def test_added_tokens_are_found_and_written(directory):
    tokenizer = load_tokenizer(directory)
    before = len(tokenizer)
    tokenizer.add_tokens(["<think>"])
    ids = tokenizer("您好<think>您好", add_special_tokens=False)["input_ids"]
    hello = tokenizer.encode_text("您好")
    assert [*hello, before, *hello] == ids
    assert tokenizer.decode(ids) == "您好<think>您好"


def test_what_the_format_cannot_say_is_named(small, tmp_path):
    with pytest.raises(ModelError, match="role 'system'"):
        small.apply_chat_template([{"role": "system", "content": "a"}])
    with pytest.raises(ModelError, match="message 0 has role 'assistant'"):
        small.apply_chat_template([{"role": "assistant", "content": "a"}])
    with pytest.raises(ModelError, match="no tools"):
        small.apply_chat_template([{"role": "user", "content": "a"}], tools=[{"name": "f"}])
    train(
        tmp_path / "ice_text.model",
        vocab_size=90,
        control_symbols=ICE_CONTROLS,
        hard_vocab_limit=False,
    )
    with pytest.raises(ModelError, match="not the vocabulary of ChatGLM-6B"):
        load_tokenizer(tmp_path)
