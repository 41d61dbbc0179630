"""The programs around the embedded base's training: what they plan, carry and put together."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).resolve().parents[3] / "examples/embedded-base"


def program(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    del sys.modules[name]
    return module


def test_steps_divide_the_tokens_among_the_stages():
    planned = program("train_candidates").planned_steps(100 * 65_536, [128, 64], 0.2)
    assert planned == (80, 40)
    assert program("train_candidates").planned_steps(0, [128, 64], 0.2) == (20, 20)


def test_a_short_run_gets_a_short_warm_up():
    settings = program("train_candidates").stage_settings(50, 8, looks=5)
    assert settings == [
        "training.max_steps=50",
        "training.eval_steps=10",
        "training.warmup_steps=5",
        "training.per_device_train_batch_size=8",
    ]


def test_what_is_carried_comes_out_as_it_went_in(tmp_path):
    carry = program("carry")
    data, vocabulary = tmp_path / "data", tmp_path / "vocabulary"
    for folder, names in ((data, carry.DATA), (vocabulary, carry.TOKENIZER)):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(f"{name} 文字\n" * 50, encoding="utf-8")
    carry.pack(data, vocabulary, tmp_path / "corpus.tar.xz")
    carry.unpack(tmp_path / "corpus.tar.xz", tmp_path / "out")
    names = sorted([*carry.DATA, *carry.TOKENIZER])
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    for name in names:
        folder = data if name in carry.DATA else vocabulary
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_shards_join_to_one_model_directory_with_the_shipped_vocabulary(tmp_path):
    shards = [tmp_path / "base-1-of-2.safetensors", tmp_path / "base-2-of-2.safetensors"]
    for number, shard in enumerate(shards):
        save_file({f"t{number}": torch.full((2,), number, dtype=torch.float16)}, shard)
    model = program("judge").assemble(shards, "base", tmp_path / "model")
    assert sorted(load_file(model / "model.safetensors")) == ["t0", "t1"]
    assert json.loads((model / "config.json").read_text())["hidden_size"] == 256
    assert (model / "tokenizer.model").is_file()


@pytest.mark.parametrize("shape", ["base", "wide"])
def test_a_candidate_is_small_enough_to_ship(shape):
    config = json.loads((FOLDER / "shapes" / f"{shape}.json").read_text(encoding="utf-8"))
    width, groups = config["hidden_size"], config["multi_query_group_num"]
    query = config["num_attention_heads"] * config["kv_channels"]
    packed = query + 2 * groups * config["kv_channels"]
    layer = (width + 1) * packed + query * width + 3 * width * config["ffn_hidden_size"] + 2 * width
    total = config["num_layers"] * layer + width * (config["padded_vocab_size"] + 1)
    assert config["tie_word_embeddings"]
    assert total <= 10_000_000
    assert 2 * total <= 20_000_000
    if shape == "base":
        assert total == 8_101_120
