"""A ChatGLM3 tokenizer over a small SentencePiece vocabulary made here: nothing is hard-coded."""

import pytest
import torch
from transformers import AutoTokenizer
from vocabularies import SENTENCES, write_bpe

from glmforge.errors import ModelError
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM2Tokenizer, ChatGLM3Tokenizer
from glmforge.models.tokenizers import load_tokenizer, register_tokenizers


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def tokenizer(directory):
    return load_tokenizer(directory)


def test_control_ids_follow_the_pieces(tokenizer):
    pieces = tokenizer.sp_model.get_piece_size()
    names = ["[MASK]", "[gMASK]", "[sMASK]", "sop", "eop"]
    names += ["<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
    assert list(range(pieces, pieces + 9)) == tokenizer.convert_tokens_to_ids(names)
    assert pieces + 9 == tokenizer.vocab_size == len(tokenizer)
    assert list(range(pieces + 9)) == sorted(tokenizer.get_vocab().values())
    assert names == tokenizer.convert_ids_to_tokens(range(pieces, pieces + 9))


def test_dialogue_ids_are_made_of_parts_encoded_apart(tokenizer):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "您好"}]
    control = tokenizer.control_ids
    line = tokenizer.sp_model.encode("\n")
    expected = [control["[gMASK]"], control["sop"]]
    expected += [control["<|system|>"], *line, *tokenizer.sp_model.encode("S")]
    expected += [control["<|user|>"], *line, *tokenizer.sp_model.encode("您好")]
    expected += [control["<|assistant|>"]]
    got = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert expected == got["input_ids"]
    assert list(range(len(expected))) == got["position_ids"]


def test_batches_of_dialogues_pad_on_the_left(tokenizer):
    short = [{"role": "user", "content": "您好"}]
    long = [{"role": "user", "content": "杭州的天气怎么样？"}]
    got = tokenizer.apply_chat_template([short, long], padding=True, return_tensors="pt")
    single = tokenizer.apply_chat_template(short, return_tensors="pt")["input_ids"][0]
    pads = got["input_ids"].shape[1] - len(single)
    assert pads > 0
    assert torch.equal(single, got["input_ids"][0, pads:])
    assert [0] * pads + [1] * len(single) == got["attention_mask"][0].tolist()
    assert [0] * pads + list(range(len(single))) == got["position_ids"][0].tolist()


def test_outputs_that_do_not_exist_are_refused_not_left_out(tokenizer):
    with pytest.raises(ValueError, match="return_offsets_mapping"):
        tokenizer("您好", return_offsets_mapping=True)
    with pytest.raises(TypeError, match="expected texts, got NoneType"):
        tokenizer.encode_texts(["您好", None])


def test_many_threads_give_the_ids_of_one(tokenizer):
    texts = [f"{sentence} {number}" for number in range(300) for sentence in SENTENCES[:4]]
    assert sum(map(len, texts)) > 20_000
    assert [tokenizer.encode_text(text) for text in texts] == tokenizer.encode_texts(texts)


def test_truncation_padding_and_masks_follow_the_call(tokenizer):
    text = "杭州的天气怎么样？"
    full = tokenizer(text)["input_ids"]
    cut = tokenizer(text, truncation=True, max_length=6)
    assert full[:6] == cut["input_ids"]
    assert list(range(6)) == cut["position_ids"]
    wide = tokenizer([text], padding="max_length", max_length=40, padding_side="right")
    assert full + [0] * (40 - len(full)) == wide["input_ids"][0]
    assert [*range(len(full))] + [0] * (40 - len(full)) == wide["position_ids"][0]
    several = tokenizer([text, "您好"], padding=True, pad_to_multiple_of=8)
    assert len(several["input_ids"][1]) % 8 == 0
    extra = tokenizer([text], return_special_tokens_mask=True, return_length=True)
    assert [len(full)] == extra["length"]
    assert [full] == extra["input_ids"]
    assert [1, 1] + [0] * (len(full) - 2) == extra["special_tokens_mask"][0]
    assert [] == tokenizer([])["input_ids"] == tokenizer([], return_length=True)["input_ids"]


def test_words_ids_and_tensors_are_accepted(tokenizer):
    ids = tokenizer.encode_text("您好")
    assert ids == tokenizer(ids, add_special_tokens=False)["input_ids"]
    assert [ids, []] == tokenizer([ids, []], add_special_tokens=False)["input_ids"]
    words = tokenizer(["您好", "您好"], is_split_into_words=True, add_special_tokens=False)
    assert ids + ids == words["input_ids"]
    assert tokenizer.decode(torch.tensor(ids)) == "您好"
    assert tokenizer.batch_decode(torch.tensor([ids, ids])) == ["您好", "您好"]
    assert ids == tokenizer.convert_tokens_to_ids(tokenizer.tokenize("您好"))
    assert tokenizer.convert_tokens_to_string(tokenizer.tokenize("您好")) == "您好"


def test_decode_writes_or_skips_control_tokens(tokenizer):
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "您好"}], return_dict=False)
    ids.append(tokenizer.eos_token_id)
    assert tokenizer.decode(ids) == "[gMASK]sop<|user|>\n 您好"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "\n 您好"
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    assert tokenizer.decode([]) == ""


def test_lone_surrogates_become_the_replacement_character(tokenizer):
    assert tokenizer.encode_text("a\ufffd") == tokenizer.encode_text("a\ud83d")


def test_added_tokens_get_free_ids_are_found_and_survive_saving(directory, tmp_path):
    tokenizer = load_tokenizer(directory)
    before = len(tokenizer)
    assert tokenizer.add_tokens(["<think>", "</think>"]) == 2
    assert tokenizer.add_special_tokens({"extra_special_tokens": ["<|extra|>"]}) == 1
    assert before + 3 == len(tokenizer)
    ids = tokenizer("<think>您好</think><|extra|>", add_special_tokens=False)["input_ids"]
    hello = tokenizer.encode_text("您好")
    assert [before, *hello, before + 1, before + 2] == ids
    assert before not in tokenizer.encode_text("<think>")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>您好</think>"
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert ids == again("<think>您好</think><|extra|>", add_special_tokens=False)["input_ids"]
    assert again.decode(ids, skip_special_tokens=True) == "<think>您好</think>"
    assert before + 3 == len(again)


def test_auto_tokenizer_opens_it_with_a_config_beside_it(directory, tmp_path):
    register_tokenizers()
    register_tokenizers()
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert ChatGLM3Tokenizer is type(AutoTokenizer.from_pretrained(tmp_path))


def test_config_json_may_override_the_generation(directory, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"glmforge_family": "chatglm2"}')
    assert ChatGLM2Tokenizer is type(load_tokenizer(tmp_path))


def test_missing_and_damaged_files_are_named(directory, tmp_path):
    with pytest.raises(ModelError, match="no such directory"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ChatGLMTokenizer"}')
    with pytest.raises(ModelError, match=r"no tokenizer\.model"):
        load_tokenizer(tmp_path)
    whole = (directory / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"tokenizer\.model: .*download it again"):
        load_tokenizer(tmp_path)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tmp_path / "tokenizer.model").write_bytes(pointer)
    with pytest.raises(ModelError, match="git lfs pull"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        load_tokenizer(tmp_path)
