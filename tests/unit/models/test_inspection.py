"""What `inspect_model` says of a directory."""

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vocabularies import write_bpe

from glmforge.errors import ModelError
from glmforge.models.inspection import inspect_model, is_base_model


def test_a_whole_directory_is_described(tiny_model, tmp_path):
    tiny_model("chatglm3-32k").half().save_pretrained(tmp_path / "model")
    facts = inspect_model(tmp_path / "model")
    assert (facts.family, facts.layout, facts.template) == ("chatglm3", "chatglm", "chatglm3")
    assert facts.recognised_by == "_name_or_path of config.json is 'THUDM/chatglm3-6b-32k'"
    assert (facts.vocabulary_rows, facts.max_positions) == (512, 512)
    assert facts.positions == "rotary, base 500000"
    assert (facts.dtype, facts.weight_files) == ("float16", 1)
    assert facts.weight_bytes > 2 * facts.parameters.total
    assert facts.lora_targets == ("query_key_value",)
    assert "dense_h_to_4h" in facts.lora_modules
    assert facts.problems == ()


def test_a_directory_without_weights_is_described_with_the_problem(tmp_path, tiny_model):
    tiny_model("glm4-9b").config.save_pretrained(tmp_path / "model")
    facts = inspect_model(tmp_path / "model")
    assert facts.family == "glm4"
    assert facts.weight_bytes == 0
    assert "no weights there" in facts.problems[0]


@pytest.mark.parametrize("generation", ["chatglm", "chatglm-1d", "chatglm2-32k", "glm", "glm4"])
def test_every_family_is_described(tiny_model, tmp_path, generation):
    tiny_model(generation).save_pretrained(tmp_path / "model")
    facts = inspect_model(tmp_path / "model")
    assert facts.problems == ()
    assert facts.positions.startswith("rotary")


@pytest.mark.parametrize("name", ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"])
def test_published_directories_are_described(shared, name):
    facts = inspect_model(shared / "tokenizers" / name)
    assert facts.parameters.total > 6e9
    assert len(facts.problems) == 1  # their weights are not there


def test_a_guess_that_matters_is_said(tmp_path, tiny_model):
    config = tiny_model("chatglm3-32k").config
    keys = {**config.to_diff_dict(), "_name_or_path": ""}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    assert "glmforge_family" in inspect_model(tmp_path).notes[0]


@pytest.mark.parametrize(
    ("name", "family", "base"),
    [
        ("THUDM/chatglm3-6b-base", "chatglm3", True),
        ("THUDM/glm-4-9b", "glm4", True),
        ("THUDM/glm-4-9b-hf", "glm4-hf", True),
        ("THUDM/glm-4-9b-chat", "glm4", False),
        ("THUDM/glm-4-9b-chat-1m", "glm4", False),
        ("THUDM/GLM-4-32B-Base-0414", "glm4-0414", True),
        ("THUDM/chatglm3-6b", "chatglm3", False),
        ("my-database-model", "chatglm3", False),
        ("glmforge/embedded-base-chatglm3", "chatglm3", False),
        ("glmforge/assets/base", "chatglm3", False),
        ("my-own-base", "chatglm3", True),
    ],
)
def test_base_models_are_noticed_by_their_name(name, family, base):
    assert is_base_model(name, family) is base


def test_a_tokenizer_without_chat_tokens_is_noticed(tiny_model, tmp_path):
    """A model in transformers' layout whose tokenizer is another's, or a base's."""
    tiny_model("glm").save_pretrained(tmp_path / "model")
    engine = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    PreTrainedTokenizerFast(tokenizer_object=engine).save_pretrained(tmp_path / "model")
    facts = inspect_model(tmp_path / "model")
    assert facts.tokenizer_tokens == 2
    assert "no <|endoftext|>, <|user|>, <|observation|>: this is a base" in facts.notes[0]


def test_tokens_without_a_row_are_noticed(tiny_model, tmp_path):
    """A vocabulary of another model, or tokens added to one side only."""
    tiny_model("chatglm3", padded_vocab_size=300).save_pretrained(tmp_path / "model")
    write_bpe(tmp_path / "model")
    facts = inspect_model(tmp_path / "model")
    assert facts.tokenizer_tokens == 409
    assert "knows 409 tokens and the model has 300 rows" in facts.notes[0]


def test_no_model_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        inspect_model(tmp_path)
