"""Generated answers in numbers, under the names of metrics.jsonl."""

from glmforge.data.measures import Units, characters
from glmforge.train.answers import answer_values, answers_line

UNITS = Units(name="characters", split=characters)


def row(answer, stop_reason="stop", **known):
    return {"prompt": "?", "answer": answer, "stop_reason": stop_reason, "new_tokens": 1, **known}


def test_answers_with_references_get_all_measures():
    """Shares from 0 to 1; an empty answer scores 0 and is counted."""
    rows = [row("你好", reference="你好"), row("", "length", reference="再见")]
    values = answer_values(rows, UNITS)
    assert values == {
        "eval_stopped_share": 0.5,
        "eval_repetition": 0.0,
        "eval_empty_answers": 1,
        "eval_text_units": "characters",
        "eval_exact_match": 0.5,
        "eval_empty_references": 0,
        "eval_bleu_4": 0.5,
        "eval_rouge_l": 0.5,
    }
    assert answers_line({"step": 7, **values}, 2) == (
        "step 7  answers: exact match 0.500 | BLEU-4 0.500 | ROUGE-L 0.500 (on characters) | "
        "1 of 2 stopped by themselves | 1 empty"
    )


def test_answers_to_free_prompts_are_not_compared():
    """No measure is made up."""
    values = answer_values([row("好"), row("好")], UNITS)
    assert "eval_exact_match" not in values
    assert answers_line({"step": 0, **values}, 2) == "step 0  answers: 2 of 2 stopped by themselves"


def test_only_empty_references_are_counted_apart():
    """BLEU-4 and ROUGE-L have nothing to say, exact match has."""
    values = answer_values([row("好", reference="")], UNITS)
    assert (values["eval_exact_match"], values["eval_empty_references"]) == (0.0, 1)
    assert "eval_bleu_4" not in values
    assert "1 reference(s) empty, not compared" in answers_line({"step": 0, **values}, 1)
