"""A prepared set belongs to one behaviour of a tokenizer, wherever its files lie."""

import json
import shutil

import pytest
from test_chat_template import CHATML, tokenizer_with

from glmforge.data.preparing import fingerprint
from glmforge.models import load_tokenizer
from small_models import TINY_MODEL


@pytest.fixture
def directory(tmp_path):
    """A tokenizer of no family of ours, saved."""
    tokenizer_with(CHATML).save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def change(directory, name, act):
    path = directory / name
    values = json.loads(path.read_text(encoding="utf-8"))
    act(values)
    path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("tokenizer_config.json", lambda v: v.update(eos_token="<|im_end|>")),
        ("tokenizer_config.json", lambda v: v.update(bos_token="<|im_start|>")),
        ("tokenizer_config.json", lambda v: v.update(clean_up_tokenization_spaces=True)),
        ("tokenizer.json", lambda v: v["model"].update(merges=[["a", "b"]])
         or v["model"]["vocab"].update(ab=900)),
        ("tokenizer.json", lambda v: v["added_tokens"][0].update(special=False)),
        ("tokenizer.json", lambda v: v.update(normalizer={"type": "NFC"})),
    ],
)  # fmt: skip
def test_whatever_changes_ids_or_labels_changes_it(directory, name, act):
    before = fingerprint(load_tokenizer(directory))
    change(directory, name, act)
    assert fingerprint(load_tokenizer(directory)) != before


def test_a_file_beside_the_vocabulary_counts_too(directory):
    """Where the class names one file of several, as Qwen's vocab.json."""
    tokenizer = load_tokenizer(directory)
    before = fingerprint(tokenizer)
    tokenizer.vocab_file = str(directory / "tokenizer_config.json")
    beside = fingerprint(tokenizer)
    tokenizer.add_tokens(["another"])
    assert len({before, beside, fingerprint(tokenizer)}) == 3


@pytest.mark.parametrize("kind", ["ours", "another"])
def test_a_tokenizer_that_only_moved_is_the_same(directory, tmp_path, kind):
    source = directory if kind == "another" else TINY_MODEL
    moved = shutil.copytree(source, tmp_path / "moved")
    assert fingerprint(load_tokenizer(moved)) == fingerprint(load_tokenizer(source))
