"""LoRA targets are checked against the model before weights exist; what is saved is whole."""

import pytest
import torch
from safetensors.torch import load_file

from glmforge.adapters import (
    LoraSettings,
    add_lora,
    check_targets,
    linear_module_names,
    open_adapter,
    save_adapter,
    trainable_line,
)
from glmforge.errors import AdapterError
from glmforge.models import load_config, load_model, new_model
from small_models import TINY_MODEL

USUAL = ("query_key_value",)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return new_model(load_config(TINY_MODEL))


@pytest.fixture
def wrapped():
    torch.manual_seed(0)
    model = new_model(load_config(TINY_MODEL))
    settings = LoraSettings(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=USUAL)
    return add_lora(model, settings)


def gathered(wrapped):
    return {n: p.detach().clone() for n, p in wrapped.named_parameters() if p.requires_grad}


def test_the_linear_modules_of_a_chatglm3_are_found(model):
    """The head is not among them: the loss calls it on its own path."""
    expected = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    assert linear_module_names(model) == expected


def test_names_are_checked_without_any_memory():
    """A model on the meta device is enough."""
    with torch.device("meta"):
        model = new_model(load_config(TINY_MODEL))
    assert check_targets(model, ["dense"], USUAL) == ("dense",)


def test_nothing_written_takes_the_usual_and_all_linear_takes_all(model):
    """The family's default, and PEFT's word for every linear layer."""
    assert check_targets(model, None, USUAL) == USUAL
    assert len(check_targets(model, ["all-linear"], USUAL)) == 4


@pytest.mark.parametrize("names", [["q_proj", "v_proj"], ["query_key_value", "dens"]])
def test_a_name_that_matches_nothing_is_refused(model, names):
    """All unknown names, the modules that exist, the usual choice (case M01)."""
    with pytest.raises(AdapterError) as caught:
        check_targets(model, names, USUAL)
    text = str(caught.value)
    assert all(repr(name) in text for name in names if name != "query_key_value")
    assert "query_key_value, dense, dense_h_to_4h, dense_4h_to_h" in text
    assert "usual choice for this model: query_key_value" in text


def test_only_the_adapter_is_trainable(wrapped):
    """Rank 4 on four layers of (192 -> 320)."""
    names = [name for name, p in wrapped.named_parameters() if p.requires_grad]
    assert all(".lora_" in name for name in names)
    assert "trainable params: 8,192 ||" in trainable_line(wrapped)


def test_what_is_saved_is_what_was_there(wrapped, tmp_path):
    """Every tensor, in PEFT's names; a fresh adapter is said to change nothing."""
    weights = gathered(wrapped)
    notes = save_adapter(wrapped, weights, tmp_path / "adapter")
    assert "every lora_B is zero" in notes[0]
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert len(saved) == len(weights)
    for name, tensor in saved.items():
        twin = name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")
        assert torch.equal(tensor, weights[twin])


def test_empty_tensors_are_an_error_at_once(wrapped, tmp_path):
    """Weights partitioned by ZeRO-3 and not gathered have no elements."""
    weights = {name: torch.empty(0) for name in gathered(wrapped)}
    with pytest.raises(AdapterError, match="of them empty"):
        save_adapter(wrapped, weights, tmp_path / "adapter")


def test_a_missing_tensor_is_an_error(wrapped, tmp_path):
    """Fewer tensors in the file than trainable parameters."""
    weights = gathered(wrapped)
    name = next(iter(weights))
    lost = {key: value for key, value in weights.items() if key != name}
    lost["base_model.model.stranger"] = weights[name]
    with pytest.raises(AdapterError, match="wrote 7 of 8"):
        save_adapter(wrapped, lost, tmp_path / "adapter")


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_a_trained_adapter_opens_on_its_base_as_it_was(tmp_path, options):
    """Logits of the wrapped model = logits of the base with the saved adapter, bit for bit."""
    config = load_config(TINY_MODEL)
    torch.manual_seed(0)
    base = new_model(config)
    base.save_pretrained(tmp_path / "base")
    settings = LoraSettings(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=("query_key_value", "dense"), **options
    )
    wrapped = add_lora(base, settings).eval()
    for name, parameter in wrapped.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, mean=0.1, std=0.05)
    ids = torch.arange(5, 25)[None]
    expected = wrapped(ids).logits
    save_adapter(wrapped, gathered(wrapped), tmp_path / "adapter")
    opened = open_adapter(load_model(tmp_path / "base"), tmp_path / "adapter")
    assert torch.equal(opened(ids).logits, expected)


def test_rslora_scales_by_the_square_root_of_the_rank():
    """lora_alpha / sqrt(r) in place of lora_alpha / r (Kalajdzievski, arXiv 2312.03732)."""
    model = new_model(load_config(TINY_MODEL))
    settings = LoraSettings(
        r=16, lora_alpha=8, lora_dropout=0.0, target_modules=USUAL, use_rslora=True
    )
    wrapped = add_lora(model, settings)
    scalings = {m.scaling["default"] for m in wrapped.modules() if hasattr(m, "lora_A")}
    assert scalings == {2.0}


def test_packed_weights_are_counted_as_what_they_hold():
    """Two 4-bit weights a byte, as PEFT counts them."""
    packed = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    model = torch.nn.Linear(2, 2, bias=False)
    model.packed = packed
    assert trainable_line(model).startswith("trainable params: 4 || all params: 20 ||")
