"""What two consecutive tokens of a target should be, for tests that run whole requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec_native import _core


def next_token_probabilities(
    target: _core.Model, tokens: Sequence[int], temperature: float, top_k: int = 4
) -> dict[int, float]:
    """The target's filtered distribution of the token after a text, computed here in double."""
    logits = _core.Generator(target, 64, "f16").logits(tokens, len(tokens) - 1)[0, :300]
    kept = np.argsort(-logits, kind="stable")[:top_k]
    weights = np.exp((logits[kept].astype(np.float64) - logits.max()) / temperature)
    return dict(zip(kept.tolist(), (weights / weights.sum()).tolist(), strict=True))


def joint_probabilities(
    target: _core.Model, prompt: Sequence[int], temperature: float, top_k: int = 4
) -> dict[tuple[int, int], float]:
    """Of the next two tokens."""
    return {
        (a, b): x * y
        for a, x in next_token_probabilities(target, prompt, temperature, top_k).items()
        for b, y in next_token_probabilities(target, [*prompt, a], temperature, top_k).items()
    }
