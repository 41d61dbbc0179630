"""What holds for every text, not only for the recorded ones: found by Hypothesis."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vocabularies import write_bpe, write_ranks, write_unigram

from glmforge.models.tokenizers import load_tokenizer

SPELLINGS = [
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<sop>",
    "<eop>",
    "<pad>",
    "<unk>",
    "<s>",
    "</s>",
    "<0x0A>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<|endoftext|>",
    "<|begin_of_image|>",
    "<n>",
    "<|tab|>",
    "<|blank_2|>",
    " ",
    "\n",
    "\t",
    "你好",
    "ab",
    "１２，",
]
ANY_TEXT = st.text(max_size=40)
SPELLED_TEXT = st.lists(st.one_of(st.sampled_from(SPELLINGS), st.text(max_size=5)), max_size=8).map(
    "".join
)
BRACKETLESS = st.text(st.characters(codec="utf-8", exclude_characters="<["), max_size=20)
TEXTS = st.one_of(ANY_TEXT, SPELLED_TEXT)
WRITERS = {
    "chatglm": write_unigram,
    "chatglm2": lambda directory: write_bpe(directory, name="demo-chatglm2"),
    "chatglm3": write_bpe,
    "glm4": write_ranks,
}
ROUND_TRIPPING = ["chatglm2", "chatglm3", "glm4"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    return {
        name: load_tokenizer(write(tmp_path_factory.mktemp(name)))
        for name, write in WRITERS.items()
    }


@pytest.mark.parametrize("family", ROUND_TRIPPING)
@settings(max_examples=200)
@given(text=TEXTS)
@example(text="  a \n\n b  ")
@example(text="\x00\r\n\u2028\ufeff")
def test_content_comes_back_as_it_was(tokenizers, family, text):
    tokenizer = tokenizers[family]
    # SentencePiece writes a blank as U+2581, so that one letter comes back as a blank.
    expected = text if family == "glm4" else text.replace("\u2581", " ")
    assert expected == tokenizer.decode(tokenizer.encode_text(text))


@pytest.mark.parametrize("family", WRITERS)
@settings(max_examples=200)
@given(text=TEXTS)
@example(text="".join(SPELLINGS))
def test_content_never_holds_a_control_id(tokenizers, family, text):
    tokenizer = tokenizers[family]
    controls = set(tokenizer.control_ids.values()) | {tokenizer.pad_token_id}
    ids = tokenizer.encode_text(text)
    assert controls.isdisjoint(ids)
    assert all(0 <= index < tokenizer.vocab_size for index in ids)
    assert ids == tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)


@pytest.mark.parametrize("family", WRITERS)
@settings(max_examples=100)
@given(texts=st.lists(TEXTS, max_size=5))
def test_a_batch_is_its_texts(tokenizers, family, texts):
    tokenizer = tokenizers[family]
    batch = tokenizer(texts)
    single = [tokenizer(text) for text in texts]
    for key in tokenizer.model_input_names:
        assert [row[key] for row in single] == batch.get(key, [])
    width = max(map(len, batch["input_ids"]), default=0)
    padded = tokenizer(texts, padding=True)
    for row, mask, ids in zip(
        batch["input_ids"], padded.get("attention_mask", []), padded["input_ids"], strict=False
    ):
        assert [tokenizer.pad_token_id] * (width - len(row)) + row == ids
        assert [0] * (width - len(row)) + [1] * len(row) == mask


@pytest.mark.parametrize("family", WRITERS)
@settings(max_examples=100)
@given(question=TEXTS, answer=TEXTS)
def test_a_dialogue_holds_only_the_control_ids_of_its_format(tokenizers, family, question, answer):
    tokenizer = tokenizers[family]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    names = {
        "chatglm": ["[gMASK]", "<sop>", "<eop>"],
        "chatglm2": ["[gMASK]", "sop", "</s>"],
        "chatglm3": ["[gMASK]", "sop", "<|user|>", "<|assistant|>"],
        "glm4": ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"],
    }[family]
    controls = {*tokenizer.control_ids.values(), *tokenizer.all_special_ids}
    ids = tokenizer.apply_chat_template(messages, return_dict=False)
    found = [index for index in ids if index in controls]
    assert tokenizer.convert_tokens_to_ids(names) == found
    answer_ids = tokenizer.encode_text(answer)
    if family in ("chatglm", "chatglm2"):
        assert answer_ids == ids[len(ids) - 1 - len(answer_ids) : -1]
    if family == "chatglm3":
        assert answer_ids == ids[len(ids) - len(answer_ids) :]


@settings(max_examples=200)
@given(parts=st.lists(st.one_of(st.sampled_from(["<|user|>", "<sop>"]), BRACKETLESS), max_size=6))
def test_glm4_reads_spellings_as_ids_outside_of_content(tokenizers, parts):
    tokenizer = tokenizers["glm4"]
    ids = tokenizer("".join(parts), add_special_tokens=False)["input_ids"]
    expected = [part for part in parts if part in ("<|user|>", "<sop>")]
    found = [index for index in ids if index >= tokenizer.vocab_size]
    assert tokenizer.convert_tokens_to_ids(expected) == found
    text = tokenizer.decode(ids, spaces_between_special_tokens=False)
    assert "".join(parts) == text
