"""Reference figures of the real model (tests/golden/smollm2_135m_q4_1.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import specdec_native as sd

_GOLDEN = Path(__file__).parent.parent / "golden" / "smollm2_135m_q4_1.json"
CASES: list[dict[str, Any]] = json.loads(_GOLDEN.read_text())["cases"]


def log_probability_differences(gen: sd.Generator, cases: Sequence[dict[str, Any]]) -> list[float]:
    """How far the log-probabilities of the ten likeliest tokens are from the reference."""
    differences = []
    for case in cases:
        last = gen.logits(case["ids"])[-1].astype(np.float64)
        log_probs = last - last.max() - np.log(np.exp(last - last.max()).sum())
        differences += [abs(log_probs[token] - expected) for token, expected in case["top10"]]
    return differences


def assert_follows(tokens: Sequence[int], case: dict[str, Any]) -> None:
    """A greedy text is that of the reference while the choice is clear."""
    for token, expected, gap in zip(tokens, case["greedy"], case["gaps"], strict=False):
        if gap < 0.6:  # activations in 8 bits may decide a close call otherwise
            break
        assert token == expected
