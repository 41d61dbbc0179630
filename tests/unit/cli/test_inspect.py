"""`glmforge inspect`: facts on standard output, what stops the model on standard error."""

import json
import sys

import pytest
import torch

from glmforge.cli.main import main
from glmforge.models import load_config, load_tokenizer, new_model
from small_models import TINY_MODEL


@pytest.fixture
def inspect(monkeypatch, capsys):
    """Run the command; returns its exit status, output and errors."""

    def call(*argv):
        monkeypatch.setattr(sys, "argv", ["glmforge", "inspect", *map(str, argv)])
        code = main()
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    new_model(load_config(TINY_MODEL)).save_pretrained(tmp_path / "model")
    load_tokenizer(TINY_MODEL).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_model_is_described_in_lines(inspect, model):
    """Each fact on a line of its own."""
    code, out, _ = inspect(model)
    assert code == 0
    facts = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line)
    assert facts["family"].strip().startswith("ChatGLM3-6B (chatglm3): ")
    assert facts["parameters"].strip().startswith("2,165,696 (embedding 589,824, ")
    assert facts["weights"].strip() == "float32, 0.01 GiB in 1 file(s)"
    assert facts["vocabulary"].strip() == "3,072 rows, 3,009 of them known to the tokenizer"
    assert "<|observation|>" in facts["template"]
    assert facts["LoRA targets"].strip().startswith("query_key_value (may be query_key_value, ")


def test_json_holds_the_same_facts(inspect, model):
    """For programs."""
    code, out, _ = inspect(model, "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["family"], facts["dtype"], facts["problems"]) == ("chatglm3", "float32", [])
    assert facts["parameters"]["embedding"] == 589824


def test_a_directory_that_cannot_be_loaded_is_described_and_refused(inspect, model):
    """Facts first, then what is missing, exit status 1."""
    (model / "model.safetensors").unlink()
    code, out, err = inspect(model)
    assert code == 1
    assert "none that could be read" in out
    assert "no weights there" in err


def test_a_vendors_int4_export_is_refused_with_what_to_use_instead(inspect, shared):
    """The error that load_model would give."""
    code, _, err = inspect(shared / "cases/M03")
    assert code == 1
    assert "int4 export" in err
    assert "16-bit base" in err


def test_a_base_model_is_noticed(inspect, model):
    """By the hub id that its config.json names."""
    path = model / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(keys | {"_name_or_path": "THUDM/chatglm3-6b-base"}))
    assert "note: THUDM/chatglm3-6b-base is a base model" in inspect(model)[1]


def test_an_adapters_files_are_judged_without_a_model(shared, capsys, monkeypatch):
    """Case A01: exit status 1 and the reason; a sound file's facts are printed."""
    import sys

    from glmforge.cli.main import main

    monkeypatch.setattr(sys, "argv", ["glmforge", "inspect", str(shared / "cases" / "A01")])
    assert main() == 1
    assert "4 of 4 LoRA tensors are empty" in capsys.readouterr().err
    command = ["glmforge", "inspect", str(shared / "cases" / "A03"), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    assert main() == 0
    assert '"tensors": 4' in capsys.readouterr().out
