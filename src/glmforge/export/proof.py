"""Proof that written weights answer as the ones in memory do: logits, from a fresh process.

``python -m glmforge.export.proof DIR REQUEST OUT`` opens a directory (and an adapter on it) as a
user would and writes the logits of fixed prompts; stock_proof.py does the same with stock
transformers and PEFT alone, and encodes dialogues with the directory's chat template besides.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glmforge.data import generation_prompt
from glmforge.errors import ExportError

PROMPTS = (
    "你好，请介绍一下你自己。",
    "我买的东西坏了，怎么办？",
    "What is 17 plus 25?",
    "用一句话说明什么是潮汐。",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two sets of logits are apart."""

    max_abs: float
    """Largest absolute difference of any logit."""
    kl: float
    """Mean Kullback-Leibler divergence of the next-token distributions, nats."""
    greedy_agreement: float
    """Share of positions whose most likely token is the same."""

    def __str__(self) -> str:
        return (
            f"max abs difference {self.max_abs:.2e}, KL {self.kl:.2e} nats, greedy agreement "
            f"{self.greedy_agreement:.2%}"
        )


def dialogue_prompts(tokenizer: Any) -> list[tuple[list[dict[str, str]], list[int]]]:
    """Return fixed dialogues and their generation prompts: single questions, and one with history.

    The second answers and questions begin and end in ways that tokenizers treat apart.
    """
    dialogues = [[{"role": "user", "content": text}] for text in PROMPTS]
    dialogues.append(
        [
            {"role": "user", "content": PROMPTS[0]},
            {"role": "assistant", "content": " 您好！\n我是客服小助手。"},
            {"role": "user", "content": PROMPTS[1] + "  "},
        ]
    )
    return [(messages, generation_prompt(messages, tokenizer)) for messages in dialogues]


@torch.no_grad()
def logits_of(model: Any, ids: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Return each prompt's logits [length, vocabulary] in fp32, without padding."""
    model.eval()
    device = next(iter(model.parameters())).device
    rows = []
    for row in ids:
        output = model(input_ids=torch.tensor([list(row)], device=device), use_cache=False)
        rows.append(output.logits[0].float().cpu().numpy())
    return rows


def difference(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> Difference:
    """Measure `actual` logits against `expected` ones.

    Raises:
        ExportError: shapes differ, or a logit is not finite.
    """
    a, b = np.concatenate(list(expected)), np.concatenate(list(actual))
    if a.shape != b.shape or not np.isfinite(b).all():
        raise ExportError(
            f"the written weights give logits of shape {b.shape} (expected {a.shape}), finite: "
            f"{bool(np.isfinite(b).all())}"
        )
    p, q = torch.from_numpy(a).log_softmax(-1), torch.from_numpy(b).log_softmax(-1)
    return Difference(
        max_abs=float(np.abs(a - b).max()),
        kl=max(0.0, float((p.exp() * (p - q)).sum(-1).mean())),
        greedy_agreement=float((a.argmax(-1) == b.argmax(-1)).mean()),
    )


def logits_in_fresh_process(
    directory: Path,
    ids: Sequence[Sequence[int]],
    *,
    adapter: Path | None = None,
    layout: str | None = None,
) -> list[np.ndarray]:
    """Open `directory` in a new Python process, in fp32 on the CPU, and return its logits.

    Args:
        directory: a model.
        ids: prompts.
        adapter: put this adapter on the model.
        layout: turn the model into this layout first.

    Raises:
        ExportError: the process failed; its last lines say why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        request, out = Path(scratch) / "request.json", Path(scratch) / "logits.npz"
        asked = {
            "ids": [list(row) for row in ids],
            "adapter": None if adapter is None else str(adapter),
            "layout": layout,
        }
        request.write_text(json.dumps(asked), encoding="utf-8")
        command = [sys.executable, "-m", "glmforge.export.proof"]
        _run([*command, str(directory), str(request), str(out)], adapter or directory)
        with np.load(out) as loaded:
            return [loaded[str(number)] for number in range(len(ids))]


@dataclass(frozen=True, slots=True, kw_only=True)
class StockAnswer:
    """What stock transformers makes of a directory."""

    logits: list[np.ndarray]
    dialogue_ids: list[list[int]]


def opened_by_stock_transformers(
    directory: Path,
    ids: Sequence[Sequence[int]],
    dialogues: Sequence[Any] | None,
    adapter: Path | None = None,
) -> StockAnswer:
    """Open `directory` in a new process that cannot import glmforge, in fp32 on the CPU.

    Args:
        directory: a model in transformers' layout.
        ids: prompts whose logits are wanted.
        dialogues: messages to encode with the directory's own chat template.
        adapter: put this adapter on the model, with stock PEFT.

    Raises:
        ExportError: the process failed; its last lines say why.
    """
    with tempfile.TemporaryDirectory() as scratch:
        request, out = Path(scratch) / "request.json", Path(scratch) / "answer.npz"
        asked = {
            "ids": [list(row) for row in ids],
            "dialogues": dialogues,
            "adapter": None if adapter is None else str(adapter),
        }
        request.write_text(json.dumps(asked), encoding="utf-8")
        script = Path(__file__).with_name("stock_proof.py")
        # -P keeps this package's own folder out of the path.
        command = [sys.executable, "-P", str(script), str(directory), str(request), str(out)]
        _run(command, adapter or directory)
        with np.load(out) as loaded:
            return StockAnswer(
                logits=[loaded[f"logits{number}"] for number in range(len(ids))],
                dialogue_ids=[
                    loaded[f"ids{number}"].tolist() for number in range(len(dialogues or ()))
                ],
            )


def check_ids(actual: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> None:
    """Compare the ids of dialogues by a written chat template with ours.

    Raises:
        ExportError: they differ; the first difference is shown.
    """
    for number, (ours, theirs) in enumerate(zip(expected, actual, strict=True)):
        if list(ours) != list(theirs):
            raise ExportError(
                f"the written chat template gives dialogue {number} the ids {list(theirs)} instead "
                f"of {list(ours)}: this is a bug of this program. Nothing was written"
            )


def _run(command: Sequence[str], directory: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().split("\n")[-5:])
        raise ExportError(f"{directory}: cannot be opened again in a new process:\n{tail}")


def main(directory: str, request_path: str, out: str) -> None:
    """Write the logits of the prompts in `request_path` by the model in `directory` to `out`."""
    from glmforge.adapters import open_adapter
    from glmforge.export.layouts import to_layout
    from glmforge.models import load_model

    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    model: Any = load_model(directory, dtype=torch.float32)
    if request["layout"] is not None:
        model = to_layout(model, request["layout"])
    if request["adapter"] is not None:
        model = open_adapter(model, Path(request["adapter"]))
    rows = logits_of(model, request["ids"])
    np.savez(out, **{str(number): row for number, row in enumerate(rows)})  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
