"""One base loaded once, adapters switched by name: each answers as it does alone."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from glmforge.adapters import open_adapter
from glmforge.data import generation_prompt
from glmforge.errors import AdapterError, GlmForgeError, ModelError, UsageError
from glmforge.models import load_model
from glmforge.serve.opening import find_paths, open_models
from glmforge.serve.replies import Ask, reply


@torch.no_grad()
def logits(model, tokenizer):
    ids = generation_prompt([{"role": "user", "content": "你好"}], tokenizer)
    return model(input_ids=torch.tensor([ids])).logits


def test_each_name_gives_the_logits_of_that_model_alone(small_models, small_base, two_adapters):
    """In any order, bit by bit."""
    alone = {"base": logits(load_model(small_base), small_models.tokenizer)}
    for name, path in zip(["first", "v1.2"], two_adapters):
        alone[name] = logits(open_adapter(load_model(small_base), path), small_models.tokenizer)
    assert small_models.names == ("base", "first", "v1.2")
    for name in ["v1.2", "base", "first", "base", "v1.2", "first"]:
        with small_models.using(name) as model:
            assert torch.equal(logits(model, small_models.tokenizer), alone[name]), name
    assert len({tuple(found.flatten().tolist()) for found in alone.values()}) == 3


def test_names_are_given_or_the_directorys_own(two_adapters, tmp_path):
    """`adapter` says nothing, the run before it does; `NAME=DIR` decides."""
    first, second = two_adapters
    assert list(find_paths(tmp_path, [(None, first), ("b", second)]).adapters) == ["first", "b"]
    assert find_paths(tmp_path, [(None, first.parent)]).adapters == {"first": first}
    with pytest.raises(UsageError, match="the name 'first' is taken"):
        find_paths(tmp_path, [(None, first), ("first", second)])
    with pytest.raises(UsageError, match="the name 'base' is taken"):
        find_paths(tmp_path, [("base", first)])


def test_an_adapter_of_another_model_is_refused_wherever_it_stands(
    small_base, two_adapters, tmp_path
):
    """The second is counted as the first is."""
    from safetensors.torch import load_file, save_file

    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "adapter_config.json").write_bytes(
        (two_adapters[0] / "adapter_config.json").read_bytes()
    )
    tensors = load_file(two_adapters[0] / "adapter_model.safetensors")
    wrong = {name.replace("layers.0", "layers.7"): tensor for name, tensor in tensors.items()}
    save_file(wrong, bad / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match="matched 0 of 2"):
        open_models(find_paths(small_base, [(None, two_adapters[0]), (None, bad)]))


def test_a_seed_draws_the_same_answer_and_no_seed_another(small_models):
    """Whatever was drawn before; greedy needs none."""
    prompt = generation_prompt([{"role": "user", "content": "你好"}], small_models.tokenizer)

    def drawn(**options):
        return reply(small_models, "first", Ask(prompt=prompt, max_new_tokens=24, **options)).text

    assert drawn() == drawn(temperature=0.0)
    assert drawn(temperature=1.0, seed=3) == drawn(temperature=1.0, seed=3)
    assert drawn(temperature=1.0, seed=3) != drawn(temperature=1.0, seed=4)
    assert drawn(temperature=1.0) != drawn(temperature=1.0)


def test_an_answer_nobody_waits_for_ends_at_the_next_token(small_models):
    """Asked after each token; before the first nothing is generated."""
    prompt = generation_prompt([{"role": "user", "content": "你好"}], small_models.tokenizer)
    ask = Ask(prompt=prompt, max_new_tokens=40)
    calls = iter([False, False, False, True])
    cut = reply(small_models, "base", ask, cancelled=lambda: next(calls, True))
    assert (cut.finish, cut.new_tokens) == ("cancelled", 3)
    assert reply(small_models, "base", ask, cancelled=lambda: True).new_tokens == 0


def test_weights_and_logits_that_are_no_numbers_are_refused(small_base, two_adapters, tmp_path):
    """By tensor name where files hold NaN; else at the first token instead of blank answers."""
    for source, name in ((small_base, "model"), (two_adapters[0], "adapter_model")):
        broken = shutil.copytree(source, tmp_path / name)
        tensors = load_file(broken / f"{name}.safetensors")
        place = next(key for key in tensors if "query_key_value" in key and "bias" not in key)
        tensors[place][0, 0] = float("nan")
        save_file(tensors, broken / f"{name}.safetensors", metadata={"format": "pt"})
        base, adapters = (broken, []) if name == "model" else (small_base, [(None, broken)])
        with pytest.raises(GlmForgeError, match=re.escape(place)):
            open_models(find_paths(base, adapters))
    models = open_models(find_paths(small_base, []))
    with torch.no_grad():
        models.model.get_output_embeddings().weight[5] = float("nan")
    ask = Ask(prompt=[1, 2, 3], max_new_tokens=4)
    with pytest.raises(ModelError, match="logits are NaN after 3 tokens"):
        reply(models, "base", ask)


def test_an_adapter_that_changes_nothing_is_told(small_base, two_adapters, tmp_path):
    zero = shutil.copytree(two_adapters[0], tmp_path / "zero")
    path = zero / "adapter_model.safetensors"
    tensors = {k: v * (".lora_A." in k) for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    models = open_models(find_paths(small_base, [(None, two_adapters[1]), ("z", zero)]))
    assert len(models.notes) == 1
    assert models.notes[0].startswith("z: every lora_B of ")
    assert open_models(find_paths(small_base, [("z", zero)])).notes == models.notes


@pytest.fixture
def other_base(small_base, tmp_path):
    """The same shapes, other weights."""
    other = shutil.copytree(small_base, tmp_path / "other")
    tensors = {k: v + 0.5 for k, v in load_file(other / "model.safetensors").items()}
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    return other


def test_an_adapter_of_another_base_is_refused(other_base, two_adapters):
    """Before the base is loaded; chat and serve open models here."""
    with pytest.raises(AdapterError, match="is not the base it was trained on"):
        open_models(find_paths(other_base, [("a", two_adapters[0])]))


def test_an_adapter_whose_base_cannot_be_checked_is_told(small_base, two_adapters, tmp_path):
    bare = shutil.copytree(two_adapters[0], tmp_path / "bare")
    (bare / "base.json").unlink()
    models = open_models(find_paths(small_base, [("a", two_adapters[1]), ("b", bare)]))
    assert [note.split(":")[0] for note in models.notes] == ["the base cannot be checked"]
