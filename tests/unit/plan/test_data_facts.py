"""The plan counts rows and tokens of a mixture as training will make them."""

import json

import pytest

from glmforge.assets import asset_path
from glmforge.config import load_config_file
from glmforge.data import build_examples, pack, read_conversations
from glmforge.data.splitting import mix
from glmforge.models import load_tokenizer
from glmforge.plan import data_facts

LONG, SHORT = 0.25, 2.0


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(asset_path("base"))


@pytest.fixture
def config(tmp_path):
    """Long dialogues, a quarter of them an epoch, and short ones, all of them twice."""
    for name, words, number in (("long", 60, 40), ("short", 2, 120)):
        rows = [
            {"messages": [{"role": "user", "content": f"{n}" + "问" * (words + n % 7)},
                          {"role": "assistant", "content": "答" * words}]}
            for n in range(number)
        ]  # fmt: skip
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "c.yaml").write_text(
        f"""
model: {{model_name_or_path: {asset_path("base")}}}
method: lora
data:
  max_length: 256
  train:
    - {{path: {tmp_path}/long.jsonl, weight: {LONG}}}
    - {{path: {tmp_path}/short.jsonl, weight: {SHORT}}}
training: {{output_dir: {tmp_path}/run}}
"""
    )
    return load_config_file(tmp_path / "c.yaml", [])


def as_trained(config, tokenizer, tmp_path):
    """Lengths of the rows that training mixes."""
    sets = [
        build_examples(read_conversations(tmp_path / f"{name}.jsonl"), tokenizer, max_length=256)
        for name in ("long", "short")
    ]
    parts = [(found.examples, weight) for found, weight in zip(sets, (LONG, SHORT), strict=True)]
    return [len(row.input_ids) for row in mix(parts, seed=config.training.seed)]


def test_weights_count_as_in_training(config, tokenizer, tmp_path):
    """Not as the average of all sources."""
    lengths = as_trained(config, tokenizer, tmp_path)
    found = data_facts.count_data(config, tokenizer, packed=True)
    assert found.dialogues == 0.25 * 40 + 2 * 120
    assert found.tokens == sum(lengths)
    assert found.rows == len(pack(lengths, 256, config.training.seed))
    assert not found.estimated
    assert data_facts.count_data(config, tokenizer, packed=False).rows == len(lengths)


def test_a_sample_of_a_large_source_keeps_its_share(config, tokenizer, tmp_path, monkeypatch):
    """Only the short ones are sampled: the estimate stays near."""
    monkeypatch.setattr(data_facts, "SAMPLE_DIALOGUES", 60)
    lengths = as_trained(config, tokenizer, tmp_path)
    found = data_facts.count_data(config, tokenizer, packed=True)
    assert found.estimated
    assert found.tokens == pytest.approx(sum(lengths), rel=0.05)
    assert found.rows == pytest.approx(len(pack(lengths, 256, 42)), rel=0.1)
