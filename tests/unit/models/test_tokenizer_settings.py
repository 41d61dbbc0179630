"""Files beside a vocabulary that are of another model, or hold what none can: each is named."""

import json

import pytest
from generations import FIRST_GENERATION, GENERATIONS
from transformers import AutoTokenizer
from vocabularies import write_bpe, write_ranks, write_unigram

from glmforge.errors import ModelError
from glmforge.models import load_config, load_tokenizer

WRITERS = {"chatglm": write_unigram, "chatglm3": write_bpe, "glm4-9b": write_ranks}
KEYS = {
    **GENERATIONS,
    "chatglm": {**next(iter(FIRST_GENERATION.values())), "_name_or_path": "THUDM/chatglm-6b"},
}


def write(directory, model: str, vocabulary: str, **settings):
    WRITERS[vocabulary](directory)
    (directory / "config.json").write_text(json.dumps(KEYS[model]), encoding="utf-8")
    path = directory / "tokenizer_config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**keys, **settings}), encoding="utf-8")
    return directory


@pytest.mark.parametrize("model", WRITERS)
@pytest.mark.parametrize("vocabulary", WRITERS)
def test_a_vocabulary_of_another_family_names_both(tmp_path, model, vocabulary):
    write(tmp_path, model, vocabulary)
    if model == vocabulary:
        assert load_tokenizer(tmp_path).family == model.removesuffix("-9b")
        return
    titles = {"chatglm": "ChatGLM-6B", "chatglm3": "ChatGLM3-6B", "glm4-9b": "GLM-4-9B"}
    with pytest.raises(ModelError, match=f"of {titles[vocabulary]}, but .* of {titles[model]}"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer_class", "LlamaTokenizer"),
        ("tokenizer_class", 3),
        ("padding_side", "middle"),
        ("model_max_length", "8k"),
        ("eos_token", 7),
        ("clean_up_tokenization_spaces", "yes"),
        ("added_tokens_decoder", ["<x>"]),
        ("added_tokens_decoder", {"many": {"content": "<x>"}}),
        ("added_tokens_decoder", {"999999": {"content": "<x>", "special": True}}),
    ],
)
def test_a_setting_that_may_not_be_names_file_key_and_value(tmp_path, family, key, value):
    write(tmp_path, family, family, **{key: value})
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path)
    said = str(caught.value)
    assert "tokenizer_config.json: " + key in said
    assert ("999999" if "999999" in str(value) else str(value)[:6].strip("{}[")) in said


def test_rows_of_the_first_vocabulary_beside_settings_of_the_new_one(tmp_path):
    write(tmp_path, "chatglm", "chatglm")
    keys = {**KEYS["chatglm"], "bos_token_id": 150_004, "vocab_size": 150_528}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    with pytest.raises(ModelError, match=r"num_image_tokens is 0, but .*150528 rows.*20000"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("family", WRITERS)
@pytest.mark.parametrize("trust", [None, True])
def test_auto_tokenizer_needs_no_tokenizer_config(tmp_path, family, trust):
    write(tmp_path, family, family)
    (tmp_path / "tokenizer_config.json").unlink()
    keys = {**KEYS[family], "auto_map": {"AutoTokenizer": ["tokenization_chatglm.Evil", None]}}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    (tmp_path / "tokenization_chatglm.py").write_text("raise SystemExit('code was run')")
    opened = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=trust)
    assert type(opened) is type(load_tokenizer(tmp_path))
    load_config(tmp_path).save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text(encoding="utf-8"))
    assert "tokenizer_class" not in saved
