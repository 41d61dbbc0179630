"""`glmforge chat --stress`: does generation at the longest length hold, before users ask for it?

Generates at exactly the length that training used, with the batch that is asked for: a prompt that
fills all but the new tokens, and no stop. Says the peak memory and whether it held. The cache of
keys and values grows with length x batch and is what training's own peak does not show.
"""

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from glmforge.data import generation_prompt
from glmforge.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StressReport:
    """What one generation at full length took."""

    length: int
    """Prompt and answer together, tokens."""
    batch: int
    new_tokens: int
    held: bool
    """Whether it came to its end without running out of memory."""
    device: str
    peak_gib: float
    """Allocated on the GPU, or resident on a CPU."""
    free_gib: float | None
    """What the GPU has left at the peak; None on a CPU."""
    tokens_per_second: float
    """New tokens, all rows of the batch together."""
    largest_batch: int | None = None
    """Where it did not hold: a smaller batch that does, or 0 for none."""

    def lines(self) -> list[str]:
        """Sentences for people."""
        what = f"{self.batch} x {self.length:,} tokens ({self.new_tokens:,} of them new)"
        if not self.held:
            then = (
                f"a batch of {self.largest_batch} holds" if self.largest_batch else "one does not"
            )
            return [f"does NOT hold: {what} on {self.device} ran out of memory; {then}"]
        left = "" if self.free_gib is None else f", {self.free_gib:.2f} GiB left"
        return [
            f"holds: {what} on {self.device}",
            f"peak {self.peak_gib:.2f} GiB{left}; "
            f"{self.tokens_per_second:,.1f} new tokens a second",
        ]


def longest_length(path: Path, config: Any) -> int:
    """Return ``data.max_length`` of the run that a model is from, else the model's own positions.

    Raises:
        UsageError: neither is known.
    """
    from glmforge.config import load_config_file

    for directory in (path, *list(path.resolve().parents)[:3]):
        if (directory / "config.yaml").is_file():
            return load_config_file(directory / "config.yaml").data.max_length
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if not positions:
        raise UsageError(f"{path}: no run's config.yaml near it: give the length as --length N")
    return positions


def prompt_of(tokenizer: Any, length: int) -> list[int]:
    """Return a generation prompt of exactly `length` tokens in the family's format.

    Raises:
        UsageError: the format alone is longer.
    """
    short = generation_prompt([{"role": "user", "content": "你好"}], tokenizer)
    filler = tokenizer.encode_text("好") if hasattr(tokenizer, "encode_text") else short[-3:-2]
    missing = length - len(short)
    if missing < 0:
        raise UsageError(f"a prompt of {length} tokens is asked for; the format takes {len(short)}")
    # Two tokens from the end is the question's text in every family's format.
    return [*short[:-2], *(filler[-1:] * missing), *short[-2:]]


def stress(
    model: Any, tokenizer: Any, *, length: int, batch: int, new_tokens: int, find_batch: bool = True
) -> StressReport:
    """Generate `batch` rows of exactly `length` tokens and measure.

    Args:
        model: ready to answer.
        tokenizer: its tokenizer.
        length: prompt and new tokens together.
        batch: rows.
        new_tokens: how many of them are generated.
        find_batch: where it does not hold, look for a smaller batch that does.

    Raises:
        UsageError: `new_tokens` leaves no room for a prompt.
    """
    if not 0 < new_tokens < length:
        raise UsageError(f"--max-new-tokens {new_tokens}: must be below the length, {length}")
    device = next(iter(model.parameters())).device
    prompt = prompt_of(tokenizer, length - new_tokens)
    held, seconds = _attempt(model, device, prompt, batch, new_tokens)
    largest = None
    if not held:
        largest = batch // 2 if find_batch else 0
        while largest and not _attempt(model, device, prompt, largest, new_tokens)[0]:
            largest //= 2
    on_gpu = device.type == "cuda"
    return StressReport(
        length=length,
        batch=batch,
        new_tokens=new_tokens,
        held=held,
        device=torch.cuda.get_device_name(device) if on_gpu else "the CPU",
        peak_gib=_peak_bytes(device) / 2**30,
        free_gib=_free_bytes(device) / 2**30 if on_gpu else None,
        tokens_per_second=batch * new_tokens / seconds if held else 0.0,
        largest_batch=largest,
    )


@torch.no_grad()
def _attempt(
    model: Any, device: torch.device, prompt: list[int], batch: int, new_tokens: int
) -> tuple[bool, float]:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    ids = torch.tensor([prompt] * batch, device=device)
    began = time.perf_counter()
    try:
        with torch.compiler.set_stance("force_eager"):
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
    except (torch.OutOfMemoryError, MemoryError):
        return False, 0.0
    assert output.shape == (batch, len(prompt) + new_tokens)
    return True, time.perf_counter() - began


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _free_bytes(device: torch.device) -> int:
    total = int(torch.cuda.get_device_properties(device).total_memory)
    return total - int(torch.cuda.max_memory_reserved(device))
