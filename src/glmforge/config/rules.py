"""Rules between settings: which ones have no effect under the others, and which contradict.

Works on what was written, before the types are known to be right, so that these faults are
reported together with all others. The same list decides what `RunConfig.to_yaml` leaves out.
"""

from collections.abc import Iterator

from glmforge.config.lengths import Getter, idle_steps, misfit_schedule
from glmforge.config.training_settings import STEP_METRICS

ALTERNATIVES: tuple[tuple[str, str], ...] = (
    ("training.max_steps", "training.num_train_epochs"),
    ("training.warmup_steps", "training.warmup_ratio"),
    ("training.decay_steps", "training.decay_ratio"),
)
"""(setting, the one that it replaces): null in the first leaves the second in charge."""

_LORA = (
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "use_rslora",
    "use_dora",
    "loraplus_lr_ratio",
)


def idle_settings(get: Getter) -> dict[str, str]:
    """Map each setting without effect to the reason, such as "method is full"."""
    return dict(_idle(get))


def _idle(get: Getter) -> Iterator[tuple[str, str]]:
    total_steps = get("training.max_steps")
    if isinstance(total_steps, int) and total_steps > 0:
        yield from idle_steps(get, total_steps)  # first: a better reason below takes its place
    for setting, replaced in ALTERNATIVES:
        if get(setting) is not None:
            yield replaced, f"{setting} is written and decides alone; keep one of the two"
    method = get("method")
    if method in ("full", "freeze"):
        for name in _LORA:
            yield f"lora.{name}", f"method is {method}, which trains no adapter"
    elif get("lora.r") == 1:
        yield "lora.use_rslora", "lora.r is 1, whose square root is 1"
    if method != "freeze":
        yield "freeze.num_trainable_layers", f"method is {method}, not freeze"
    schedule = get("training.lr_scheduler_type")
    if schedule != "warmup_stable_decay":
        for name in ("decay_ratio", "decay_steps"):
            yield f"training.{name}", f"training.lr_scheduler_type is {schedule}"
    yield from _idle_data(get)
    prompts = get("generation.prompts")
    on_steps = get("training.metric_for_best_model") in STEP_METRICS
    if get("data.validation") is None and get("data.validation_size") is None:
        reason = "neither data.validation nor data.validation_size is given, so nothing is"
        yield "training.per_device_eval_batch_size", f"{reason} evaluated"
        yield "generation.num_prompts", f"{reason} there to take"
        if prompts is None:
            if not on_steps:
                yield "training.eval_steps", f"{reason} evaluated"
            yield "generation.max_new_tokens", "no validation data and no generation.prompts"
    elif prompts is not None:
        yield "generation.num_prompts", "generation.prompts is written out"
    if prompts is None:
        yield "generation.references", "they answer generation.prompts, which is not written"
    if not measured(get) and not on_steps:
        reason = (
            "nothing is evaluated: no validation data and no prompts (a measure of the steps, such "
            "as training.metric_for_best_model: loss, needs neither)"
        )
        for name in ("metric_for_best_model", "greater_is_better", "early_stopping_patience"):
            yield f"training.{name}", reason
    if get("launch.nproc") in (None, 1) and get("launch.gpus") is None:
        for name in ("master_addr", "master_port"):
            yield f"launch.{name}", "one process meets nobody (launch.nproc, launch.gpus)"


def measured(get: Getter) -> set[str]:
    """Return which of the measures for `training.metric_for_best_model` the run's looks have."""
    prompts = get("generation.prompts")
    held_out = get("data.validation") is not None or get("data.validation_size") is not None
    from_held_out = prompts is None and held_out and get("generation.num_prompts") != 0
    found = {"eval_loss"} if held_out else set()
    if prompts is not None or from_held_out:
        found |= {"eval_repetition", "eval_stopped_share", "eval_empty_answers"}
    if from_held_out or (prompts is not None and get("generation.references") is not None):
        found |= {"eval_exact_match", "eval_bleu_4", "eval_rouge_l", "eval_empty_references"}
    return found


def _idle_data(get: Getter) -> Iterator[tuple[str, str]]:
    if get("data.validation") is not None:
        yield "data.validation_size", "data.validation is given; keep one of the two"
    if get("data.packing") is not False:
        for name in ("group_by_length", "pad_to_multiple_of"):
            yield f"data.{name}", "rows are packed and so all full; write data.packing: false"


def contradictions(get: Getter) -> list[tuple[str, str]]:
    """List (setting, sentence) for settings that cannot both hold."""
    problems: list[tuple[str, str]] = []
    method = get("method")
    if get("model.from_scratch") is True and method in ("lora", "qlora", "freeze"):
        what = "the last layers" if method == "freeze" else "an adapter"
        problems.append(
            (
                "model.from_scratch",
                f"model.from_scratch is true with method {method}: {what} on random frozen weights "
                "learns nothing useful; write method: full, or from_scratch: false",
            )
        )
    total_steps = get("training.max_steps")
    if isinstance(total_steps, int):
        problems += misfit_schedule(get, total_steps)
    metric = get("training.metric_for_best_model")
    patience = get("training.early_stopping_patience")
    known = measured(get)
    if metric in STEP_METRICS:
        known = set()
    if known and metric not in known and (metric != "eval_loss" or patience is not None):
        problems.append(
            (
                "training.metric_for_best_model",
                f"training.metric_for_best_model is {metric}, which this run does not measure "
                "(eval_loss needs validation data; exact match, BLEU-4 and ROUGE-L need prompts "
                f"with references): write one of {', '.join(sorted(known))}, or a measure of the "
                f"steps, which every run has: {', '.join(STEP_METRICS)}",
            )
        )
    prompts, references = get("generation.prompts"), get("generation.references")
    lists = (prompts, references)
    count, answers = (len(value) if isinstance(value, list) else None for value in lists)
    if count is not None and answers is not None and count != answers:
        problems.append(
            (
                "generation.references",
                f"generation.references has {answers} answer(s) for {count} generation.prompts; "
                "write one each",
            )
        )
    return problems
