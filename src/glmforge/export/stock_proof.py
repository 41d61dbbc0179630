"""Opens a directory with stock libraries alone, in a process where glmforge cannot be imported.

``python -P stock_proof.py DIR REQUEST OUT``: REQUEST is a JSON object with ``ids`` (prompts as
ids), ``dialogues`` (messages, or null) and ``adapter`` (a PEFT directory, or null). Writes the
logits of each prompt and the ids that the directory's own chat template gives for each dialogue.
Imports nothing of this package.
"""

import gc
import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class GlmforgeRefused:
    """A finder that makes ``import glmforge`` fail, whatever the path holds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse this package; leave every other to the finders behind."""
        del path, target
        if name.split(".")[0] == "glmforge":
            raise ModuleNotFoundError(f"{name} may not be imported here", name=name)
        return None


def main(directory: str, request_path: str, out: str) -> None:
    """Write what stock transformers, and stock PEFT for an adapter, make of `directory`."""
    gc.disable()  # imports take a third longer with it, and this process is short
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with open(request_path, encoding="utf-8") as file:
        request = json.load(file)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    if request.get("adapter"):
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, request["adapter"]).eval()
    arrays = {}
    with torch.no_grad():
        for number, row in enumerate(request["ids"]):
            logits = model(input_ids=torch.tensor([row]), use_cache=False).logits[0]
            arrays[f"logits{number}"] = logits.float().numpy()
    if request["dialogues"] is not None:
        tokenizer = AutoTokenizer.from_pretrained(directory)
        for number, dialogue in enumerate(request["dialogues"]):
            ids = tokenizer.apply_chat_template(
                dialogue, add_generation_prompt=True, return_dict=False
            )
            arrays[f"ids{number}"] = np.array(ids)
    np.savez(out, **arrays)


if __name__ == "__main__":
    sys.meta_path.insert(0, GlmforgeRefused())
    main(*sys.argv[1:])
