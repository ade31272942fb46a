"""The sampling chain as a float64 NumPy formula, independent of the C++ code."""

from __future__ import annotations

import numpy as np


def filtered_probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    mask: np.ndarray | None = None,
    vocab: int | None = None,
) -> np.ndarray:
    """Returns the distribution after mask, temperature, top-k, top-p and min-p, in this order.

    Ties rank by the lower id. A NaN counts as -infinity; if nothing is left, the lowest allowed id
    (0 if none is allowed) has probability 1.
    """
    logits = np.asarray(logits, np.float64)[:vocab]
    allowed = np.ones(logits.size, bool) if mask is None else np.asarray(mask, bool)
    logits = np.where(allowed & ~np.isnan(logits), logits, -np.inf)
    result = np.zeros(logits.size)
    if not np.any(logits > -np.inf):
        result[int(np.argmax(allowed))] = 1.0
        return result
    if temperature == 0.0:
        result[int(np.argmax(logits))] = 1.0
        return result
    scaled = (logits - logits.max()) / temperature
    order = np.lexsort((np.arange(logits.size), -scaled))
    order = order[scaled[order] > -np.inf]
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(scaled[order])
    if top_p < 1.0:
        reached = np.cumsum(weights) >= np.float32(top_p) * weights.sum()
        count = int(np.argmax(reached)) + 1
        order, weights = order[:count], weights[:count]
    if min_p > 0.0:
        keep = weights >= min_p
        order, weights = order[keep], weights[keep]
    result[order] = weights / weights.sum()
    return result
