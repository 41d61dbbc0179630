"""Shards of every ZeRO stage and number of ranks give what DeepSpeed's own script gives."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from glmforge.adapters import open_adapter, read_adapter
from glmforge.errors import CheckpointError, ExportError
from glmforge.export import export
from glmforge.export.consolidate import consolidate
from glmforge.export.shards import find_tag, open_shards
from glmforge.models import load_model

ODD = tuple(f"shards_{stage}" for stage in ("0", "1", "2", "3", "1_bf16", "2_bf16", "3_bf16"))
GLM = tuple(f"glm_{method}_{stage}" for method in ("full", "lora") for stage in (1, 2, 3))
FEW = ("shards_2", "shards_3", "glm_full_3", "glm_lora_2", "glm_lora_3")
CASES = [(ranks, case) for ranks in (1, 2) for case in (*ODD, *GLM)]
CASES += [(ranks, case) for ranks in (3, 4) for case in FEW]
STOCK = """
    import sys, torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as stock
    for path in sys.argv[1:]:
        torch.save(stock(path), path + "/stock.pt")
"""


pytestmark = pytest.mark.usefixtures("warm_proofs")


@pytest.fixture(scope="module")
def made(launch):
    """Every checkpoint, with what DeepSpeed's own code makes of it in ``stock.pt``."""
    found = {}
    for ranks in (1, 2, 3, 4):
        names = tuple(case for number, case in CASES if number == ranks)
        found |= {(ranks, name): result for name, result in launch(ranks, *names).items()}
    paths = [
        str(path.parent)
        for (_, case), result in found.items()
        for path in Path(result["directory"]).glob("*/latest")
        if case != "shards_0"
    ]
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(STOCK), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return found


def whole_tensors(directory):
    shards = open_shards(find_tag(directory))
    return shards, {name: shards.tensor(place) for name, place in shards.places().items()}


@pytest.mark.parametrize(("ranks", "case"), CASES)
def test_every_tensor_is_deepspeeds(made, ranks, case):
    """Trained, frozen, tied and buffers, bit by bit; and what the ranks held at the end."""
    directory = Path(made[ranks, case]["directory"])
    truth = torch.load(directory / "truth.pt")
    for name in ("whole", "trained"):
        if not (directory / name).exists():
            continue
        shards, ours = whole_tensors(directory / name)
        assert shards.world_size == ranks
        if case != "shards_0":
            stock = torch.load(directory / name / "stock.pt")
            assert stock.keys() <= ours.keys()
            assert [n for n in stock if not torch.equal(stock[n].float(), ours[n].float())] == []
        if name == "whole":
            wrong = [n for n in truth if not torch.equal(truth[n], ours[n].to(truth[n].dtype))]
            assert wrong == []


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [1, 2])
def test_the_frozen_base_is_there_where_deepspeeds_script_drops_it(made, ranks, stage):
    """At ZeRO-1 the stock script leaves frozen weights out (deepspeed 0.19.8) and says nothing."""
    directory = Path(made[ranks, f"glm_lora_{stage}"]["directory"])
    stock = torch.load(directory / "whole" / "stock.pt")
    _, ours = whole_tensors(directory / "whole")
    assert (len(stock), len(ours)) == ({1: 8, 2: 25}[stage], 25)


@pytest.mark.parametrize(("ranks", "stage"), [(1, 1), (2, 1), (2, 2), (2, 3), (3, 3), (4, 2)])
def test_a_lora_checkpoint_becomes_an_adapter(made, ranks, stage, tmp_path):
    """With the frozen base in the shards or not: the trained weights, in PEFT's names."""
    result = made[ranks, f"glm_lora_{stage}"]
    directory, base = Path(result["directory"]), Path(result["base"])
    truth = torch.load(directory / "truth.pt")
    for name in ("whole", "trained"):
        report = consolidate(directory / name, tmp_path / name)
        assert (report.kind, report.tensors) == ("adapter", 8)
        saved = read_adapter(tmp_path / name)
        assert len(saved.tensors) == 8
        for key, tensor in saved.tensors.items():
            assert torch.equal(tensor, truth[key.replace(".weight", ".default.weight")])
        open_adapter(load_model(base), tmp_path / name)


@pytest.mark.parametrize("name", ["whole", "trained"])
def test_the_frozen_base_is_written_where_wanted(made, name, tmp_path):
    """From the shards, or from the base's own files where the shards leave it out."""
    result = made[2, "glm_lora_3"]
    report = consolidate(Path(result["directory"]) / name, tmp_path / "out", with_base=True)
    assert ("0 of 16" if name == "whole" else "16 of 16") in report.notes[0]
    before, after = load_model(result["base"]).state_dict(), load_model(tmp_path / "out" / "base")
    assert all(torch.equal(before[key], value) for key, value in after.state_dict().items())
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(tmp_path / "out" / "base")


@pytest.mark.parametrize(("ranks", "stage"), [(1, 2), (2, 1), (2, 2), (2, 3), (3, 3), (4, 3)])
def test_a_full_checkpoint_becomes_a_model(made, ranks, stage, tmp_path):
    """In several files where asked; it opens, and exports, with the trained weights."""
    result = made[ranks, f"glm_full_{stage}"]
    directory, base = Path(result["directory"]), Path(result["base"])
    with pytest.raises(ExportError, match="with --base DIR"):
        consolidate(directory / "whole", tmp_path / "out")
    report = consolidate(directory / "whole", tmp_path / "out", base=base, max_shard_size="100KB")
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    truth = torch.load(directory / "truth.pt")
    assert report.elements == sum(tensor.numel() for tensor in truth.values())
    opened = load_model(tmp_path / "out").state_dict()
    assert all(torch.equal(opened[name], tensor) for name, tensor in truth.items())
    if ranks == 2:
        export(directory / "whole", tmp_path / "exported", base=base, dtype="fp32")
        again = load_file(tmp_path / "exported" / "model.safetensors")
        assert all(torch.equal(truth[name], again[name]) for name in truth)


def copied(made, case, tmp_path):
    source = Path(made[2, case]["directory"]) / "whole"
    return shutil.copytree(source, tmp_path / "copy")


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("shards_2", "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("shards_2_bf16", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        ("shards_2", "mp_rank_00_model_states.pt"),
        ("shards_3", "zero_pp_rank_1_mp_rank_00_model_states.pt"),
    ],
)
def test_a_missing_shard_is_named(made, case, name, tmp_path):
    """And how many ranks wrote the checkpoint."""
    directory = copied(made, case, tmp_path)
    (directory / "global_step2" / name).unlink()
    with pytest.raises(CheckpointError, match=rf"written by 2 rank.*missing: {name}"):
        open_shards(directory / "global_step2")


def test_a_torn_shard_and_a_foreign_one_are_named(made, tmp_path):
    """A file cut short, one of a third rank, one cut by tensor parallelism."""
    directory = copied(made, "shards_2", tmp_path) / "global_step2"
    path = directory / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    data = path.read_bytes()
    shutil.copy(path, directory / "zero_pp_rank_2_mp_rank_00_optim_states.pt")
    with pytest.raises(CheckpointError, match="files of rank 2 too"):
        open_shards(directory)
    (directory / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"rank_1.*cannot be read"):
        open_shards(directory)
    path.write_bytes(data)
    shutil.copy(path, directory / "zero_pp_rank_0_mp_rank_01_optim_states.pt")
    with pytest.raises(CheckpointError, match="tensor or pipeline parallelism"):
        open_shards(directory)


def test_shards_of_two_checkpoints_do_not_go_together(made, tmp_path):
    """A rank's file that has other sizes than the others'."""
    directory = copied(made, "shards_2", tmp_path) / "global_step2"
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    other = Path(made[2, "glm_lora_2"]["directory"]) / "whole" / "global_step2" / name
    shutil.copy(other, directory / name)
    with pytest.raises(CheckpointError, match="different checkpoints"):
        open_shards(directory)


def test_another_models_tensors_are_counted(made, tmp_path):
    """Missing, unexpected and mis-shaped, by name; nothing is left behind."""
    directory = copied(made, "shards_2", tmp_path)
    base = Path(made[2, "glm_full_2"]["base"])
    with pytest.raises(ExportError) as caught:
        consolidate(directory, tmp_path / "out", base=base)
    assert "16 of 16 tensors are missing" in str(caught.value)
    assert "tensors are not the model's: " in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".tmp-*"))


def test_which_folder_is_meant_is_asked_where_it_is_not_clear(made, tmp_path):
    """`latest` decides, --tag overrides it, and without either several folders are refused."""
    directory = copied(made, "shards_2", tmp_path)
    shutil.copytree(directory / "global_step2", directory / "global_step9")
    assert find_tag(directory).name == "global_step2"
    assert find_tag(directory, "global_step9").name == "global_step9"
    assert find_tag(directory / "global_step9").name == "global_step9"
    (directory / "latest").unlink()
    with pytest.raises(CheckpointError, match="there are global_step2, global_step9"):
        find_tag(directory)
