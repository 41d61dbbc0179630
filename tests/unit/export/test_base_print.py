"""An adapter goes on the base that it was trained on, and on no other of the same shape."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from glmforge.errors import AdapterError, ExportError
from glmforge.export import export
from glmforge.export.base_print import (
    BaseState,
    Sample,
    base_samples,
    check_base,
    same_numbers,
    sample_of,
    write_base_print,
)
from glmforge.export.sources import find_source
from glmforge.models import load_model
from small_models import ONE_LAYER, write_random_adapter, write_small_model

pytestmark = pytest.mark.usefixtures("warm_proofs")
EMBEDDING = "transformer.embedding.word_embeddings.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("print") / "base", **ONE_LAYER)


@pytest.fixture(scope="module")
def other(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    other = shutil.copytree(base, tmp_path_factory.mktemp("print") / "other")
    torch.manual_seed(5)
    weights = {n: torch.randn_like(t) for n, t in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return other


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    adapter = write_random_adapter(base, tmp_path_factory.mktemp("print") / "adapter")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = str(base)
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    write_base_print(base, adapter)
    return adapter


@pytest.mark.parametrize("merge", [True, False])
def test_another_base_of_the_same_shape_is_refused(
    adapter: Path, base: Path, other: Path, tmp_path: Path, merge: bool
) -> None:
    """By the name of the first tensor, with both numbers, the right base and the way out."""
    with pytest.raises(AdapterError) as caught:
        export(adapter, tmp_path / "out", merge=merge, base=other)
    text = str(caught.value)
    assert f"{other} is not the base it was trained on ({base})" in text
    assert f"the first is {EMBEDDING}: " in text
    assert "in training and" in text
    assert "--other-base" in text
    assert not (tmp_path / "out").exists()


def test_a_base_changed_in_its_place_is_refused(adapter: Path, base: Path, tmp_path: Path) -> None:
    """No --base is needed for it to go wrong; one tensor is enough."""
    moved = shutil.copytree(base, tmp_path / "base")
    weights = load_file(moved / "model.safetensors")
    name = next(name for name in weights if "dense_4h_to_h" in name)
    weights[name] += 1e-3 * torch.randn_like(weights[name])
    save_file(weights, moved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AdapterError, match=f"1 of .* tensors differ, the first is {name}"):
        find_source(adapter, moved)


def test_the_user_may_insist_and_the_card_says_so(
    adapter: Path, other: Path, tmp_path: Path
) -> None:
    """The written adapter is one for the other base from then on."""
    report = export(adapter, tmp_path / "out", base=other, other_base=True)
    assert any("is not the base it was trained on" in note for note in report.notes)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"The base used here is `{other}`; its weights are {BaseState.OTHER}." in card
    kept = json.loads((tmp_path / "out" / "export.json").read_text())
    assert (kept["base"], kept["base_state"]) == (str(other), str(BaseState.OTHER))
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(other)
    assert find_source(tmp_path / "out", None).base_check == check_base(tmp_path / "out", other)
    assert check_base(tmp_path / "out", other).state is BaseState.SAME


@pytest.mark.parametrize("merge", [True, False])
def test_the_card_names_the_base_that_was_used(
    adapter: Path, base: Path, tmp_path: Path, merge: bool
) -> None:
    """A base that was moved is the same base, in its new place."""
    moved = shutil.copytree(base, tmp_path / "moved")
    report = export(adapter, tmp_path / "out", merge=merge, base=moved)
    assert (report.base, report.base_state, report.notes) == (str(moved), str(BaseState.SAME), ())
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"`{moved}`; its weights are those that the adapter was trained on." in card


def test_an_adapter_from_elsewhere_is_a_note(base: Path, tmp_path: Path) -> None:
    """Never silence: nothing but shapes could be compared."""
    bare = write_random_adapter(base, tmp_path / "bare")
    report = export(bare, tmp_path / "out", base=base)
    assert [note.split(":")[0] for note in report.notes] == ["the base cannot be checked"]
    assert "perhaps not those" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "base.json").exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["safetensors", "shards", "bin"])
def test_a_base_saved_again_is_the_same_base(
    adapter: Path, base: Path, tmp_path: Path, dtype: torch.dtype, kind: str
) -> None:
    """In another dtype, in shards, as a .bin; and back in fp32."""
    again = tmp_path / "again"
    model = load_model(base).to(dtype)
    if kind == "bin":
        again.mkdir()
        shutil.copy(base / "config.json", again)
        torch.save(model.state_dict(), again / "pytorch_model.bin")
    else:
        model.save_pretrained(again, max_shard_size="40KB" if kind == "shards" else "5GB")
    assert check_base(adapter, again).state is BaseState.SAME
    model.float().save_pretrained(tmp_path / "back")
    assert check_base(adapter, tmp_path / "back").state is BaseState.SAME
    write_base_print(again, tmp_path)
    assert check_base(tmp_path, base).state is BaseState.SAME


def test_half_precision_formats_do_not_nest() -> None:
    """Of one fp32 tensor, bf16 and fp16 are a rounding apart; trained weights are further."""
    torch.manual_seed(0)
    values = torch.randn(4096) * 0.02
    kinds = [
        Sample(shape=(4096,), values=values.to(dtype).float())
        for dtype in (torch.bfloat16, torch.float16)
    ]
    assert same_numbers(*kinds)
    tuned = Sample(shape=(4096,), values=(values + 1e-3).to(torch.bfloat16).float())
    assert not same_numbers(tuned, kinds[1])
    little = Sample(shape=(4096,), values=(values * 1.001).to(torch.bfloat16).float())
    assert not same_numbers(little, kinds[0])


def test_the_print_goes_along_to_the_other_layout(
    adapter: Path, base: Path, other: Path, tmp_path: Path
) -> None:
    """Everything but query, key and value, which are fused in one layout only."""
    export(base, tmp_path / "base", layout="transformers")
    export(other, tmp_path / "other", layout="transformers")
    export(adapter, tmp_path / "adapter", layout="transformers")
    assert check_base(tmp_path / "adapter", tmp_path / "base").state is BaseState.SAME
    with pytest.raises(AdapterError, match=r"the first is .*model\.embed_tokens\.weight"):
        check_base(tmp_path / "adapter", tmp_path / "other")
    crossed = check_base(adapter, tmp_path / "base")
    assert crossed.state is BaseState.UNCHECKED
    assert "none of the tensor names" in str(crossed.note)
    assert "has no weights" in str(check_base(adapter, tmp_path).note)


def test_stock_peft_reads_the_adapter_beside_it(adapter: Path, base: Path) -> None:
    """PEFT knows nothing of base.json."""
    assert PeftModel.from_pretrained(load_model(base), adapter) is not None


def test_a_few_numbers_of_each_tensor_at_most_of_512(tmp_path: Path) -> None:
    """Sixteen; small tensors are whole; the file of a model with thousands of tensors is small."""
    assert sample_of(torch.arange(16.0)).values.tolist() == list(range(16))
    assert sample_of(torch.arange(30.0)).values.tolist() == [*range(10, 18), *range(20, 28)]
    assert len(sample_of(torch.arange(17.0)).values) == 16
    assert sample_of(torch.tensor(2.0)).values.tolist() == [2.0]
    save_file({f"t{n:04d}": torch.ones(2) for n in range(1500)}, tmp_path / "model.safetensors")
    assert len(base_samples(tmp_path)) == 500


def test_a_damaged_file_is_named(adapter: Path, base: Path, tmp_path: Path) -> None:
    """Not a traceback, and not taken for an adapter from elsewhere."""
    (tmp_path / "base.json").write_text('{"format": 1, "tensors": 3}')
    with pytest.raises(AdapterError, match=r"base\.json: cannot be read"):
        check_base(tmp_path, base)
    (tmp_path / "base.json").write_text('{"format": 9}')
    with pytest.raises(AdapterError, match="format 9, this program reads 1"):
        check_base(tmp_path, base)


def test_the_option_is_refused_where_it_would_do_nothing(base: Path, tmp_path: Path) -> None:
    """Whole weights have no base."""
    with pytest.raises(ExportError, match="holds no adapter, --other-base would do nothing"):
        export(base, tmp_path / "out", other_base=True)
