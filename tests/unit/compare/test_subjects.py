"""Models are found, told apart and opened one at a time, the base once for all adapters."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.compare import subjects
from glmforge.compare.subjects import find_subjects, opened
from glmforge.errors import AdapterError, ExportError, UsageError

CPU = torch.device("cpu")
IDS = torch.arange(5, 25)[None]


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.fixture(scope="module")
def adapters(make_adapter):
    return [make_adapter("first", 1), make_adapter("second", 2)]


def test_adapters_are_switched_on_one_base(base_dir, whole_dir, adapters, monkeypatch):
    loads = []
    load = subjects.load_model

    def counted(directory, **options):
        loads.append(directory)
        return load(directory, **options)

    monkeypatch.setattr(subjects, "load_model", counted)
    found = find_subjects(base_dir, [adapters[0], whole_dir, adapters[1]], "fp32")
    assert [subject.name for subject in found] == ["base", "first", "merged", "second"]
    seen = {}
    for subject, model in opened(found, CPU, torch.float32):
        assert model() is model(), "loaded once"
        seen[subject.name] = logits(model())
    assert loads == [base_dir, whole_dir]
    alone = {}
    for subject in found[1:]:
        for other, model in opened([found[0], subject], CPU, torch.float32):
            alone[other.name] = logits(model())
    for name, wanted in alone.items():
        assert torch.equal(seen[name], wanted), f"{name} is not touched by those before it"
    assert len({float(value.sum()) for value in seen.values()}) == 4


def test_nothing_is_loaded_that_is_not_asked_for(base_dir, adapters, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("loaded")

    monkeypatch.setattr(subjects, "load_model", refuse)
    found = find_subjects(base_dir, adapters, "fp32")
    assert [s.name for s, _ in opened(found, CPU, torch.float32)] == ["base", "first", "second"]


def test_an_identity_follows_the_weights(base_dir, adapters, tmp_path):
    copy = tmp_path / "copy" / "first"
    shutil.copytree(adapters[0], copy)
    find = lambda path, dtype="fp32": find_subjects(base_dir, [path], dtype)[1].identity  # noqa: E731
    assert find(copy) == find(adapters[0])
    assert find(copy, "bf16") != find(copy)
    path = copy / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert find(copy) != find(adapters[0])


def test_names_are_as_short_as_they_can_be(base_dir, adapters, tmp_path):
    other = tmp_path / "again" / "first"
    shutil.copytree(adapters[0], other)
    names = [subject.name for subject in find_subjects(base_dir, [adapters[0], other], "fp32")]
    assert names[1:] == [f"{adapters[0].parent.name}/first", "again/first"]


def test_what_is_no_model_or_named_twice_is_refused(base_dir, adapters, tmp_path):
    with pytest.raises(ExportError, match="does not exist"):
        find_subjects(base_dir, [tmp_path / "none"], "fp32")
    with pytest.raises(UsageError, match="given twice"):
        find_subjects(base_dir, [adapters[0], adapters[0] / "."], "fp32")


def test_an_adapter_of_another_base_is_refused_before_weights_are_read(
    base_dir, adapters, tmp_path, monkeypatch
):
    """Another width, and the same model's other layout, with the command that changes it."""
    monkeypatch.setattr(subjects, "load_model", None)
    keys = json.loads((base_dir / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(keys | {"hidden_size": 48}), encoding="utf-8")
    with pytest.raises(AdapterError, match="a base of another size"):
        find_subjects(tmp_path, [adapters[0]], "fp32")
    glm = {"model_type": "glm", "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
           "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
           "pad_token_id": 0}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(glm), encoding="utf-8")
    with pytest.raises(AdapterError, match="glmforge export ADAPTER OUT --layout transformers"):
        find_subjects(tmp_path, [adapters[0]], "fp32")


def test_a_base_that_is_a_run_is_refused_with_what_it_began_from(adapters, tmp_path):
    """--base wants a model directory."""
    with pytest.raises(ExportError, match=r"it has no config\.json"):
        find_subjects(tmp_path, adapters, "fp32")
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "config.yaml").write_text(
        "model: {model_name_or_path: models/six}\ndata: {train: t}\ntraining: {output_dir: o}\n"
    )
    with pytest.raises(ExportError, match="that run began from models/six"):
        find_subjects(tmp_path, adapters, "fp32")


def test_a_base_that_an_adapter_was_not_trained_on_is_refused(base_dir, adapters, tmp_path):
    """The shapes are the same; nothing is loaded for it. Without base.json it is a note."""
    other = shutil.copytree(base_dir, tmp_path / "other")
    tensors = {k: v + 0.5 for k, v in load_file(other / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AdapterError, match="is not the base it was trained on"):
        find_subjects(other, [adapters[0]], "fp32")
    bare = shutil.copytree(adapters[0], tmp_path / "bare")
    (bare / "base.json").unlink()
    notes = find_subjects(other, [bare], "fp32")[1].notes
    assert [note.split(":")[0] for note in notes] == ["the base cannot be checked"]
