"""The answers of an evaluation in numbers: nearness to references, stop reasons, repetition.

``samples`` generates, ``data.measures`` counts; this module joins the two under the names of
metrics.jsonl. Owns no policy: which evaluation is best is ``best``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from glmforge.data.measures import Units, score


def answer_values(rows: Sequence[Mapping[str, Any]], units: Units) -> dict[str, Any]:
    """Return an evaluation's measures of generated answers.

    Args:
        rows: of `generate_samples`; those with a ``reference`` are compared with it.
        units: how texts are cut for BLEU-4, ROUGE-L and repetition.
    """
    found = score([(row["answer"], row.get("reference")) for row in rows], units)
    values: dict[str, Any] = {
        "eval_stopped_share": sum(row["stop_reason"] == "stop" for row in rows) / len(rows),
        "eval_repetition": found.repetition,
        "eval_empty_answers": found.empty_answers,
        "eval_text_units": units.name,
    }
    if found.exact_match is None:
        return values
    values |= {
        "eval_exact_match": found.exact_match,
        "eval_empty_references": found.empty_references,
    }
    if found.bleu_4 is not None:
        values |= {"eval_bleu_4": found.bleu_4, "eval_rouge_l": found.rouge_l}
    return values


def answers_line(values: Mapping[str, Any], number: int) -> str:
    """Return the measures of `number` answers in one line for people."""
    names = {"exact match": "eval_exact_match", "BLEU-4": "eval_bleu_4", "ROUGE-L": "eval_rouge_l"}
    parts = [f"{title} {values[name]:.3f}" for title, name in names.items() if name in values]
    if "eval_bleu_4" in values:
        parts[-1] += f" (on {values['eval_text_units']})"
    stopped = round(values["eval_stopped_share"] * number)
    parts.append(f"{stopped} of {number} stopped by themselves")
    if values["eval_empty_answers"]:
        parts.append(f"{values['eval_empty_answers']} empty")
    if values.get("eval_empty_references"):
        parts.append(f"{values['eval_empty_references']} reference(s) empty, not compared")
    return f"step {values['step']}  answers: {' | '.join(parts)}"
