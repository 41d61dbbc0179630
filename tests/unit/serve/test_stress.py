"""`glmforge chat --stress` generates exactly the length of training, and says if it held."""

import json

import pytest
import torch
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.errors import UsageError
from glmforge.models import load_config, load_model, load_tokenizer
from glmforge.serve.stress import longest_length, prompt_of, stress
from small_models import ONE_LAYER, write_small_model


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stress") / "base"
    return write_small_model(directory, **ONE_LAYER, seq_length=64)


def test_the_prompt_is_of_the_familys_format_and_exactly_as_long(base):
    """It begins and ends as a real one does."""
    tokenizer = load_tokenizer(base)
    short, long = prompt_of(tokenizer, 12), prompt_of(tokenizer, 40)
    assert (len(short), len(long)) == (12, 40)
    assert long[-1] == short[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert long[:3] == short[:3]
    with pytest.raises(UsageError, match="the format takes"):
        prompt_of(tokenizer, 3)


def test_every_row_is_generated_to_the_end(base):
    """No stop id ends it early; memory and speed are numbers."""
    report = stress(load_model(base), load_tokenizer(base), length=48, batch=3, new_tokens=20)
    assert report.held
    assert report.peak_gib > 0
    assert report.tokens_per_second > 0
    assert report.lines()[0] == "holds: 3 x 48 tokens (20 of them new) on the CPU"


def test_where_it_does_not_hold_a_smaller_batch_is_looked_for(base):
    """Out of memory above two rows: a batch of two is what to deploy with."""
    model = load_model(base)
    generate = model.generate

    class Small:
        def parameters(self):
            return model.parameters()

        def generate(self, input_ids, **rest):
            if len(input_ids) > 2:
                raise torch.OutOfMemoryError("no room")
            return generate(input_ids=input_ids, **rest)

    report = stress(Small(), load_tokenizer(base), length=32, batch=8, new_tokens=8)
    assert not report.held
    assert report.largest_batch == 2
    assert "does NOT hold: 8 x 32 tokens" in report.lines()[0]
    assert "a batch of 2 holds" in report.lines()[0]


def test_the_length_is_the_runs_or_the_models(base, tmp_path):
    """data.max_length of the run that the weights lie in, else the model's positions."""
    config = load_config(base)
    assert longest_length(base, config) == 64
    (tmp_path / "config.yaml").write_text(
        "model: {model_name_or_path: m}\nmethod: lora\n"
        "data: {train: t.jsonl, max_length: 777}\ntraining: {output_dir: o}\n"
    )
    (tmp_path / "adapter").mkdir()
    assert longest_length(tmp_path / "adapter", config) == 777


def test_the_command_prints_it(base):
    """As sentences and as JSON."""
    command = ["chat", str(base), "--stress", "--length", "32", "--batch-size", "2", "--json"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert (report["length"], report["batch"], report["new_tokens"]) == (32, 2, 16)
    asked = [*command, "--max-new-tokens", "20"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert json.loads(done.stdout)["new_tokens"] == 20, "as asked, not cut to half of the length"
