"""The plan beside a real card: `--preflight`, the line after step 2, and growing segments."""

import json
import subprocess
import sys

import pytest
import yaml

from glmforge.assets import asset_path
from glmforge.models import load_config, load_tokenizer
from small_models import TINY_MODEL

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """120 M random parameters, all trained, packed rows of 2048 tokens."""
    directory = tmp_path_factory.mktemp("plan")
    source = TINY_MODEL
    config = load_config(source)
    config.update(
        {
            "hidden_size": 1024,
            "num_attention_heads": 8,
            "kv_channels": 128,
            "ffn_hidden_size": 4096,
            "num_layers": 8,
            "seq_length": 2048,
        }
    )
    config.save_pretrained(directory / "model")
    load_tokenizer(source).save_pretrained(directory / "model")
    settings = {
        "model": {"model_name_or_path": str(directory / "model"), "from_scratch": True},
        "method": "full",
        "data": {"train": str(asset_path("demo/train.jsonl")), "max_length": 2048},
        "training": {
            "output_dir": str(directory / "run"),
            "max_steps": 3,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
        },
    }
    path = directory / "c.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def run(*argv):
    command = [sys.executable, "-m", "glmforge", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_preflight_measures_what_was_planned(config_file):
    """Weights, masters, moments, gradients and activations of a real step; nothing is written."""
    found = json.loads(run("train", config_file, "--preflight", "--json").stdout)
    assert found["row_tokens"] == 2048
    assert found["measured_gib"][0] == pytest.approx(found["planned_gib"], rel=0.1)
    assert not (config_file.parent / "run").exists()


def test_a_run_says_the_measured_peak_after_step_2(config_file):
    """Beside the planned one; the first line of the plan names the card's memory."""
    said = run("train", config_file).stderr
    assert "GiB measured, " in said
    assert "with slack and context: fits" in said


def test_segments_of_the_allocator_grow():
    """Switched on before the first allocation of a process."""
    code = (
        "import torch\n"
        "from glmforge.distributed.collectives import process_group\n"
        "from glmforge.distributed.env import read_world\n"
        "with process_group(read_world()):\n"
        "    held = torch.empty(2**24, device='cuda')\n"
        "    segments = torch.cuda.memory._snapshot()['segments']\n"
        "    assert all(segment['is_expandable'] for segment in segments), segments\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
