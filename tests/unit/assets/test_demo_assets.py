"""Promises of the packaged demo data and run config, and of the tests' tiny model."""

import importlib.util
import json
from pathlib import Path

import pytest

from glmforge.assets import asset_path
from glmforge.config import load_config_file
from glmforge.data.rules import CONTROL_SPELLINGS, PLACEHOLDERS
from glmforge.errors import TrainingError
from glmforge.models import load_config, load_tokenizer
from glmforge.train import demo
from glmforge.train.demo import free_directory, run_demo, write_config
from small_models import TINY_MODEL

ROOT = Path(__file__).resolve().parents[3]
DEMO_DIR = ROOT / "src/glmforge/assets/demo"


def read(name: str) -> list[list[dict[str, str]]]:
    lines = (DEMO_DIR / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"] for line in lines]


def said_by(role: str, dialogues: list[list[dict[str, str]]]) -> list[str]:
    return [turn["content"] for turns in dialogues for turn in turns if turn["role"] == role]


def first_questions(dialogues: list[list[dict[str, str]]]) -> list[str]:
    return [said_by("user", [turns])[0] for turns in dialogues]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TINY_MODEL)


def test_there_are_enough_dialogues_to_learn_a_style_from():
    assert len(read("train")) >= 220
    assert len(read("validation")) == 24


@pytest.mark.parametrize("name", ["train", "validation"])
def test_every_dialogue_has_two_to_five_alternating_rounds(name):
    for turns in read(name):
        roles = [turn["role"] for turn in turns if turn["role"] != "system"]
        rounds = len(roles) // 2
        assert turns[0]["role"] in ("system", "user")
        assert roles == ["user", "assistant"] * rounds
        assert 2 <= rounds <= 5


@pytest.mark.parametrize("name", ["train", "validation"])
def test_no_text_is_empty_untrimmed_a_placeholder_or_a_control_spelling(name):
    for text in (turn["content"] for turns in read(name) for turn in turns):
        assert text
        assert text == text.strip()
        assert not CONTROL_SPELLINGS.search(text)
        assert not PLACEHOLDERS.search(text)


def test_no_dialogue_and_no_first_question_is_there_twice():
    questions = first_questions(read("train") + read("validation"))
    assert len(questions) == len(set(questions))


def test_no_answer_is_there_twice():
    answers = said_by("assistant", read("train") + read("validation"))
    assert len(answers) == len(set(answers))


def test_no_user_sentence_of_validation_is_in_training():
    assert set(said_by("user", read("validation"))) & set(said_by("user", read("train"))) == set()


def test_the_assistant_names_itself_in_every_dialogue():
    for turns in read("train") + read("validation"):
        assert "小禾" in "".join(said_by("assistant", [turns]))


def test_the_script_rebuilds_the_tokenizer_byte_for_byte(tmp_path):
    spec = importlib.util.spec_from_file_location(
        "build_tiny_tokenizer", ROOT / "scripts/build_tiny_tokenizer.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.build_tokenizer(tmp_path)
    for file in ("tokenizer.model", "tokenizer_config.json"):
        assert (TINY_MODEL / file).read_bytes() == (tmp_path / file).read_bytes()


@pytest.mark.parametrize("name", ["train", "validation"])
def test_every_demo_text_survives_encoding_and_decoding(name, tokenizer):
    for text in (turn["content"] for turns in read(name) for turn in turns):
        assert tokenizer.decode(tokenizer.encode_text(text)) == text


@pytest.mark.parametrize(
    "text", ["Hello, world! #42 {x}\n\tok", "鑫龘饕餮，𠮷野家", "🙂 naïve ﬁ ①"]
)
def test_text_outside_the_vocabulary_survives_through_bytes(text, tokenizer):
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_the_model_directory_is_a_chatglm3_with_room_for_its_vocabulary(tokenizer):
    config = load_config(TINY_MODEL)
    assert config.family == tokenizer.family == "chatglm3"
    assert config.padded_vocab_size % 64 == 0
    assert config.padded_vocab_size >= len(tokenizer)


def test_the_generation_config_stops_at_this_vocabularys_stop_tokens(tokenizer):
    stored = json.loads((TINY_MODEL / "generation_config.json").read_text(encoding="utf-8"))
    names = ["</s>", "<|user|>", "<|observation|>"]
    assert stored["eos_token_id"] == tokenizer.convert_tokens_to_ids(names)


def test_the_run_config_is_valid_and_its_rows_hold_every_dialogue(tmp_path):
    base = asset_path("base")
    config = load_config_file(write_config(tmp_path / "demo.yaml", base), [])
    assert config.method == "lora"
    assert config.lora.r == 8
    assert len(config.lora.target_modules) == 4
    assert config.deepspeed == {"zero_optimization": {"stage": 2}}
    tokenizer = load_tokenizer(base)
    for name in ("train", "facts", "facts_validation", "general"):
        for turns in read(name):
            size = sum(len(tokenizer.encode_text(turn["content"])) + 3 for turn in turns) + 3
            assert size <= config.data.max_length


def test_the_written_config_says_what_it_is(tmp_path):
    """Its comment is not taken for a place."""
    text = write_config(tmp_path / "demo.yaml", asset_path("base")).read_text(encoding="utf-8")
    assert "BASE and DEMO/ stand for" in text
    assert '"BASE"' not in text
    assert '"DEMO/' not in text


def test_the_demo_writes_over_nothing(tmp_path, monkeypatch):
    """Not beside its directory either, and refused before any process starts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("# my own")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes.txt").touch()
    (tmp_path / "file").touch()
    started = []
    monkeypatch.setattr(demo, "launch_local", lambda argv, nproc: started.append(argv) or 7)
    for out, words in (("taken", "there is something already"),
                       ("file", "there is something already"),
                       ("file/x", "cannot be written there")):  # fmt: skip
        with pytest.raises(TrainingError, match=words):
            run_demo(tmp_path / out, 2)
    assert started == []
    assert run_demo(tmp_path / "mine", 2) == 7
    assert (tmp_path / "mine.yaml").read_text() == "# my own"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["demo.yaml"]


def test_the_demo_finds_a_place_beside_anything(tmp_path):
    (tmp_path / "demo").touch()
    (tmp_path / "demo-2").mkdir()
    assert free_directory(tmp_path / "demo") == tmp_path / "demo-2"
