"""Weights, configuration and adapters between the two layouts: equal logits, exact ways back."""

import json

import pytest
import torch
from generations import FIRST_GENERATION, GENERATIONS
from safetensors.torch import load_file, save_file

from glmforge.errors import AdapterError, ModelError
from glmforge.models import load_config, load_model
from glmforge.models.adapter_layouts import adapter_to_chatglm, adapter_to_transformers
from glmforge.models.configuration import ChatGLMConfig
from glmforge.models.layouts import (
    to_chatglm,
    to_chatglm_config,
    to_transformers,
    to_transformers_config,
)
from glmforge.models.weights import stream_tensors

IDS = torch.randint(3, 500, (2, 12), generator=torch.Generator().manual_seed(5))
TOLERANCE = 2e-5  # fp32: the two decoders add up in another order


def logits_of(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.fixture(params=list(GENERATIONS))
def ours(request, tiny_model, tmp_path):
    """A saved model of each generation, and its directory."""
    model = tiny_model(request.param)
    model.save_pretrained(tmp_path / "ours")
    return model, tmp_path / "ours"


def write_transformers(model, directory, target):
    config = to_transformers_config(model.config)
    config.save_pretrained(target)
    tensors = dict(to_transformers(stream_tensors(directory), model.config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        target / "model.safetensors",
        metadata={"format": "pt"},
    )
    return tensors


def test_weights_in_transformers_layout_give_the_same_logits(ours, tmp_path):
    model, directory = ours
    write_transformers(model, directory, tmp_path / "theirs")
    theirs = load_model(tmp_path / "theirs")
    assert type(theirs).__name__ == "GlmForCausalLM"
    assert (logits_of(model) - logits_of(theirs)).abs().max() <= TOLERANCE


def test_there_and_back_gives_the_same_bits_and_the_same_settings(ours, tmp_path):
    model, directory = ours
    theirs = write_transformers(model, directory, tmp_path / "theirs")
    back = dict(to_chatglm(theirs.items()))
    before = dict(stream_tensors(directory))
    assert set(back) == set(before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in back.items())
    config = to_chatglm_config(load_config(tmp_path / "theirs"), model.config._origin)
    assert (config.family, config.rope_base, config.position_divisor) == (
        model.config.family,
        model.config.rope_base,
        model.config.position_divisor,
    )
    keys, expected = config.to_diff_dict(), model.config.to_diff_dict()
    for key in ("num_hidden_layers", "rope_ratio", "transformers_version"):
        keys.pop(key, None), expected.pop(key, None)
    assert keys == expected


@pytest.mark.parametrize("name", ["chatglm2-6b", "chatglm3-6b", "glm-4-9b-chat"])
def test_the_original_outputs_hold_in_the_other_layout(golden, name, tmp_path):
    reference = golden(name)
    model = load_model(reference.directory)
    write_transformers(model, reference.directory, tmp_path / "theirs")
    theirs = load_model(tmp_path / "theirs")
    for title in ("prompt", "long", "offset_positions"):
        case = reference.cases[title]
        inputs = {key: case[key] for key in ("input_ids", "position_ids") if key in case}
        with torch.no_grad():
            difference = theirs(**inputs).logits - case["logits"]
        assert difference.abs().max() <= 1e-5, title


def test_names_outside_the_table_are_errors():
    with pytest.raises(ModelError, match=r"lm_head\.scale"):
        list(to_transformers([("lm_head.scale", IDS)], None))
    with pytest.raises(ModelError, match="not all of its query, key and value"):
        list(to_chatglm([("model.layers.0.self_attn.q_proj.weight", IDS)]))


def test_what_has_no_counterpart_is_refused():
    with pytest.raises(ModelError, match="ChatGLM-6B"):
        to_transformers_config(ChatGLMConfig.from_dict(dict(FIRST_GENERATION["chatglm"])))
    theirs = to_transformers_config(ChatGLMConfig.from_dict(dict(GENERATIONS["chatglm2-32k"])))
    with pytest.raises(ModelError, match="hub id"):
        to_chatglm_config(theirs, "THUDM/chatglm3-6b-32k")


# PEFT 0.21 still reads the name that transformers 5.24 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
class TestAdapters:
    peft = pytest.importorskip("peft")

    FUSED = ("query_key_value",)
    EVERY_FUSED = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")
    SPLIT = ("q_proj", "k_proj", "v_proj")

    @pytest.fixture
    def pair(self, tiny_model, tmp_path):
        """The same model in both layouts, as saved directories."""
        model = tiny_model("glm4-9b")
        model.save_pretrained(tmp_path / "ours")
        write_transformers(model, tmp_path / "ours", tmp_path / "theirs")
        return tmp_path / "ours", tmp_path / "theirs"

    def trained(self, base, directory, targets, **options):
        """Save a random adapter on a base; return its logits, tensors and config."""
        torch.manual_seed(11)
        config = self.peft.LoraConfig(
            r=4, lora_alpha=8, target_modules=list(targets), init_lora_weights=False, **options
        )
        model = self.peft.get_peft_model(load_model(base), config)
        model.save_pretrained(directory)
        return logits_of(model), *self.read(directory)

    @staticmethod
    def read(directory):
        config = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
        return load_file(directory / "adapter_model.safetensors"), config

    def logits_with(self, base, directory, adapter):
        tensors, config = adapter
        directory.mkdir()
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        model = self.peft.PeftModel.from_pretrained(load_model(base), directory)
        return logits_of(model)

    @pytest.mark.parametrize("targets", [FUSED, EVERY_FUSED])
    @pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
    def test_a_fused_adapter_becomes_three_and_one_again(self, pair, tmp_path, targets, options):
        ours, theirs = pair
        expected, tensors, config = self.trained(ours, tmp_path / "a", targets, **options)
        base = load_config(ours)
        split = adapter_to_transformers(tensors, config, base)
        assert set(self.SPLIT) <= set(split[1]["target_modules"])
        difference = self.logits_with(theirs, tmp_path / "b", split) - expected
        assert difference.abs().max() <= TOLERANCE
        back, back_config = adapter_to_chatglm(*split, base)
        assert {name: tensor.tolist() for name, tensor in back.items()} == {
            name: tensor.tolist() for name, tensor in tensors.items()
        }
        assert back_config["target_modules"] == sorted(targets)
        assert back_config["r"] == 4

    @pytest.mark.parametrize(
        "targets", [SPLIT, ("q_proj", "v_proj"), ("k_proj",), (*SPLIT, "o_proj", "down_proj")]
    )
    @pytest.mark.parametrize("options", [{}, {"use_rslora": True}])
    def test_separate_adapters_become_a_block_diagonal_one(self, pair, tmp_path, targets, options):
        ours, theirs = pair
        expected, tensors, config = self.trained(theirs, tmp_path / "a", targets, **options)
        fused = adapter_to_chatglm(tensors, config, load_config(theirs))
        difference = self.logits_with(ours, tmp_path / "b", fused) - expected
        assert difference.abs().max() <= TOLERANCE

    def test_dora_of_all_three_parts_becomes_one(self, pair, tmp_path):
        ours, theirs = pair
        expected, *adapter = self.trained(theirs, tmp_path / "a", self.SPLIT, use_dora=True)
        fused = adapter_to_chatglm(*adapter, load_config(theirs))
        difference = self.logits_with(ours, tmp_path / "b", fused) - expected
        assert difference.abs().max() <= TOLERANCE

    def test_dora_of_some_parts_is_refused(self, pair, tmp_path):
        _, theirs = pair
        _, *adapter = self.trained(theirs, tmp_path / "a", ("q_proj",), use_dora=True)
        with pytest.raises(AdapterError, match="all three"):
            adapter_to_chatglm(*adapter, load_config(theirs))

    def test_a_saved_copy_of_the_head_is_renamed_with_it(self, pair, tmp_path):
        ours, theirs = pair
        expected, *adapter = self.trained(
            ours, tmp_path / "a", self.FUSED, modules_to_save=["output_layer"]
        )
        tensors, config = adapter_to_transformers(*adapter, load_config(ours))
        assert config["modules_to_save"] == ["lm_head"]
        assert "base_model.model.lm_head.weight" in tensors
        difference = self.logits_with(theirs, tmp_path / "b", (tensors, config)) - expected
        assert difference.abs().max() <= TOLERANCE

    @pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"use_dora": True}])
    def test_what_we_wrote_comes_back(self, pair, tmp_path, options):
        """The fused module gets a rank of its own, by a pattern; the way back reads it."""
        ours, theirs = pair
        every = (*self.SPLIT, "o_proj", "gate_up_proj", "down_proj")
        expected, *adapter = self.trained(theirs, tmp_path / "a", every, **options)
        base = load_config(ours)
        fused = adapter_to_chatglm(*adapter, base)
        assert fused[1]["rank_pattern"] == {"query_key_value": 12}
        difference = self.logits_with(ours, tmp_path / "b", fused) - expected
        assert difference.abs().max() <= TOLERANCE
        again = adapter_to_transformers(*fused, base)
        assert again[1]["rank_pattern"] == dict.fromkeys(self.SPLIT, 12)
        difference = self.logits_with(theirs, tmp_path / "c", again) - expected
        assert difference.abs().max() <= TOLERANCE
        once_more = adapter_to_chatglm(*again, base)
        assert once_more[1]["rank_pattern"] == {"query_key_value": 12}
        difference = self.logits_with(ours, tmp_path / "d", once_more) - expected
        assert difference.abs().max() <= TOLERANCE

    @pytest.mark.parametrize("targets", [SPLIT, ("q_proj", "v_proj", "o_proj")])
    def test_ranks_by_the_name_of_a_module_are_converted(self, pair, tmp_path, targets):
        ours, theirs = pair
        parts = [name for name in targets if name != "o_proj"]
        expected, *adapter = self.trained(
            theirs,
            tmp_path / "a",
            targets,
            rank_pattern=dict.fromkeys(parts, 2),
            alpha_pattern=dict.fromkeys(parts, 3),
        )
        fused = adapter_to_chatglm(*adapter, load_config(theirs))
        difference = self.logits_with(ours, tmp_path / "b", fused) - expected
        assert difference.abs().max() <= TOLERANCE

    def test_parts_of_different_ranks_are_refused(self, pair, tmp_path):
        _, theirs = pair
        _, *adapter = self.trained(theirs, tmp_path / "a", self.SPLIT, rank_pattern={"q_proj": 2})
        with pytest.raises(AdapterError, match="gives q_proj, k_proj, v_proj different values"):
            adapter_to_chatglm(*adapter, load_config(theirs))

    def test_other_patterns_and_methods_are_refused_at_once(self):
        pattern = {"layers.1.self_attention.dense": 2, "dense": 4}
        config = {"rank_pattern": pattern, "alpha_pattern": pattern, "peft_type": "IA3"}
        with pytest.raises(AdapterError) as error:
            adapter_to_transformers({}, config, None)
        assert len(error.value.problems) == 3

    @pytest.mark.filterwarnings("ignore")  # PEFT's, while saving
    @pytest.mark.parametrize(
        "options",
        [
            {"bias": "lora_only"},
            {"bias": "all"},
            {"modules_to_save": ["output_layer", "word_embeddings"]},
            {"target_modules": ["query_key_value", "word_embeddings"]},
            {"target_modules": r".*\.(query_key_value|dense)"},
            {"layers_to_transform": [1]},
        ],
    )
    def test_whatever_peft_trains_goes_there_and_back(self, pair, tmp_path, options):
        ours, theirs = pair
        usual = {"target_modules": self.FUSED, "init_lora_weights": False}
        config = self.peft.LoraConfig(r=4, lora_alpha=8, **{**usual, **options})
        torch.manual_seed(11)
        model = self.peft.get_peft_model(load_model(ours), config)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_" not in name:
                parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / "a")
        expected, base = logits_of(model), load_config(ours)
        split = adapter_to_transformers(*self.read(tmp_path / "a"), base)
        difference = self.logits_with(theirs, tmp_path / "b", split) - expected
        assert difference.abs().max() <= TOLERANCE
        difference = (
            self.logits_with(ours, tmp_path / "c", adapter_to_chatglm(*split, base)) - expected
        )
        assert difference.abs().max() <= TOLERANCE

    def test_layers_that_adapt_different_parts_are_refused(self, pair, tmp_path):
        _, theirs = pair
        _, tensors, config = self.trained(theirs, tmp_path / "a", ("q_proj", "v_proj"))
        for name in [name for name in tensors if "layers.1.self_attn.v_proj" in name]:
            del tensors[name]
        with pytest.raises(AdapterError, match="one rank in all layers"):
            adapter_to_chatglm(tensors, config, load_config(theirs))

    def test_an_adapter_of_another_model_is_named(self):
        name = "base_model.model.model.layers.0.self_attn.qkv.lora_A.weight"
        with pytest.raises(AdapterError, match="qkv"):
            adapter_to_transformers({name: IDS}, {}, None)
