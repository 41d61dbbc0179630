"""Opening a model directory: every layout of files, and every way it can be wrong."""

import contextlib
import json
import pickle

import pytest
import torch
from generations import DECODER_KEYS, FIRST_GENERATION, GENERATIONS, TRANSFORMERS_OWN
from huggingface_hub.utils.tqdm import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from transformers.utils import logging
from weight_layouts import rewrite

from glmforge.errors import ModelError
from glmforge.models import load_config, load_model, new_model
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.loading import load_model_in_parts, unfilled_model
from glmforge.models.weights import fill, stored_tensors, stream_tensors, weight_files

QKV = "transformer.encoder.layers.0.self_attention.query_key_value.weight"


@pytest.mark.parametrize("layout", ["bin", "legacy bin", "sharded bin", "sharded safetensors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_layout_and_dtype_opens_with_equal_weights(directory, tensors, layout, dtype):
    stored = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    # The vendor's files also hold the rotary frequencies, which are computed here.
    stored["transformer.rotary_pos_emb.inv_freq"] = torch.ones(4)
    rewrite(directory, stored, layout)
    model = load_model(directory)
    assert model.dtype == torch.float32
    assert not model.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, stored[name].float()), name


def test_a_model_may_be_loaded_in_half_precision(directory):
    for name in (torch.bfloat16, "bfloat16", "bf16"):
        assert load_model(directory, dtype=name).dtype == torch.bfloat16


def test_missing_unexpected_and_misshaped_tensors_are_listed_at_once(directory, tensors):
    final = tensors.pop("transformer.encoder.final_layernorm.weight")
    tensors["transformer.encoder.final_norm.weight"] = final
    tensors[QKV] = tensors[QKV][:-16].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as error:
        load_model(directory)
    missing, unexpected, misshaped = error.value.problems
    assert "1 tensors are missing: transformer.encoder.final_layernorm.weight" in missing
    assert "transformer.encoder.final_norm.weight" in unexpected
    assert f"{QKV} [112, 64] instead of [128, 64] (model.safetensors)" in misshaped


@pytest.mark.parametrize("layout", ["bin", "legacy bin", "sharded bin", "sharded safetensors"])
@pytest.mark.parametrize("kept", [0, 7, 3000])
def test_a_torn_shard_is_named(directory, tensors, layout, kept):
    rewrite(directory, tensors, layout)
    file = weight_files(directory)[-1]
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match=rf"{file.name}: cannot be read .*download it again"):
        load_model(directory)


def test_a_git_lfs_pointer_is_named_as_such(directory):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (directory / "model.safetensors").write_text(pointer, encoding="utf-8")
    with pytest.raises(ModelError, match="git lfs pull"):
        load_model(directory)


def test_shards_that_are_not_there_are_all_named(directory, tensors):
    rewrite(directory, tensors, "sharded safetensors")
    for file in directory.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match=r"2 of 2 shards .*00001-of-00002.*00002-of-00002"):
        load_model(directory)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was run')",))


def test_a_pickle_that_runs_code_is_refused(directory):
    (directory / "model.safetensors").unlink()
    torch.save({"weight": Evil()}, directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could run code"):
        load_model(directory)
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(ModelError, match="could run code"):
        load_model(directory)


def test_a_directory_without_weights_says_which_files_it_looked_for(directory):
    (directory / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no weights there \(model\.safetensors"):
        load_model(directory)


def test_a_directory_without_a_tokenizer_is_a_model(directory):
    assert not list(directory.glob("tokenizer*"))
    assert load_model(directory).config.family == "chatglm3"


@pytest.mark.parametrize(("content", "complaint"), [("{", "not valid JSON"), ("[]", "object")])
def test_a_damaged_config_is_named(directory, content, complaint):
    (directory / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=rf"config\.json: .*{complaint}"):
        load_config(directory)


def test_an_unknown_model_type_is_an_error_even_with_its_own_code(directory):
    keys = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.MyConfig"}}
    (directory / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    (directory / "configuration_mine.py").write_text("raise SystemExit(1)", encoding="utf-8")
    with pytest.raises(ModelError, match="never run"):
        load_config(directory)


class TestVendorExports:
    def test_an_int4_export_is_refused_with_what_to_use_instead(self, shared):
        with pytest.raises(ModelError, match=r"this is an int4 export.*16-bit base.*quantise"):
            load_config(shared / "cases" / "M03")

    def test_transformers_own_entry_refuses_it_too(self):
        with pytest.raises(ModelError, match="int4 export"):
            ChatGLMConfig.from_dict({**DECODER_KEYS, "quantization_bit": 4})

    @pytest.mark.parametrize("value", [0, None])
    def test_no_quantisation_is_accepted(self, directory, value):
        path = directory / "config.json"
        keys = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**keys, "quantization_bit": value}), encoding="utf-8")
        assert load_model(directory).config.family == "chatglm3"


@pytest.mark.parametrize("generation", [*GENERATIONS, *FIRST_GENERATION, *TRANSFORMERS_OWN])
def test_the_same_seed_makes_the_same_new_model(tmp_path, generation):
    keys = {**GENERATIONS, **FIRST_GENERATION, **TRANSFORMERS_OWN}[generation]
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(new_model(load_config(tmp_path), dtype=torch.bfloat16).state_dict())
    assert all(tensor.dtype == torch.bfloat16 for tensor in states[0].values())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert torch.get_default_dtype() == torch.float32


def test_weights_can_be_filled_in_shard_by_shard(directory, tensors):
    rewrite(directory, tensors, "sharded safetensors")
    model = unfilled_model(load_config(directory))
    with torch.no_grad():
        fill(model, directory, lambda parameter, tensor: parameter.copy_(tensor))
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert {name for name, _ in stream_tensors(directory)} == set(stored_tensors(directory))


def test_another_causal_lm_opens_with_transformers_own_class(tmp_path):
    keys = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    new_model(load_config(tmp_path)).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert type(model).__module__.startswith("transformers.")
    ids = torch.randint(0, 64, (1, 8))
    mean = model(ids, labels=ids).loss
    summed = model(ids, labels=ids, num_items_in_batch=7).loss
    assert summed.item() == pytest.approx(mean.item(), rel=1e-6)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:4].clone()
    tensors["strange"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as error:
        load_model(tmp_path)
    unexpected, misshaped = error.value.problems
    assert unexpected == f"{tmp_path}: 1 tensors are not of this model: strange"
    assert "1 tensors have another shape than config.json says" in misshaped
    assert f"{name} [4, 32] instead of [32, 32]" in misshaped


@pytest.mark.parametrize("generation", list(TRANSFORMERS_OWN))
def test_what_is_saved_names_transformers_own_class(tiny_model, tmp_path, generation):
    tiny_model(generation).save_pretrained(tmp_path / "saved")
    keys = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert keys["architectures"] == TRANSFORMERS_OWN[generation]["architectures"]


class TestQuiet:
    def test_no_progress_bar_is_printed_while_loading(self, directory, capsys):
        load_model(directory)
        assert "Loading weights" not in capsys.readouterr().err

    @pytest.mark.parametrize("shown", [True, False])
    def test_the_librarys_own_switch_is_left_as_it_was(self, directory, shown, monkeypatch):
        monkeypatch.setattr(logging, "_tqdm_active", shown)
        hub_was_silent = are_progress_bars_disabled()
        load_model(directory)
        assert logging.is_progress_bar_enabled() is shown
        assert are_progress_bars_disabled() is hub_was_silent


class TestInParts:
    @pytest.mark.parametrize("generation", ["chatglm3", "chatglm", "glm", "glm4"])
    def test_a_model_loaded_in_parts_is_the_whole_one(self, tiny_model, tmp_path, generation):
        model = tiny_model(generation)
        model.generation_config.max_new_tokens = 77
        model.save_pretrained(tmp_path / "model")
        parts = load_model_in_parts(
            tmp_path / "model",
            torch.float32,
            construction=contextlib.nullcontext(),
            assign=lambda parameter, stored: parameter.data.copy_(stored),
        )
        expected = model.state_dict()
        assert parts.state_dict().keys() == expected.keys()
        assert all(torch.equal(t, expected[name]) for name, t in parts.state_dict().items())
        assert parts.generation_config.max_new_tokens == 77
        assert not parts.training

    def test_a_model_whose_tensor_names_are_not_ours_is_refused(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
        with pytest.raises(ModelError, match="not in the family table"):
            load_model_in_parts(
                tmp_path,
                torch.float32,
                construction=contextlib.nullcontext(),
                assign=lambda *_: None,
            )
