"""Stop ids of tokenizer, generation_config.json and training rows agree (case E03)."""

import json

import numpy as np
import pytest

from glmforge.assets import asset_path
from glmforge.data import Example, build_examples, read_conversations
from glmforge.errors import ModelError
from glmforge.models import load_tokenizer
from glmforge.train.stops import check_stop_ids
from small_models import TINY_MODEL


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TINY_MODEL)


def directory(tmp_path, generation_config):
    if generation_config is not None:
        text = json.dumps(generation_config)
        (tmp_path / "generation_config.json").write_text(text, encoding="utf-8")
    return tmp_path


def stop_ids(tokenizer):
    return tokenizer.convert_tokens_to_ids(["</s>", "<|user|>", "<|observation|>"])


def test_a_complete_list_is_fine_and_none_is_named(tokenizer, tmp_path):
    """Without a file other programs follow config.json, or the tokenizer's own end alone."""
    _, user, _ = stop_ids(tokenizer)
    (note,) = check_stop_ids(directory(tmp_path, None), tokenizer, [])
    assert f"follows its tokenizer ({tokenizer.eos_token_id}) lacks <|user|> ({user})" in note
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"eos_token_id": stop_ids(tokenizer)}), encoding="utf-8")
    assert check_stop_ids(tmp_path, tokenizer, []) == []
    complete = {"eos_token_id": stop_ids(tokenizer)}
    assert check_stop_ids(directory(tmp_path, complete), tokenizer, []) == []


def test_a_list_without_the_turn_tokens_is_named(tokenizer, tmp_path):
    """Which ids are missing."""
    end, user, _ = stop_ids(tokenizer)
    (note,) = check_stop_ids(directory(tmp_path, {"eos_token_id": end}), tokenizer, [])
    assert f"eos_token_id lacks <|user|> ({user}), <|observation|>" in note


def test_a_list_of_another_vocabulary_is_refused(tokenizer, tmp_path):
    """As 20002 beside a tokenizer that ends at 130005."""
    with pytest.raises(ModelError, match="eos_token_id is 20002, but this tokenizer's answers end"):
        check_stop_ids(directory(tmp_path, {"eos_token_id": 20002}), tokenizer, [])


@pytest.mark.parametrize("name", ["glm-4-9b-chat", "chatglm3-6b", "chatglm-6b"])
def test_the_published_cases(shared, tmp_path, name):
    """Good, warned and refused lists of three generations, with the original tokenizers."""
    family = {"glm-4-9b-chat": "glm4", "chatglm3-6b": "chatglm3", "chatglm-6b": "chatglm"}[name]
    source = shared / "tokenizers" / name
    if not source.is_dir():
        pytest.skip(f"needs the original vocabulary of {name}")
    original = load_tokenizer(source)
    text = (shared / "cases/E03/generation_configs.json").read_text(encoding="utf-8")
    verdicts = {}
    for case in json.loads(text):
        if case["family"] == family:
            place = tmp_path / str(case["n"])
            place.mkdir()
            try:
                notes = check_stop_ids(directory(place, case["generation_config"]), original, [])
                verdicts[case["n"]] = len(notes)
            except ModelError:
                verdicts[case["n"]] = "refused"
    assert (
        verdicts
        == {"glm4": {1: 0, 2: 1, 3: 1}, "chatglm3": {4: 1}, "chatglm": {5: "refused"}}[family]
    )


def test_every_trained_row_of_dialogues_ends_with_a_stop_id(tokenizer, tmp_path):
    """And a row that does not is counted."""
    conversations = read_conversations(asset_path("demo/validation.jsonl"))
    examples = list(build_examples(conversations, tokenizer, max_length=256).examples)
    assert check_stop_ids(TINY_MODEL, tokenizer, examples) == []
    ids = np.array([5, 6, 7], dtype=np.int32)
    endless = Example(input_ids=ids, labels=ids, source="a:1")
    (note,) = check_stop_ids(TINY_MODEL, tokenizer, [*examples[:4], endless])
    assert note.startswith("1 of the first 5 training rows do not end with a stop token")
