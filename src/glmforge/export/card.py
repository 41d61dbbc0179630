"""README.md of an export: what it is, how it was proven, how it is opened, what it cannot do.

Owns the words. The numbers are those of the report; nothing is claimed that was not measured on
the files the card lies beside.
"""

from collections.abc import Sequence

from glmforge.export.run_facts import RunFacts

_OPEN_TRANSFORMERS = """\
Stock transformers opens it, and what builds on transformers; glmforge is not needed:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```
"""

_OPEN_CHATGLM = """\
Tensor names, config keys and tokenizer files are the original model's. On today's transformers:

```python
import glmforge

model = glmforge.load_model("path/to/this/folder")
tokenizer = glmforge.load_tokenizer("path/to/this/folder")
```
"""

_OPEN_ADAPTER = """\
A LoRA adapter in PEFT's format. Its base is {origin} in the {layout} layout:

```python
{imports}

model = PeftModel.from_pretrained({loader}("path/to/base"), "path/to/this/folder")
```
"""
_ADAPTER_LOADERS = {
    "chatglm": ("import glmforge\nfrom peft import PeftModel", "glmforge.load_model"),
    "transformers": (
        "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM",
        "AutoModelForCausalLM.from_pretrained",
    ),
}
"""How the base of an adapter is opened: stock transformers needs no glmforge for its own layout."""

_WITH_CODE = """\
The original's `*.py` files were copied beside the weights, for programs that run them
(`trust_remote_code`). glmforge never does.
"""
_WITHOUT_CODE = """\
Programs that run the original's code (`trust_remote_code`) also need its `*.py` files, which were
not beside the base: copy `*_chatglm.py` from {origin}.
"""

_LIMITS_OF_ALL = (
    "A control token spelled in a message is read as the token: {controls}. Whoever can write a "
    "message can so end a turn or open another role. Refuse such text before it comes here, or "
    "use glmforge's own tokenizer, which reads message content as plain text.",
)
_LIMITS_OF_SENTENCEPIECE = (
    "The tokens `sop` and `eop` are called `<sop>` and `<eop>` here (same ids), because stock "
    "machinery would find `sop` inside ordinary words.",
    "The chat template puts U+FDD0, a character reserved for use inside programs, where two texts "
    "meet that the original encodes apart. It has no id. In a message it would do the same.",
)
_LIMITS_OF_GLM4 = ("Decoding does not put a blank around control tokens, as the original does.",)
_LIMIT_OF_ROUNDS = "Dialogues are rounds of one question and one answer; there are no tools."


def card(
    *,
    title: str,
    layout: str,
    origin: str,
    kind: str,
    dtype: str,
    proof: Sequence[str],
    limits: Sequence[str] = (),
    has_code: bool = False,
    run: RunFacts | None = None,
    base: str | None = None,
    base_state: str | None = None,
    licences: Sequence[str] = (),
) -> str:
    """Return the text of README.md.

    Args:
        title: name of the family.
        layout: "chatglm" or "transformers".
        origin: hub id of the original model.
        kind: "model" or "adapter".
        dtype: of the weights.
        proof: sentences of the report.
        limits: what these files cannot do.
        has_code: whether the original's files of code lie beside the weights.
        run: what is known of the training.
        base: the base that was merged into or that the adapter was proven on.
        base_state: what that base's weights are.
        licences: licence files of the base, copied beside the weights.
    """
    parts = [f"# {title}, {kind} in the {layout} layout ({dtype})\n"]
    parts.append("Written by `glmforge export`; made from " + origin + ".\n")
    if base is not None:
        parts.append(f"The base used here is `{base}`; its weights are {base_state}.\n")
    if kind == "adapter":
        imports, loader = _ADAPTER_LOADERS[layout]
        parts.append(
            _OPEN_ADAPTER.format(origin=origin, layout=layout, imports=imports, loader=loader)
        )
    elif layout == "transformers":
        parts.append(_OPEN_TRANSFORMERS)
    else:
        parts.append(_OPEN_CHATGLM)
        parts.append(_WITH_CODE if has_code else _WITHOUT_CODE.format(origin=origin))
    if run is not None:
        parts.append(_training(run))
    parts.append(_licence(origin, licences))
    parts.append("## How it was checked\n\n" + "\n".join(f"- {line}" for line in proof) + "\n")
    if limits:
        heading = "## What this form of the tokenizer cannot do\n\n"
        parts.append(heading + "\n".join(f"- {line}" for line in limits) + "\n")
    return "\n".join(parts)


def _training(run: RunFacts) -> str:
    where = "" if run.step is None else f", step {run.step}"
    lines = [
        f"- trained on: `{run.base}`, method {run.method}{where}",
        f"- data hash (every id and label): `{run.data_hash}`",
        *(f"- data file: {line}" for line in run.data_files),
    ]
    lines += [f"- `{name}`: {value}" for name, value in run.settings.items()]
    if run.metrics:
        values = ", ".join(f"{name} {value:.4g}" for name, value in run.metrics.items())
        lines.append(f"- evaluation at that step: {values}")
    return "## Training\n\n" + "\n".join(lines) + "\n"


def _licence(origin: str, licences: Sequence[str]) -> str:
    files = (
        f"its files lie beside the weights: {', '.join(licences)}"
        if licences
        else "no licence file lay beside the base, so read it there"
    )
    return (
        "## Licence\n\n"
        f"These weights are derived from {origin} and stay under its licence "
        f"(https://huggingface.co/{origin}); {files}. Some of these models ask for registration "
        "before commercial use.\n"
    )


def tokenizer_limits(family: str, controls: Sequence[str]) -> tuple[str, ...]:
    """Return what the stock tokenizer of a family does otherwise than ours.

    Args:
        family: name of the family's row.
        controls: the control spellings that it finds in any text.
    """
    names = " ".join(f"`{name}`" for name in controls)
    limits = tuple(line.format(controls=names) for line in _LIMITS_OF_ALL)
    if family == "glm4":
        return limits + _LIMITS_OF_GLM4
    if family == "chatglm2":
        return (*limits, *_LIMITS_OF_SENTENCEPIECE, _LIMIT_OF_ROUNDS)
    return limits + _LIMITS_OF_SENTENCEPIECE
