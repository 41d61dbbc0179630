"""Open an exported base, adapter and merged model in a clean environment without glmforge.

``python scripts/release_check.py DIR``: makes a tiny model and an adapter, exports both for stock
libraries, installs torch, transformers and peft alone (versions of constraints.txt) into DIR/venv,
and compares the logits there with glmforge's. Run by `make release-check`; needs a package index.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from glmforge.adapters import LoraSettings, add_lora, open_adapter
from glmforge.assets import asset_path
from glmforge.export import export
from glmforge.export.proof import dialogue_prompts, difference, logits_of
from glmforge.models import load_config, load_model, load_tokenizer, new_model

ROOT = Path(__file__).resolve().parents[1]
BOUND = 1e-4  # fp32, another process: summation order only


def make(directory: Path) -> tuple[Path, Path]:
    """Write a small random model and an adapter that changes it."""
    torch.manual_seed(0)
    new_model(load_config(asset_path("base"))).save_pretrained(directory / "base")
    load_tokenizer(asset_path("base")).save_pretrained(directory / "base")
    settings = LoraSettings(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=("query_key_value", "dense")
    )
    wrapped = add_lora(load_model(directory / "base"), settings)
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    wrapped.save_pretrained(directory / "adapter")
    return directory / "base", directory / "adapter"


def clean_environment(directory: Path) -> Path:
    """Make a virtual environment with the stock libraries alone; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, "transformers", "peft", "numpy", "jinja2"], check=True)
    found = subprocess.run([str(python), "-c", "import glmforge"], capture_output=True, check=False)
    assert found.returncode != 0, "glmforge is in the clean environment"
    return python


def main(directory: Path) -> None:
    """Run the check; exit status 1 where logits or ids differ."""
    base, adapter = make(directory)
    export(base, directory / "base-hf", layout="transformers")
    export(adapter, directory / "adapter-hf", layout="transformers")
    export(adapter, directory / "merged-hf", merge=True, layout="transformers")
    dialogues = dialogue_prompts(load_tokenizer(base))
    ids = [ids for _, ids in dialogues]
    expected = logits_of(open_adapter(load_model(base), adapter), ids)
    python = clean_environment(directory / "venv")
    script = ROOT / "src" / "glmforge" / "export" / "stock_proof.py"
    for name, with_adapter in (("base-hf", True), ("merged-hf", False)):
        request, out = directory / "request.json", directory / f"{name}.npz"
        asked = {
            "ids": ids,
            "dialogues": [messages for messages, _ in dialogues],
            "adapter": str(directory / "adapter-hf") if with_adapter else None,
        }
        request.write_text(json.dumps(asked), encoding="utf-8")
        command = [str(python), "-P", str(script), str(directory / name), str(request), str(out)]
        subprocess.run(command, check=True)
        with np.load(out) as loaded:
            found = difference(expected, [loaded[f"logits{n}"] for n in range(len(ids))])
            same = all(loaded[f"ids{n}"].tolist() == row for n, row in enumerate(ids))
        what = "adapter on the exported base" if with_adapter else "merged model"
        print(f"{what}, clean environment: {found}; dialogue ids equal: {same}")
        if found.max_abs > BOUND or not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
