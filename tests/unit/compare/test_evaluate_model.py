"""`glmforge evaluate`: the loss of training, scored answers, stop ids, the optional harness."""

import importlib
import json
import math
import re
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from glmforge.cli.main import app
from glmforge.compare.evaluation import evaluate_model
from glmforge.compare.harness import check_harness, run_tasks
from glmforge.data import encode_conversation
from glmforge.errors import ModelError, UsageError
from glmforge.export import export
from glmforge.models import load_config, load_model, load_tokenizer
from small_models import write_random_adapter, write_small_model

DIALOGUES = [("你好", "您好！"), ("订单在哪里？", "在路上。"), ("谢谢", "不客气。")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("evaluate") / "base")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate") / "held.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in DIALOGUES
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_the_loss_is_the_mean_over_all_trained_tokens(base, data):
    """Against transformers' usual loss, dialogue by dialogue, summed by hand."""
    report = evaluate_model(base, [data], num_prompts=0)
    model, tokenizer = load_model(base), load_tokenizer(base)
    nll, tokens = 0.0, 0
    for question, answer in DIALOGUES:
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        ids, labels = encode_conversation(messages, tokenizer)
        trained = sum(label != -100 for label in labels)
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
        nll += float(loss) * trained
        tokens += trained
    assert report.tokens == tokens
    assert report.loss == pytest.approx(nll / tokens, rel=1e-6)
    assert f"perplexity {math.exp(report.loss):.2f}" in report.lines()[1]
    assert report.stopped_share is None


def test_answers_are_scored_against_the_files_references(base, data):
    """Random weights: nothing is right, and it is said how answers ended."""
    report = evaluate_model(base, [data], max_new_tokens=3, num_prompts=2, batch_size=2)
    assert report.answers == 2
    assert report.exact_match == 0.0
    assert report.bleu_4 is not None
    assert "cut by length" in report.lines()[2]


def test_an_adapter_is_measured_on_its_base(base, data, tmp_path, warm_proofs):
    """The same numbers as its merged export."""
    write_random_adapter(base, tmp_path / "adapter", rank=2, std=0.5)
    export(tmp_path / "adapter", tmp_path / "merged", merge=True)
    loss = {
        name: evaluate_model(path, [data], num_prompts=0).loss
        for name, path in (
            ("base", base),
            ("adapter", tmp_path / "adapter"),
            ("merged", tmp_path / "merged"),
        )
    }
    assert loss["adapter"] == pytest.approx(loss["merged"], rel=1e-5)
    assert loss["adapter"] != pytest.approx(loss["base"], rel=1e-3)


def test_stop_ids_of_another_vocabulary_are_refused(base, data, tmp_path):
    """Before weights are read (case E03, 5); missing turn tokens are a note (2 to 4)."""
    wrong = shutil.copytree(base, tmp_path / "wrong")
    (wrong / "generation_config.json").write_text(json.dumps({"eos_token_id": 20002}))
    (wrong / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="20002, but this tokenizer's answers end at"):
        evaluate_model(wrong, [data])
    short = shutil.copytree(base, tmp_path / "short")
    (short / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    report = evaluate_model(short, [data], num_prompts=0)
    assert "<|user|>" in report.notes[0]


def test_what_the_model_has_no_positions_for_is_refused(base, data, tmp_path):
    """Before weights are read; nothing to measure on too."""
    empty = shutil.copytree(base, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    positions = load_config(base).max_position_embeddings
    with pytest.raises(UsageError, match=f"longer than the model's {positions} positions"):
        evaluate_model(empty, [data], max_new_tokens=positions)
    with pytest.raises(UsageError, match=f"--max-length {positions + 1}: .* has {positions}"):
        evaluate_model(empty, [data], max_length=positions + 1)
    with pytest.raises(UsageError, match="nothing to measure it on"):
        evaluate_model(empty, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "3", "--num-fewshot", "0"], "--num-fewshot and --limit: only with --tasks"),
        (["--num-prompts", "0", "--max-new-tokens", "8"], "nothing is answered with --num-prompts"),
    ],
)
def test_options_that_would_do_nothing_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        CliRunner().invoke(app, ["evaluate", "nowhere", *options], catch_exceptions=False)


def test_a_length_that_the_run_says_is_refused(tmp_path):
    """A run's rows are as long as in training."""
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "config.yaml").write_text(
        "model: {model_name_or_path: m}\nmethod: lora\n"
        "data: {train: t}\ntraining: {output_dir: o}\n"
    )
    command = ["evaluate", str(tmp_path), "--max-length", "64"]
    with pytest.raises(UsageError, match="--max-length: the run that the model is from says"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_what_is_no_number_is_an_error_and_never_printed(base, data, tmp_path, monkeypatch):
    """Weights by their names; logits that only the sums of a precision break, in words."""
    broken = shutil.copytree(base, tmp_path / "broken")
    tensors = load_file(broken / "model.safetensors")
    place = next(name for name in tensors if "query_key_value.weight" in name)
    tensors[place][0, 0] = float("nan")
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=re.escape(place)):
        evaluate_model(broken, [data])
    monkeypatch.setattr("glmforge.compare.evaluation.refuse_not_finite", lambda *_: None)
    with pytest.raises(ModelError, match=r"its loss on .*held.jsonl is nan: its logits hold NaN"):
        evaluate_model(broken, [data])
    monkeypatch.setattr("glmforge.compare.evaluation.loss_of", lambda *_: 1.0)
    with pytest.raises(ModelError, match=r"logits are NaN after \d+ tokens"):
        evaluate_model(broken, [data])


def test_an_adapter_of_zeros_is_a_note(base, data, tmp_path):
    write_random_adapter(base, tmp_path / "zero", std=0.0)
    report = evaluate_model(tmp_path / "zero", [data], num_prompts=0)
    assert "every lora_B of" in report.lines()[-2]
    assert "the base cannot be checked" in report.lines()[-1]


def test_the_harness_is_asked_for_by_name(base):
    """Before anything is read, with the command that installs it."""
    if importlib.util.find_spec("lm_eval") is not None:
        pytest.skip("lm-evaluation-harness is installed here")
    with pytest.raises(UsageError, match=r"--tasks ceval: needs .*pip install 'lm-eval\[hf\]'"):
        evaluate_model(base, [], tasks=["ceval"])


FAKE = """
def simple_evaluate(model, tasks, num_fewshot, limit):
    if "unknown" in tasks:
        raise KeyError("unknown")
    results = {task: {"alias": task, "acc,none": 0.25, "acc_stderr,none": "N/A"} for task in tasks}
    results["asked"] = {"fewshot": num_fewshot, "limit": limit, "batch": model.batch_size}
    return {"results": results}
"""
FAKE_MODEL = """
class HFLM:
    def __init__(self, pretrained, tokenizer, batch_size):
        assert not hasattr(pretrained, "get_base_model")
        self.batch_size = batch_size
"""


def test_what_the_harness_finds_is_reported(base, tmp_path, monkeypatch):
    """A stand-in of the package: what it is given, and what of its answer is kept."""
    package = tmp_path / "lm_eval"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE)
    (package / "models" / "__init__.py").write_text("")
    (package / "models" / "huggingface.py").write_text(FAKE_MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    check_harness(["ceval"])
    model, tokenizer = load_model(base), load_tokenizer(base)
    found = run_tasks(model, tokenizer, ["ceval"], 2, 5, 10)
    assert found == {"ceval": {"acc": 0.25}, "asked": {"fewshot": 5.0, "limit": 10.0, "batch": 2.0}}
    with pytest.raises(UsageError, match="does not know 'unknown'"):
        run_tasks(model, tokenizer, ["unknown"], 2, None, None)
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
