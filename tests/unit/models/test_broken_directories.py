"""Weight files, indexes and configurations that are wrong: each is named, none is a traceback."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from weight_layouts import rewrite

from glmforge.errors import ModelError
from glmforge.models import load_config, load_model, load_tokenizer
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.inspection import inspect_model
from glmforge.models.weights import weight_files

QKV = "transformer.encoder.layers.0.self_attention.query_key_value.weight"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            {"state_dict": {"a": torch.ones(1)}, "epoch": 3},
            "besides tensors it holds 'epoch' .int., 'state_dict' .di",
        ),
        ([torch.ones(1)], "holds a list, not a map"),
        ({"a": torch.ones(1), "step": 7}, "besides tensors it holds 'step' .int.: .*checkpoint"),
        ({3: torch.ones(1)}, "besides tensors it holds '3'"),
        (None, "cannot be read"),
    ],
)
def test_a_bin_file_of_something_else_than_tensors_says_what(directory, content, complaint):
    (directory / "model.safetensors").unlink()
    file = directory / "pytorch_model.bin"
    torch.save(content, file)
    if content is None:  # a zip cut short is torn, not dangerous
        file.write_bytes(file.read_bytes()[:3])
    with pytest.raises(ModelError, match=rf"pytorch_model\.bin: {complaint}"):
        load_model(directory)


@pytest.mark.parametrize("layout", ["sharded bin", "sharded safetensors"])
class TestIndex:
    def change(self, directory, tensors, layout, edit):
        rewrite(directory, tensors, layout)
        index = next(directory.glob("*.index.json"))
        keys = json.loads(index.read_text(encoding="utf-8"))
        index.write_text(json.dumps(edit(keys) or keys), encoding="utf-8")

    def test_a_tensor_in_two_shards_is_an_error(self, directory, tensors, layout):
        rewrite(directory, tensors, layout)
        first, second = weight_files(directory)
        name = "transformer.embedding.word_embeddings.weight"
        read, write = (
            (torch.load, torch.save) if layout == "sharded bin" else (load_file, save_file)
        )
        held = [read(file) for file in (first, second)]
        holder, other = (0, 1) if name in held[0] else (1, 0)
        held[other][name] = held[holder][name] + 1
        write(held[other], (first, second)[other])
        with pytest.raises(ModelError, match=rf"{name} is in two shards, .*00001.* and .*00002"):
            load_model(directory)

    def test_a_tensor_that_no_shard_holds_is_an_error(self, directory, tensors, layout):
        self.change(
            directory,
            tensors,
            layout,
            lambda keys: keys["weight_map"].update(ghost=next(iter(keys["weight_map"].values()))),
        )
        with pytest.raises(ModelError, match=r"names ghost in .*, and no shard holds it"):
            load_model(directory)

    @pytest.mark.parametrize(
        ("edit", "complaint"),
        [
            (lambda keys: keys.pop("metadata") and None, 'has no "metadata"'),
            (lambda keys: keys["weight_map"].update(a=1), "weight_map puts a into 1"),
            (lambda keys: keys["weight_map"].update(a="../x.bin"), "which is no file name"),
            (lambda keys: keys.update(weight_map=[]), "no weight_map"),
            (lambda keys: [keys], "no weight_map"),
        ],
    )
    def test_an_index_of_another_form_is_named(self, directory, tensors, layout, edit, complaint):
        self.change(directory, tensors, layout, lambda keys: edit(keys) if keys else None)
        if complaint == 'has no "metadata"':
            index = next(directory.glob("*.index.json"))
            keys = json.loads(index.read_text(encoding="utf-8"))
            index.write_text(json.dumps({"weight_map": keys["weight_map"]}), encoding="utf-8")
        with pytest.raises(ModelError, match=complaint):
            load_model(directory)


def test_tensors_of_integers_are_refused_not_cast(directory, tensors):
    tensors[QKV] = tensors[QKV].to(torch.int8)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"not stored in .* floating point: {QKV} I8"):
        load_model(directory)


WRONG_VALUES = [
    ("num_layers", "3"), ("num_layers", 3.0), ("num_layers", -1), ("num_layers", True),
    ("padded_vocab_size", "512"), ("padded_vocab_size", None), ("padded_vocab_size", "many"),
    ("torch_dtype", "float17"), ("torch_dtype", 16), ("rope_ratio", "2"),
    ("layernorm_epsilon", "1e-5"), ("seq_length", "8k"), ("eos_token_id", ["2"]),
    ("add_qkv_bias", "true"), ("num_attention_heads", 0), ("num_hidden_layers", "2"),
    ("family", "chatglm3"), ("rmsnorm", False), ("pre_seq_len", 128), ("model_type", None),
    ("model_type", 3), ("multi_query_group_num", 3), ("use_return_dict", True),
    ("rope_ratio", 0), ("rope_ratio", -1.0), ("rope_ratio", float("nan")),
    ("layernorm_epsilon", 0), ("layernorm_epsilon", -1e-5), ("num_layers", 10**10),
    ("rope_scaling", {"type": "linear", "factor": 4.0}), ("rope_theta", 500_000),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}), ("rope_scaling", "yarn"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}),
    ("quantization_config", {"quant_method": "awq"}), ("quantization_config", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG_VALUES)
def test_a_value_that_no_model_can_have_names_file_and_key(directory, key, value):
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**keys, key: value}), encoding="utf-8")
    for use in (load_model, load_config, inspect_model):
        with pytest.raises(ModelError) as error:
            use(directory)
        assert all(problem.startswith(f"{path}: ") for problem in error.value.problems)
        assert key in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", None),
        ("rope_theta", 10_000.0),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 10_000.0}),
        ("quantization_config", None),
    ],
)
def test_a_rotary_or_quantisation_key_that_says_nothing_is_let_pass(
    directory, tmp_path, key, value
):
    """Also after a round trip through save_pretrained."""
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**keys, key: value}), encoding="utf-8")
    load_config(directory).save_pretrained(tmp_path / "again")
    assert load_config(tmp_path / "again").rope_base == 10_000.0


def test_a_quantised_export_of_another_model_says_what_to_use(tmp_path):
    for method in ("gptq", "awq", "bitsandbytes"):
        keys = {"model_type": "llama", "quantization_config": {"quant_method": method}}
        (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
        with pytest.raises(ModelError, match=f"config.json: .*{method}.*train on the 16-bit base"):
            load_config(tmp_path)


def test_all_wrong_values_are_named_at_once(directory):
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    texts = {key: str(value) for key, value in keys.items() if type(value) is int}
    path.write_text(json.dumps({**keys, **texts}), encoding="utf-8")
    with pytest.raises(ModelError) as error:
        load_config(directory)
    assert len(error.value.problems) == len(texts) > 5


def test_wrong_values_of_another_model_are_named_too(tmp_path):
    for key, value in (("hidden_size", "x"), ("torch_dtype", "float17")):
        keys = {"model_type": "llama", "num_attention_heads": 4, key: value}
        (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
        with pytest.raises(ModelError, match=r"config\.json: transformers cannot read it"):
            load_config(tmp_path)


def test_a_configuration_without_keys_says_what_to_use(tmp_path):
    for make in (ChatGLMConfig, lambda: AutoConfig.for_model("chatglm")):
        with pytest.raises(ModelError, match="ChatGLM6BConfig or ChatGLM2Config") as error:
            make()
        assert "_" not in str(error.value).replace("from_pretrained", "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"device": "xyz"}, "device 'xyz': torch knows no such device"),
        ({"device": "cuda:77"}, "device 'cuda:77': torch .* CUDA devices"),
        ({"dtype": "int8"}, "dtype 'int8': use torch.float32"),
        ({"dtype": torch.int8}, "dtype torch.int8: use"),
        ({"attention": "flash"}, "attention 'flash': use one of auto, eager, sdpa"),
    ],
)
def test_an_argument_that_may_not_be_is_named(directory, options, complaint):
    with pytest.raises(ModelError, match=complaint):
        load_model(directory, **options)


def test_the_attention_that_a_config_asks_for_is_not_taken_over(directory):
    path = directory / "config.json"
    keys = json.loads(path.read_text(encoding="utf-8"))
    keys["attn_implementation"] = "flash_attention_2"
    path.write_text(json.dumps(keys), encoding="utf-8")
    assert load_model(directory).config._attn_implementation == "sdpa"


def test_a_model_of_transformers_without_a_tokenizer_is_told_in_one_line(tmp_path):
    """transformers' own reason has several, which a list of problems would tear apart."""
    keys = {"model_type": "mixtral", "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(keys), encoding="utf-8")
    with pytest.raises(ModelError, match="copy the tokenizer's files from where") as caught:
        load_tokenizer(tmp_path)
    (said,) = caught.value.problems
    assert "\n" not in said
