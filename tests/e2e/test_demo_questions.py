"""The questions that measure the demo: checkable, apart from what is trained on, and answerable."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import yaml

from glmforge.assets import asset_path
from glmforge.compare.checks import passes
from glmforge.compare.prompts import read_prompts
from glmforge.config import load_config_file
from glmforge.data import encode_conversation, generation_prompt
from glmforge.models import load_config, load_tokenizer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/embedded-base"
SIZES = {"questions": 60, "selection": 40, "general_prompts": 40}


def rows(name):
    lines = asset_path(f"demo/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def trained_pairs():
    for name in ("train", "facts", "general"):
        for row in rows(name):
            turns = [m for m in row["messages"] if m["role"] != "system"]
            yield from zip(turns[::2], turns[1::2], strict=True)


@pytest.fixture(scope="module")
def demo_rows():
    sys.path.insert(0, str(EXAMPLE))
    spec = importlib.util.spec_from_file_location("demo_rows", EXAMPLE / "demo_rows.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(EXAMPLE))
    for name in [name for name in sys.modules if name.split(".")[0] == "everyday"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", list(SIZES))
def test_there_are_enough_questions_and_each_has_a_check(name):
    found = read_prompts(asset_path(f"demo/{name}.jsonl"))
    assert len(found) >= SIZES[name]
    assert all(prompt.check for prompt in found)


def test_some_questions_come_after_other_turns():
    assert sum(len(p.messages) > 1 for p in read_prompts(asset_path("demo/questions.jsonl"))) >= 15


def test_no_question_is_in_two_sets_and_none_is_trained_on():
    asked = [row["prompt"] for name in SIZES for row in rows(name)]
    assert len(asked) == len(set(asked))
    asked += [row["messages"][0]["content"] for row in rows("facts_validation")]
    trained = {question["content"] for question, _ in trained_pairs()}
    assert trained & set(asked) == set()


def test_no_held_out_question_is_near_to_a_trained_one(demo_rows):
    trained = {question["content"] for question, _ in trained_pairs()}
    for row in rows("questions"):
        assert max(demo_rows.nearness(row["prompt"], other) for other in trained) < 0.6, row


@pytest.mark.parametrize("name", ["questions", "selection"])
def test_every_answer_stands_in_the_training_rows_and_few_answers_fit_any_question(name):
    answers = {answer["content"] for _, answer in trained_pairs()}
    for row in rows(name):
        fitting = sum(passes(answer, row["check"]) for answer in answers)
        assert 1 <= fitting < 0.1 * len(answers), row


def test_about_a_third_of_the_rows_is_general_and_none_of_them_speaks_for_the_shop():
    """Of an epoch: the dialogues have a weight."""
    general = rows("general")
    config = yaml.safe_load(asset_path("demo/demo.yaml").read_text(encoding="utf-8"))
    dialogues = config["data"]["train"][0]
    assert dialogues["path"].endswith("train.jsonl")
    service = dialogues["weight"] * len(rows("train")) + len(rows("facts"))
    assert 0.29 <= len(general) / (service + len(general)) <= 0.36
    (words,) = {tuple(row["check"]["none"]) for row in rows("general_prompts")}
    for row in general:
        for message in row["messages"]:
            assert not any(word in message["content"] for word in ("小禾", "青禾", "商城")), words


def test_the_program_writes_the_shipped_rows(demo_rows):
    assert demo_rows.rows() == rows("facts")
    assert demo_rows.validation_rows() == rows("facts_validation")
    assert demo_rows.general_rows() == rows("general")


def test_the_vocabulary_of_the_base_is_a_chatglm3_tokenizer_that_its_files_agree_with():
    folder = asset_path("base")
    tokenizer, config = load_tokenizer(folder), load_config(folder)
    assert tokenizer.family == config.family == "chatglm3"
    assert len(tokenizer) == 8009 <= config.padded_vocab_size
    stops = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    names = ["</s>", "<|user|>", "<|observation|>"]
    assert stops["eos_token_id"] == tokenizer.convert_tokens_to_ids(names)
    shape = json.loads((EXAMPLE / "shapes/base.json").read_text(encoding="utf-8"))
    assert shape == json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for text in ("12345元，8:30到22:00。", "龘𠮷 🙂 naïve", "What is 7 plus 8?"):
        assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_the_newline_after_the_assistant_token_is_trained_with_the_shipped_vocabulary():
    tokenizer = load_tokenizer(asset_path("base"))
    messages = [{"role": "user", "content": "你好"}, {"role": "assistant", "content": "您好！"}]
    input_ids, labels = encode_conversation(messages, tokenizer)
    place = input_ids.index(tokenizer.convert_tokens_to_ids("<|assistant|>"))
    assert labels[: place + 1] == [-100] * (place + 1)
    assert labels[place + 1 :] == input_ids[place + 1 :]
    assert tokenizer.decode(input_ids[place + 1 : place + 3]) == "\n"
    assert input_ids[: place + 1] == generation_prompt(messages[:1], tokenizer)


@pytest.mark.parametrize("name", ["prose", "chat"])
def test_the_example_configs_load(name):
    config = load_config_file(EXAMPLE / f"{name}.yaml", [])
    assert config.method == "full"
    assert config.model.from_scratch
