"""Settings outside the range that is usual for the method: a line of advice, never a refusal.

The ranges are those of PEFT's and the families' own fine-tuning examples and of two public guides;
a run outside them may be right, and the user decides.
"""

from glmforge.config import RunConfig

_RATES = {
    "lora": (1e-5, 5e-4),
    "qlora": (1e-5, 5e-4),
    "freeze": (1e-6, 1e-4),
    "full": (1e-6, 5e-5),
}


def unusual_settings(config: RunConfig) -> list[str]:
    """Return a sentence for each setting outside its usual range."""
    if config.model.from_scratch:
        return []  # a model that is made, not fine-tuned
    said = []
    low, high = _RATES[config.method]
    rate = config.training.learning_rate
    if rate < low:
        said.append(
            f"training.learning_rate {rate:g} is low for method {config.method} ({low:g} to "
            f"{high:g} is usual): the loss may hardly move"
        )
    elif rate > high:
        said.append(
            f"training.learning_rate {rate:g} is high for method {config.method} ({low:g} to "
            f"{high:g} is usual): watch the first losses"
        )
    if config.method in ("lora", "qlora"):
        said += _lora(config)
    return said


def _lora(config: RunConfig) -> list[str]:
    lora, said = config.lora, []
    ratio = lora.lora_alpha / lora.r
    if not 1 <= ratio <= 4:
        said.append(
            f"lora.lora_alpha / lora.r is {ratio:g} (1 to 4 is usual): it scales the adapter's "
            "output as a learning rate would"
        )
    if not 4 <= lora.r <= 64:
        said.append(f"lora.r is {lora.r} (4 to 64 is usual; 8 or 16 mostly)")
    if lora.lora_dropout > 0.3:
        said.append(f"lora.lora_dropout is {lora.lora_dropout:g} (0 to 0.2 is usual)")
    return said
