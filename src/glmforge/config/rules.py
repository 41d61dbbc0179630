"""Rules between settings: which ones have no effect under the others, and which contradict.

Works on what was written, before the types are known to be right, so that these faults are
reported together with all others. The same list decides what `RunConfig.to_yaml` leaves out.
"""

from collections.abc import Callable, Iterator

Getter = Callable[[str], object]
"""Gives the value of a dotted setting: the written one, else its default."""

ALTERNATIVES: tuple[tuple[str, str], ...] = (
    ("training.max_steps", "training.num_train_epochs"),
    ("training.warmup_steps", "training.warmup_ratio"),
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
    for setting, replaced in ALTERNATIVES:
        if get(setting) is not None:
            yield replaced, f"{setting} is written and decides alone; keep one of the two"
    if get("method") == "full":
        for name in _LORA:
            yield f"lora.{name}", "method is full, which trains no adapter"
    elif get("lora.r") == 1:
        yield "lora.use_rslora", "lora.r is 1, whose square root is 1"
    validation, prompts = get("data.validation"), get("generation.prompts")
    if validation is None:
        reason = "data.validation is not given, so nothing is evaluated"
        yield "training.per_device_eval_batch_size", reason
        yield "generation.num_prompts", "data.validation is not given, so there is none to take"
        if prompts is None:
            yield "training.eval_steps", reason
            yield "generation.max_new_tokens", "no data.validation and no generation.prompts"
    elif prompts is not None:
        yield "generation.num_prompts", "generation.prompts is written out"
    if get("launch.nproc") in (None, 1) and get("launch.gpus") is None:
        for name in ("master_addr", "master_port"):
            yield f"launch.{name}", "one process meets nobody (launch.nproc, launch.gpus)"


def contradictions(get: Getter) -> list[tuple[str, str]]:
    """List (setting, sentence) for settings that cannot both hold."""
    problems: list[tuple[str, str]] = []
    if get("model.from_scratch") is True and get("method") == "lora":
        problems.append(
            (
                "model.from_scratch",
                "model.from_scratch is true with method lora: an adapter on random frozen weights "
                "learns nothing useful; write method: full, or from_scratch: false",
            )
        )
    return problems
