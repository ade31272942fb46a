"""Times that were measured repeatedly, and what is said about them."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = [
    "disturbance",
    "geometric_mean",
    "load_average",
    "median",
    "median_interval",
    "percentile",
    "ratio",
    "summary",
]


def median(samples: Sequence[float]) -> float:
    """The median of at least one sample."""
    if not samples:
        raise ValueError("the median of no samples")
    return statistics.median(samples)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Of positive numbers; None of none."""
    return statistics.geometric_mean(ratios) if ratios else None


def median_interval(samples: Sequence[float], certainty: float = 0.95) -> list[float] | None:
    """An interval that holds the median of what was sampled, by the sign test.

    Makes no assumption about how the samples scatter: the k-th smallest and the k-th largest, for
    the largest k with which a fair coin stays within so many heads. At 95 % None for fewer than 6.
    """
    count = len(samples)
    outside, k = 0.0, 0
    while k < count // 2:
        outside += 2.0 * math.comb(count, k) / 2.0**count
        if outside > 1.0 - certainty:
            break
        k += 1
    if k == 0:
        return None
    ordered = sorted(samples)
    return [ordered[k - 1], ordered[count - k]]


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of the samples lie, interpolated."""
    if not samples:
        raise ValueError("a percentile of no samples")
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Median, fastest, 90th percentile and number of times in milliseconds."""
    return {
        "ms": median(samples),
        "min_ms": min(samples),
        "p90_ms": percentile(samples, 0.9),
        "samples": len(samples),
    }


def ratio(part: float | None, whole: float | None) -> float | None:
    """``part / whole``, or None where that says nothing."""
    if part is None or not whole:
        return None
    return part / whole


def disturbance(groups: Sequence[Sequence[float]]) -> float | None:
    """How much slower the median of each group is than its fastest sample, in the middle.

    On a quiet machine this is below 1.05; above 1.2 the figures say little.
    """
    shares = [median(group) / min(group) for group in groups if group and min(group) > 0]
    return median(shares) if shares else None


def load_average() -> float | None:
    """Processes that wanted to run in the last minute, where the system says so."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
