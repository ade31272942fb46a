"""The sampling chain as float64 NumPy formulas, independent of the C++ code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def adjusted_logits(
    logits: np.ndarray,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
) -> np.ndarray:
    """Returns logits after the penalties and the bias, in this order."""
    logits = np.array(logits, np.float64)
    seen = np.zeros(logits.size, bool)
    seen[list(prompt)] = True
    seen[list(output)] = True
    times = np.bincount(np.array(output, int), minlength=logits.size)
    factor = float(np.float32(repetition_penalty))
    logits = np.where(seen, np.where(logits > 0, logits / factor, logits * factor), logits)
    logits = logits - float(np.float32(presence_penalty)) * (times > 0)
    logits = logits - float(np.float32(frequency_penalty)) * times
    for token, added in (logit_bias or {}).items():
        logits[token] += added
    return logits


def filtered_probabilities(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    mask: np.ndarray | None = None,
    vocab: int | None = None,
    **adjustments,
) -> np.ndarray:
    """Returns the distribution after the whole chain.

    The order: the adjustments of `adjusted_logits`, mask, temperature, top-k, typical-p, top-p,
    min-p. Ties rank by the lower id. A NaN counts as -infinity; if nothing is left, the lowest
    allowed id (0 if none is allowed) has probability 1.
    """
    logits = np.asarray(logits, np.float64)[:vocab]
    if adjustments:
        logits = adjusted_logits(logits, **adjustments)
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
    if typical_p < 1.0:
        order = _typical(order, np.exp(scaled[order]), typical_p)
    weights = np.exp(scaled[order])
    if top_p < 1.0:
        count = _prefix(weights, top_p)
        order, weights = order[:count], weights[:count]
    if min_p > 0.0:
        keep = weights >= min_p * weights.max()
        order, weights = order[keep], weights[keep]
    result[order] = weights / weights.sum()
    return result


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the natural log-probabilities of one row of logits."""
    logits = np.asarray(logits, np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def _prefix(weights: np.ndarray, share: float) -> int:
    """How many of the first weights reach a share of their sum."""
    reached = np.cumsum(weights) >= np.float32(share) * weights.sum()
    return int(np.argmax(reached)) + 1 if reached.any() else weights.size


def _typical(ranked: np.ndarray, weights: np.ndarray, typical_p: float) -> np.ndarray:
    """The locally typical ones of ranked ids (arXiv 2202.00666, section 4), in their order."""
    probabilities = weights / weights.sum()
    positive = probabilities > 2.0**-50
    ranked, probabilities = ranked[positive], probabilities[positive]
    surprisal = -np.log(probabilities)
    entropy = np.sum(probabilities * surprisal)
    # Rounded, so that what is equal but for the last bits is a tie.
    distance = np.round(np.abs(surprisal - entropy), 12)
    nearest = np.lexsort((ranked, distance))
    kept = nearest[: _prefix(probabilities[nearest], typical_p)]
    return ranked[np.sort(kept)]
