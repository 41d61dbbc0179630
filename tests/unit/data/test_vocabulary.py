"""The small vocabulary in ChatGLM3's file format."""

import hashlib

import pytest

from glmforge.data import encode_conversation, train_vocabulary
from glmforge.data.vocabulary import characters_per_token, evenly
from glmforge.errors import DataError
from glmforge.models import load_tokenizer

TEXTS = [
    f"您好，请问第{number}号订单什么时候发货？\n好的，我帮您查询一下物流信息，请稍等{word}。"
    for number in range(60)
    for word in ("片刻", "一会儿", "几分钟")
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return train_vocabulary(TEXTS, tmp_path_factory.mktemp("vocabulary"), 340)


def test_the_directory_opens_as_a_chatglm3_tokenizer_and_round_trips(directory):
    tokenizer = load_tokenizer(directory)
    assert tokenizer.family == "chatglm3"
    for text in (TEXTS[0], "  two  blanks\n\ttab 𠮷 👍 1234", "<|user|> </s>"):
        assert text == tokenizer.decode(tokenizer.encode_text(text))


def test_control_ids_follow_the_pieces(directory):
    tokenizer = load_tokenizer(directory)
    assert [340 + offset for offset in range(9)] == [
        tokenizer.convert_tokens_to_ids(token)
        for token in (
            "[MASK]", "[gMASK]", "[sMASK]", "sop", "eop",
            "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
        )
    ]  # fmt: skip


def test_a_dialogue_can_be_encoded_with_it(directory):
    tokenizer = load_tokenizer(directory)
    ids, labels = encode_conversation(
        [{"role": "user", "content": "您好"}, {"role": "assistant", "content": "请稍等"}],
        tokenizer,
    )
    assert ids[:3] == [341, 343, 346]
    assert labels[-1] == tokenizer.eos_token_id == 2


def test_training_twice_gives_the_same_bytes(directory, tmp_path):
    again = train_vocabulary(TEXTS, tmp_path / "again", 340)
    digests = [
        hashlib.sha256((place / "tokenizer.model").read_bytes()).hexdigest()
        for place in (directory, again)
    ]
    assert digests[0] == digests[1]


def test_impossible_requests_are_explained(tmp_path):
    with pytest.raises(DataError, match="vocab_size is 100; it must be above 259"):
        train_vocabulary(TEXTS, tmp_path, 100)
    with pytest.raises(DataError, match="no text"):
        train_vocabulary([" \n"], tmp_path, 300)
    with pytest.raises(DataError, match=r"no vocabulary of 9000 pieces.*more text or another"):
        train_vocabulary(TEXTS, tmp_path, 9000)


def test_texts_are_taken_evenly_up_to_a_number_of_characters():
    texts = [f"{number:04d}" for number in range(1000)]
    taken = evenly(texts, 400)
    assert len(taken) == 100
    assert taken[:2] == ["0000", "0010"]
    assert evenly(texts, 10_000) == texts


def test_characters_a_token_are_counted_over_all_texts(directory):
    rate = characters_per_token(directory, TEXTS)
    tokenizer = load_tokenizer(directory)
    tokens = sum(len(tokenizer.encode_text(text)) for text in TEXTS)
    assert rate == pytest.approx(sum(map(len, TEXTS)) / tokens)
