"""A model whose files name no list of stop ids stops where its family's answers end."""

import json

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, SuppressTokensLogitsProcessor
from vocabularies import write_bpe

from glmforge.models import load_model, load_tokenizer

OPENERS = [load_model, AutoModel.from_pretrained, AutoModelForCausalLM.from_pretrained]


@pytest.fixture
def vendor_directory(directory):
    """As the vendor publishes ChatGLM3: eos_token_id 2, no generation_config.json."""
    (directory / "generation_config.json").unlink()
    return write_bpe(directory)


@pytest.mark.parametrize("opener", OPENERS)
def test_chatglm3_without_a_generation_config_stops_at_its_role_tokens(vendor_directory, opener):
    model, tokenizer = opener(vendor_directory), load_tokenizer(vendor_directory)
    user, observation = tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    assert model.generation_config.eos_token_id == [2, user, observation]
    only_user = SuppressTokensLogitsProcessor([i for i in range(512) if i != user], device="cpu")
    output = model.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=6, logits_processor=[only_user]
    )
    assert output.tolist() == [[5, 6, 7, user]]


def test_a_generation_config_that_exists_is_left_as_it_is(vendor_directory):
    (vendor_directory / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert load_model(vendor_directory).generation_config.eos_token_id == 2


def test_without_a_vocabulary_file_the_published_rows_settle_it(tiny_model, tmp_path):
    tiny_model("chatglm3", padded_vocab_size=65_024, num_layers=1).save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").unlink()
    assert load_model(tmp_path / "m").generation_config.eos_token_id == [2, 64_795, 64_797]


def test_a_vocabulary_of_another_size_without_its_file_settles_nothing(directory):
    (directory / "generation_config.json").unlink()
    assert load_model(directory).generation_config.eos_token_id == 2
