"""Exports in the chatglm layout hold, besides weights, what the original's directory holds."""

import json

import pytest
import torch
from safetensors.torch import load_file
from vocabularies import write_bpe, write_ranks

from glmforge.errors import ModelError
from glmforge.models import load_config, load_tokenizer
from glmforge.models.glm.tokenization_sentencepiece import ChatGLM3Tokenizer
from glmforge.models.stock_tokenizer import stock_tokenizer
from glmforge.models.vendor_form import (
    rebuild_vocabulary,
    rotary_buffers,
    write_vendor_settings,
)

NAMES = ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"]


@pytest.mark.parametrize("name", NAMES)
def test_rotary_buffers_are_those_of_the_original_state_dict(shared, name):
    """Names, shapes and every bit, also where rope_ratio is 500."""
    directory = shared / "golden" / name
    stored = load_file(directory / "model.safetensors")
    expected = {key: value for key, value in stored.items() if "inv_freq" in key}
    made = rotary_buffers(load_config(directory), torch.float32)
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_the_hubs(shared, tmp_path, name):
    """Every key of the published tokenizer_config.json, the chat template included."""
    published = shared / "tokenizers" / name
    tokenizer = load_tokenizer(published)
    tokenizer.save_pretrained(tmp_path)
    write_vendor_settings(tokenizer, tmp_path, f"THUDM/{name}")
    expected = json.loads((published / "tokenizer_config.json").read_text(encoding="utf-8"))
    written = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert {key: written.get(key) for key in expected} == expected
    assert not (tmp_path / "chat_template.jinja").exists()
    again = load_tokenizer(tmp_path)
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template


def test_users_own_tokens_are_kept(tmp_path):
    """A token that was added has its id after reopening."""
    tokenizer = load_tokenizer(write_bpe(tmp_path))
    tokenizer.add_tokens(["<order>"])
    tokenizer.save_pretrained(tmp_path / "out")
    write_vendor_settings(tokenizer, tmp_path / "out", "THUDM/chatglm3-6b")
    again = load_tokenizer(tmp_path / "out")
    assert isinstance(again, ChatGLM3Tokenizer)
    assert again.convert_tokens_to_ids("<order>") == len(tokenizer) - 1


def test_a_foreign_vocabulary_is_not_taken_for_one(tmp_path):
    """A BPE that is no SentencePiece of ours, and ids that are no ranks."""
    stock = stock_tokenizer(load_tokenizer(write_bpe(tmp_path)))
    with pytest.raises(ModelError, match=r"copy tokenizer\.model"):
        rebuild_vocabulary(stock, "glm4", tmp_path / "out")
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    stock = stock_tokenizer(load_tokenizer(write_ranks(ranks)))
    with pytest.raises(ModelError, match=r"copy tokenizer\.model"):
        rebuild_vocabulary(stock, "chatglm3", tmp_path / "out")
