"""How a directory's family is recognised, and what config.json looks like after us."""

import copy
import json
import pickle

import pytest
from generations import DECODER_KEYS, FIRST_GENERATION, GENERATIONS
from transformers import AutoConfig

from glmforge.errors import ModelError
from glmforge.models import family_of, load_config
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.families import FAMILIES, OTHER, decide_family, family_of_tokenizer


@pytest.mark.parametrize("name", ["chatglm-6b", "chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"])
def test_the_vendors_config_files_are_recognised(shared, name):
    keys = json.loads((shared / "tokenizers" / name / "config.json").read_text(encoding="utf-8"))
    expected = {"chatglm-6b": "chatglm", "glm-4-9b-chat": "glm4"}.get(name, name.split("-")[0])
    assert decide_family(keys).family.name == expected


@pytest.mark.parametrize(
    ("changes", "directory", "expected"),
    [
        ({"_name_or_path": "THUDM/chatglm2-6b-32k"}, "", "chatglm2"),
        ({}, "/models/chatglm2-6b", "chatglm2"),
        ({}, "/models/glm-4-9b-chat-1m", "glm4"),
        ({"padded_vocab_size": 151552}, "/models/mine", "glm4"),
        ({"transformers_version": "4.27.1"}, "/models/mine", "chatglm2"),
        ({"transformers_version": "4.30.2"}, "/models/mine", "chatglm3"),
        ({"glmforge_family": "chatglm2"}, "/models/chatglm3-6b", "chatglm2"),
        ({"_name_or_path": "THUDM/chatglm3-6b"}, "/models/chatglm2-copy", "chatglm3"),
    ],
)
def test_names_then_vocabulary_then_version_decide_and_the_user_overrides(
    changes, directory, expected
):
    decision = decide_family({**DECODER_KEYS, **changes}, directory)
    assert decision.family.name == expected
    assert decision.reason


def test_an_unknown_signature_is_an_error_that_names_the_keys():
    keys = {"model_type": "chatglm", "hidden_size": 64, "n_layer": 2}
    with pytest.raises(ModelError, match=r"hidden_size, model_type, n_layer") as error:
        ChatGLMConfig.from_dict(keys)
    assert "ffn_hidden_size" in str(error.value)
    assert "inner_hidden_size" in str(error.value)


def test_an_unknown_override_names_the_known_rows():
    with pytest.raises(ModelError, match="chatglm3"):
        decide_family({**DECODER_KEYS, "glmforge_family": "chatglm9"})


def test_what_no_published_model_has_is_refused_all_at_once():
    keys = {**DECODER_KEYS, "rmsnorm": False, "hidden_dropout": 0.1, "pre_seq_len": 128}
    with pytest.raises(ModelError) as error:
        ChatGLMConfig.from_dict(keys)
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("generation", list(GENERATIONS))
def test_config_json_is_written_back_with_the_original_keys(generation, tmp_path):
    keys = {**GENERATIONS[generation], "transformers_version": "4.30.2", "my_own_key": [1, 2]}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    config = load_config(tmp_path)
    config.save_pretrained(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    written.pop("transformers_version"), keys.pop("transformers_version")
    assert {key: written.get(key) for key in keys} == keys
    assert load_config(tmp_path / "again").family == config.family


@pytest.mark.parametrize("generation", [*GENERATIONS, *FIRST_GENERATION])
def test_every_way_of_copying_a_configuration_keeps_it(generation):
    config = ChatGLMConfig.from_dict({**GENERATIONS, **FIRST_GENERATION}[generation].copy())
    copies = (
        pickle.loads(pickle.dumps(config)),
        copy.deepcopy(config),
        ChatGLMConfig.from_dict(config.to_dict()),
        type(config)(**config.to_diff_dict()),
        AutoConfig.for_model(**config.to_dict()),
    )
    for made in copies:
        assert type(made) is type(config)
        assert made.family == config.family
        assert made.to_diff_dict() == config.to_diff_dict()


def test_transformers_names_are_aliases_of_the_original_keys():
    config = ChatGLMConfig.from_dict(dict(GENERATIONS["glm4-9b"]))
    assert config.num_hidden_layers == config.num_layers == 2
    assert config.vocab_size == 512
    assert config.head_dim == 16
    assert config.num_key_value_heads == 2
    assert config.max_position_embeddings == 512


def test_a_family_that_only_its_old_version_told_survives_saving(tmp_path):
    keys = {**DECODER_KEYS, "transformers_version": "4.27.1"}
    config = ChatGLMConfig.from_dict(dict(keys))
    assert config.family == "chatglm2"
    config.save_pretrained(tmp_path)
    assert load_config(tmp_path).family == "chatglm2"


@pytest.mark.parametrize(
    ("generation", "base", "divisor"),
    [
        ("chatglm2", 10000.0, 1.0),
        ("chatglm2-32k", 10000.0, 16.0),
        ("chatglm3", 10000.0, 1.0),
        ("chatglm3-32k", 500000.0, 1.0),
        ("glm4-9b", 5000000.0, 1.0),
    ],
)
def test_rope_ratio_means_what_it_means_in_the_family(generation, base, divisor):
    config = ChatGLMConfig.from_dict(dict(GENERATIONS[generation]))
    assert (config.rope_base, config.position_divisor) == (base, divisor)


def test_a_config_that_is_no_chatglm_gets_the_row_of_its_model_type():
    assert family_of({"model_type": "glm4"}).name == "glm4-0414"
    assert family_of({"model_type": "llama"}) is OTHER


def test_a_tokenizer_names_its_family_itself():
    class Named:
        family = "chatglm3"

    assert family_of_tokenizer(Named()).name == "chatglm3"
    assert family_of_tokenizer(object()) is OTHER


def test_row_names_are_unique():
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
