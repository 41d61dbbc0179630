"""Means with the interval in which they would lie for other prompts of the same kind.

Percentile bootstrap over prompts (Efron 1979), 2,000 resamples with a fixed seed. A difference
between two models resamples prompts, not answers: both answered the same ones. Where all values are
alike there is nothing to resample, and a share gets Wilson's interval (1927) instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2_000
FEWEST = 5
"""Fewer prompts than this give no verdict on a change."""
_Z = 1.959964  # the normal distribution's 97.5 % point: 95 % lie between -z and z
_CHUNK = 1 << 22  # numbers drawn at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over `count` prompts and its 95 % interval."""

    value: float
    low: float
    high: float
    count: int


def estimate(values: Sequence[float], *, is_share: bool = False) -> Estimate | None:
    """Return the mean of some values with its interval; None without values.

    Args:
        values: one a prompt.
        is_share: the values are 0 or 1.
    """
    if not values:
        return None
    if is_share and len(set(values)) == 1:
        low, high = wilson(sum(values), len(values))
        return Estimate(value=float(values[0]), low=low, high=high, count=len(values))
    means = _resampled(np.asarray(values, np.float64))
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(
        value=float(np.mean(values)), low=float(low), high=float(high), count=len(values)
    )


def difference(after: Sequence[float], before: Sequence[float]) -> Estimate | None:
    """Return the mean of `after` - `before`, prompt by prompt, with its interval."""
    return estimate([new - old for new, old in zip(after, before, strict=True)])


def ratio_difference(
    after: Sequence[float], before: Sequence[float], weights: Sequence[float]
) -> Estimate | None:
    """Return (Σ after - Σ before) / Σ weights with its interval, rows resampled; None without rows.

    Args:
        after, before: sums of each row, such as its nll.
        weights: what they are sums over, such as its trained tokens.
    """
    total = math.fsum(weights)
    if not total:
        return None
    gaps = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    sums = _resampled(np.stack([gaps, np.asarray(weights, np.float64)], axis=-1))
    low, high = np.percentile(sums[:, 0] / np.maximum(sums[:, 1], 1e-300), [2.5, 97.5])
    return Estimate(
        value=float(gaps.sum() / total), low=float(low), high=float(high), count=len(gaps)
    )


def wilson(hits: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval for a share of `hits` in `count`."""
    share, spread = hits / count, _Z * _Z / count
    centre = (share + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def is_change(found: Estimate | None) -> bool:
    """Say whether a difference is more than chance: enough prompts, and an interval without 0."""
    if found is None or found.count < FEWEST:
        return False
    return not found.low <= 0 <= found.high


def _resampled(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Means over the first axis of as many draws with replacement, resample by resample."""
    random = np.random.default_rng(0)
    each = max(1, _CHUNK // len(values))
    means = [
        values[random.integers(0, len(values), (min(each, RESAMPLES - start), len(values)))].mean(1)
        for start in range(0, RESAMPLES, each)
    ]
    return np.concatenate(means)
