"""Which measures may choose the best checkpoint of a run."""

from collections.abc import Callable

GOOD = """\
model: {model_name_or_path: models/glm}
data: {train: train.jsonl}
training:
  output_dir: run
"""

Problems = Callable[..., list[str]]


def test_a_measure_that_a_run_does_not_have_is_answered_with_all_that_it_has(
    problems: Problems,
) -> None:
    """Those of the answers, and those of the steps, which need nothing."""
    lines = "  metric_for_best_model: eval_rouge_l\ngeneration: {prompts: [a]}\n"
    (found,) = problems(GOOD + lines)
    assert "write one of eval_empty_answers, eval_repetition, eval_stopped_share, or" in found
    assert "which every run has: loss, grad_norm, learning_rate, " in found
