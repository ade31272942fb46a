"""Acceptance on distributions as real models have them, and against theory.

``tests/golden/captured_logits.npz`` (made by ``tools/capture_logits.py``) holds the logits of
SmolLM2-135M-Instruct in Q4_1 (target) and requantised to Q2_K (draft) after a prompt and each of
64 tokens, for these 64 tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec_native import _core
from support.chi_square import fit_p_value
from support.sampling_oracle import filtered_probabilities

CAPTURED = np.load(Path(__file__).parent.parent / "golden" / "captured_logits.npz")
TARGET, DRAFT_LOGITS = CAPTURED["target"], CAPTURED["draft"]
DRAFT = np.stack([filtered_probabilities(row) for row in DRAFT_LOGITS]).astype(np.float32)
START = 0

SHAPES = {
    "chain": ((-1, 0, 1), (True, True, True)),
    "tree": ((-1, -1, 0, 0, 1), (True, True, True, False, True)),
}
TRIALS = 1_000_000


def text_probabilities(target: np.ndarray, length: int) -> np.ndarray:
    """Of every text of ``length`` tokens after START, first token outermost."""
    texts = target[START]
    for _ in range(length - 1):
        last = np.tile(np.arange(len(target)), texts.size // len(target))
        texts = (texts[:, None] * target[last]).ravel()
    return texts


def write_many(rule: str, seed: int, parents, sampled, **options):
    backend = _core.testing.Backend(options.pop("backend", "cpu"), threads=1)
    return backend.verify_many(
        TARGET, DRAFT, parents, sampled, start=START, rule=rule, seed=seed, **options
    )


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_tokens_of_a_million_texts_fit_the_target(shape, seed):
    filters = {"temperature": 0.9, "top_k": 40}
    target = np.stack([filtered_probabilities(row, **filters) for row in TARGET])
    position = len(shape) << 44
    counts, _, accepted = write_many(
        "rejection", seed, *SHAPES[shape], length=2, trials=TRIALS, position=position, **filters
    )
    assert fit_p_value(counts, text_probabilities(target, 2)) > 1e-3
    assert accepted > TRIALS / 4


# Hand-made pairs of distributions; the rates are also the table in docs/acceptance.md.
PAIRS = {
    "equal": ([0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]),
    "close": ([0.4, 0.3, 0.2, 0.1], [0.3, 0.3, 0.25, 0.15]),
    "flat draft": ([0.7, 0.2, 0.08, 0.02], [0.25, 0.25, 0.25, 0.25]),
    "sharp draft": ([0.4, 0.3, 0.2, 0.1], [0.94, 0.02, 0.02, 0.02]),
    "opposed": ([0.6, 0.3, 0.05, 0.05], [0.05, 0.05, 0.3, 0.6]),
    "disjoint": ([0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]),
}


def acceptance_rate(rule: str, target: list[float], draft: list[float], trials: int) -> float:
    """The share of single drafted tokens that stand."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.array([target] * len(target))).astype(np.float32)
    weights = np.array([draft] * len(draft), np.float32)
    backend = _core.testing.Backend("cpu", threads=1)
    _, rounds, accepted = backend.verify_many(
        logits, weights, (-1,), (True,), length=1, trials=trials, seed=11, rule=rule
    )
    return accepted / rounds


@pytest.mark.parametrize("name", PAIRS)
def test_acceptance_rates_are_those_of_theory(name):
    """`rejection`: the sum of min(target, draft). `coupled`: at least (1 - TV) / (1 + TV).

    TV is the total variation distance (Daliri et al., arXiv 2408.07978).
    """
    target, draft = PAIRS[name]
    trials = 100_000
    overlap = float(np.minimum(target, draft).sum())
    error = 4.5 * np.sqrt(max(overlap * (1 - overlap), 1e-9) / trials)
    assert acceptance_rate("rejection", target, draft, trials) == pytest.approx(overlap, abs=error)
    least = overlap / (2.0 - overlap)
    coupled = acceptance_rate("coupled", target, draft, trials)
    assert least - error <= coupled <= overlap + error
