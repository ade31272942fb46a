"""Times that were measured repeatedly, and what is said about them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Any

__all__ = ["disturbance", "load_average", "median", "percentile", "ratio", "summary"]


def median(samples: Sequence[float]) -> float:
    """The median of at least one sample."""
    if not samples:
        raise ValueError("the median of no samples")
    return statistics.median(samples)


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
