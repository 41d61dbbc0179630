"""A whole comparison in one process: the same ids and settings for all, and what is refused."""

import dataclasses
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.compare.answers import decodings
from glmforge.compare.checks import Format
from glmforge.compare.markdown import markdown
from glmforge.compare.report import report_values, write_json
from glmforge.compare.run import compare_models
from glmforge.compare.setup import Request, set_up
from glmforge.distributed.collectives import Ranks
from glmforge.distributed.env import World
from glmforge.errors import DataError, GlmForgeError, ModelError, UsageError
from glmforge.ui.compare_page import SETTINGS

ALONE = Ranks(world=World(), device=torch.device("cpu"))
ROWS = [
    {"prompt": "什么时候发货？", "reference": "今天发货。"},
    {"prompt": "退货 `code` <b>| x", "reference": "", "id": "a|<b>"},
    {"prompt": "how much?", "check": {"number": 3}},
    {"prompt": "one", "reference": "two"},
    {"prompt": "</script>", "reference": "three"},
]


def ways(**changes):
    return decodings(
        **{"beams": None, "seeds": 0, "temperature": 0.7, "repetition_penalty": 1.2, "top_p": 1.0,
           **changes}
    )  # fmt: skip


@pytest.fixture
def request_for(base_dir, tmp_path):
    def build(*tuned, **changes):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
        values = {
            "base": base_dir,
            "tuned": tuned,
            "prompts": path,
            "kept_dir": tmp_path / "kept",
            "ways": ways(),
            "max_new_tokens": 6,
            "general": False,
        }
        return Request(**(values | changes))

    return build


def compared(request):
    notes = []
    return compare_models(request, ALONE, notes.append), notes


@pytest.fixture(scope="module")
def adapter(make_adapter):
    return make_adapter("tuned", 3)


@pytest.fixture
def validation(tmp_path):
    path = tmp_path / "validation.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in (("发货？", "今天。"), ("one", "two three"), ("退货", "好的，可以退货。"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_a_comparison_has_answers_measures_losses_and_a_verdict(
    request_for, adapter, whole_dir, validation, tmp_path
):
    request = request_for(
        adapter,
        whole_dir,
        ways=ways(beams=2, seeds=2),
        general=True,
        max_new_tokens=3,
        batch_size=32,
        form=Format(regex="x+"),
        validation=[validation],
    )
    report, _ = compared(request)
    assert [model.name for model in report.models] == ["base", "tuned", "merged"]
    for model in report.models:
        assert list(model.answers) == ["greedy", "beam-2", "sample-1", "sample-2"]
        assert [len(row) for row in model.answers.values()] == [85, 5, 5, 5]
        assert set(model.diversity) == {"distinct_1", "distinct_2", "self_bleu"}
        assert model.general["all"].mean.count == 80
        assert model.loss > 0
        assert model.tables["greedy"]["format"].mean.count == 5
        assert model.tables["greedy"]["check"].mean.count == 1
    assert len({model.loss for model in report.models}) == 3
    topics = [finding.topic for finding in report.models[1].verdict]
    assert topics[:2] == ["format", "check"]
    assert {"references", "loss", "general", "loops", "cut"} <= set(topics)
    assert report.settings["references"] == "1 reference empty, not compared"
    values = report_values(report)
    write_json(report, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(values)
    )
    text = markdown(report)
    assert "a\\|\\<b\\>" in text
    assert text.count("## Measures: ") == 4
    again, said = compared(request)
    assert (again, said) == (report, []), "all is kept, nothing is said"


def test_the_loss_is_that_of_the_model_itself(request_for, adapter, validation, base_dir):
    """Summed row by row through the plain loss."""
    from glmforge.data import load_examples
    from glmforge.models import load_model, load_tokenizer

    report, _ = compared(request_for(adapter, validation=[validation]))
    model = load_model(base_dir)
    examples = load_examples(validation, load_tokenizer(base_dir), max_length=2048).examples
    nll, tokens = 0.0, 0
    for example in examples:
        ids = torch.tensor(example.input_ids[None].tolist())
        labels = torch.tensor(example.labels[None].tolist())
        count = int((labels[:, 1:] != -100).sum())
        nll += model(input_ids=ids, labels=labels).loss.item() * count
        tokens += count
    assert report.base.loss == pytest.approx(nll / tokens, rel=1e-5)


def test_references_are_used_as_asked(request_for, adapter):
    report, _ = compared(request_for(adapter, references=False))
    assert "rouge_l" not in report.base.tables["greedy"]
    request = request_for(adapter, references=True)
    request.prompts.write_text('{"prompt": "a"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"no prompt of .* has a reference"):
        compared(request)


def test_one_stop_list_serves_every_model(request_for, whole_dir, tmp_path):
    """Case E03: a generation config that stops at less counts for nothing, and is told."""
    tuned = tmp_path / "less"
    shutil.copytree(whole_dir, tuned)
    path = tuned / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}), encoding="utf-8")
    report, notes = compared(request_for(tuned))
    assert report.settings["stop ids"] == "2, 3006, 3008"
    assert "eos_token_id lacks <|user|> (3006)" in notes[0]
    assert report.notes == notes[:1]
    path.write_text(json.dumps({"eos_token_id": 20002}), encoding="utf-8")
    with pytest.raises(ModelError, match="different vocabularies"):
        compared(request_for(tuned))


def test_a_model_of_another_tokenizer_is_refused(request_for, whole_dir, tmp_path):
    from glmforge.data import train_vocabulary

    tuned = tmp_path / "other"
    shutil.copytree(whole_dir, tuned)
    train_vocabulary(["how much? one two three"] * 9, tmp_path / "v", 300)
    shutil.copy(tmp_path / "v" / "tokenizer.model", tuned / "tokenizer.model")
    (tuned / "generation_config.json").unlink()
    with pytest.raises(UsageError, match="its tokenizer makes other ids of prompt 'p1'"):
        compared(request_for(tuned))


def test_ids_of_the_general_set_are_taken(request_for, adapter):
    request = request_for(adapter, general=True)
    request.prompts.write_text('{"prompt": "a", "id": "facts-zh-01"}\n', encoding="utf-8")
    with pytest.raises(DataError, match="one of the general set's"):
        compared(request)


def test_a_base_without_weights_is_the_random_start_of_the_run(
    request_for, base_dir, whole_dir, tmp_path
):
    """A run from scratch began from random weights of its seed: those are the base."""
    from glmforge.models import load_config, new_model

    start = tmp_path / "start"
    shutil.copytree(base_dir, start)
    (start / "model.safetensors").unlink()
    run = tmp_path / "run"
    shutil.copytree(whole_dir, run / "model")
    settings = {
        "model": {"model_name_or_path": str(start), "from_scratch": True},
        "method": "full",
        "data": {"train": str(tmp_path / "prompts.jsonl")},
        "training": {"output_dir": str(run), "seed": 9},
    }
    (run / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    (run / "metrics.jsonl").touch()
    request = request_for(run, base=start)
    report, _ = compared(request)
    assert "seed 9" in report.base.about
    torch.manual_seed(9)
    saved = tmp_path / "saved"
    shutil.copytree(base_dir, saved)
    new_model(load_config(start)).save_pretrained(saved)
    wanted, _ = compared(dataclasses.replace(request, base=saved, kept_dir=tmp_path / "k2"))
    assert report.base.answers == wanted.base.answers


def test_answers_past_the_models_positions_are_refused(request_for, adapter, whole_dir, tmp_path):
    """Before weights are read; of the model with the fewest positions."""
    words = r"--max-new-tokens 1020: with it 5 of 5 prompts \(p1, a\|<b>, p3, …\) are longer than"
    with pytest.raises(UsageError, match=words):
        set_up(request_for(adapter, max_new_tokens=1020), "fp32", ALONE, print)
    short = tmp_path / "short"
    shutil.copytree(whole_dir, short)
    keys = json.loads((short / "config.json").read_text(encoding="utf-8")) | {"seq_length": 64}
    (short / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    with pytest.raises(
        UsageError, match=r"64 positions; the longest prompt has (\d+) tokens"
    ) as told:
        set_up(request_for(adapter, short, max_new_tokens=63), "fp32", ALONE, print)
    room = int(str(told.value).rsplit("give ", 1)[1].split()[0])
    set_up(request_for(adapter, short, max_new_tokens=room), "fp32", ALONE, print)
    with pytest.raises(UsageError, match=f"--max-new-tokens {room + 1}: with it 1 of 5"):
        set_up(request_for(adapter, short, max_new_tokens=room + 1), "fp32", ALONE, print)


def test_an_adapter_of_zeros_is_told(request_for, adapter, tmp_path):
    zero = shutil.copytree(adapter, tmp_path / "z0")
    path = zero / "adapter_model.safetensors"
    tensors = {k: v * (".lora_A." in k) for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    report, said = compared(request_for(zero))
    assert report.notes[0].startswith("z0: every lora_B of ")
    assert report.notes[0] in said


def test_a_model_whose_weights_or_losses_are_no_numbers_is_refused(
    request_for, whole_dir, adapter, validation, tmp_path, monkeypatch
):
    """Nothing of it is kept as an answer or a loss."""
    for source, name, part in (
        (whole_dir, "model", "dense_4h_to_h.weight"),
        (adapter, "adapter_model", "query_key_value.lora_B"),
    ):
        broken = shutil.copytree(source, tmp_path / name)
        tensors = load_file(broken / f"{name}.safetensors")
        place = next(key for key in tensors if part in key)
        tensors[place][0, 0] = float("nan")
        save_file(tensors, broken / f"{name}.safetensors", metadata={"format": "pt"})
        with pytest.raises(GlmForgeError, match=re.escape(place)):
            compared(request_for(broken))
    monkeypatch.setattr("glmforge.compare.subjects.refuse_not_finite", lambda *_: None)
    with pytest.raises(ModelError, match="model: the model's logits are NaN"):
        compared(request_for(tmp_path / "model"))
    monkeypatch.setattr("glmforge.compare.run.ask", lambda *_: {"greedy": []})
    with pytest.raises(ModelError, match=r"model: its loss on .*validation.jsonl:1 is nan"):
        compared(request_for(tmp_path / "model", validation=[validation]))


def test_a_run_whose_data_is_gone_still_compares(request_for, make_adapter, base_dir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(make_adapter("adapter", 5), run / "adapter")
    settings = {
        "model": {"model_name_or_path": str(base_dir)},
        "method": "lora",
        "data": {"train": "gone.jsonl", "validation": "gone too.jsonl"},
        "training": {"output_dir": str(run)},
    }
    (run / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    (run / "metrics.jsonl").touch()
    report, _ = compared(request_for(run))
    assert [model.loss for model in report.models] == [None, None]
    assert {prompt.seen for prompt in report.prompts} == {None}
    assert [note.split(":")[0] for note in report.notes] == [
        "seen or held out is not marked",
        "no validation loss",
    ]


def test_a_judges_word_is_in_the_verdict(request_for, adapter, monkeypatch):
    from glmforge.compare import run
    from glmforge.compare.judge import Judge

    monkeypatch.setattr(run, "judge_pairs", lambda *_: ["tuned", "tuned", "tie", "base", "tuned"])
    judge = Judge(base_url="http://127.0.0.1:1/v1", model="m", key="secret")
    report, _ = compared(request_for(adapter, judge=judge))
    said = {finding.topic: finding for finding in report.models[1].verdict}["judge"]
    assert said.english == "the judge prefers it in 3/5, the base in 1/5, neither in 1/5"
    assert (said.level, said.prompts) == ("note", ("p4",))
    assert "secret" not in json.dumps(report_values(report))
    assert set(report.settings) <= set(SETTINGS), "each has a Chinese name"
