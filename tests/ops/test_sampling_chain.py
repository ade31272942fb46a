"""Penalties, bias, typical-p and log-probabilities of every backend against the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import specdec_native as sd
from support.backends import BACKENDS, make_backend
from support.sampling_oracle import adjusted_logits, filtered_probabilities, log_softmax

NAN, INF = np.nan, np.inf
TEXT = {"prompt": [3, 5, 5, 9, 30], "output": [5, 7, 7, 7, 30]}
ADJUSTMENTS = {
    "none": {},
    "repetition": {"repetition_penalty": 1.3},
    "repetition below 1": {"repetition_penalty": 0.7},
    "presence": {"presence_penalty": 0.9},
    "presence below 0": {"presence_penalty": -0.9},
    "frequency": {"frequency_penalty": 0.4},
    "bias": {"logit_bias": {0: 2.5, 7: -100.0, 31: -INF}},
    "all": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {5: 1.0, 9: -2.0, 11: 0.5},
    },
}


@pytest.fixture(params=BACKENDS)
def backend(request):
    return make_backend(request.param)


# --- Penalties and bias --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_adjusted_logits(backend, name):
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 3, 40).astype(np.float32)
        actual = backend.adjust_logits(logits, **TEXT, **ADJUSTMENTS[name])
        np.testing.assert_allclose(
            actual, adjusted_logits(logits, **TEXT, **ADJUSTMENTS[name]), rtol=1e-6, atol=1e-6
        )
        untouched = [i for i in range(40) if i not in {0, 3, 5, 7, 9, 11, 30, 31}]
        assert np.array_equal(actual[untouched], logits[untouched])


def test_what_each_penalty_looks_at(backend):
    """Repetition: prompt and output, once. Presence and frequency: the output only."""
    logits = np.array([2.0, -2.0, 2.0, 2.0], np.float32)
    text = {"prompt": [0, 1, 0], "output": [2, 2, 2]}

    def adjusted(**options):
        return backend.adjust_logits(logits, **text, **options).tolist()

    assert adjusted(repetition_penalty=2.0) == [1.0, -4.0, 1.0, 2.0]
    assert adjusted(presence_penalty=0.5) == [2.0, -2.0, 1.5, 2.0]
    assert adjusted(frequency_penalty=0.5) == [2.0, -2.0, 0.5, 2.0]
    # Repetition first, bias last.
    both = {"repetition_penalty": 2.0, "presence_penalty": 0.5, "logit_bias": {2: -4.0, 3: 1.0}}
    assert adjusted(**both) == [1.0, -4.0, -3.5, 3.0]


def test_strange_logits_stay_strange(backend):
    logits = np.array([NAN, -INF, INF, 0.0], np.float32)
    actual = backend.adjust_logits(
        logits, prompt=[0, 1, 2, 3], repetition_penalty=2.0, logit_bias={2: -INF}
    )
    assert np.isnan(actual[0])
    assert actual[1] == -INF
    assert np.isnan(actual[2])
    assert actual[3] == 0.0


@pytest.mark.parametrize("options", [{"logit_bias": {4: 1.0}}, {"prompt": [4]}, {"output": [-1]}])
def test_ids_outside_the_vocabulary_are_refused(backend, options):
    with pytest.raises(sd.InternalError, match=r"token (4|-1) of a vocabulary of 4"):
        backend.adjust_logits(np.zeros(5), vocab=4, presence_penalty=1.0, **options)


def test_the_whole_chain(backend):
    """Every stage at once, on random rows, against the oracle."""
    rng = np.random.default_rng(17)
    for seed in range(60):
        logits = rng.normal(0, 3, 300).astype(np.float32)
        options = {
            **ADJUSTMENTS["all"],
            **TEXT,
            "temperature": float(rng.choice([0.0, 0.6, 1.0, 1.7])),
            "top_k": int(rng.choice([0, 5, 50])),
            "typical_p": float(rng.choice([1.0, 0.9, 0.4])),
            "top_p": float(rng.choice([1.0, 0.9, 0.5])),
            "min_p": float(rng.choice([0.0, 0.05, 0.3])),
            "mask": rng.random(300) < 0.7,
        }
        weights, total = backend.distribution(logits, **options)
        mass = np.floor(weights.astype(np.float64) * 2.0**44)
        expected = filtered_probabilities(logits, **options)
        assert np.array_equal(mass > 0, expected > 0), (seed, options)
        np.testing.assert_allclose(mass / total, expected, rtol=2e-5)


# --- Typical-p -----------------------------------------------------------------------------------


def kept(backend, probabilities, **options):
    weights, _ = backend.distribution(np.log(probabilities), **options)
    return np.flatnonzero(weights).tolist()


def test_typical_may_drop_the_likeliest(backend):
    """One token of 0.4 and ten of 0.06; the entropy 2.05 is nearer to theirs.

    The paper's example of why the mode may be atypical, arXiv 2202.00666.
    """
    probabilities = np.array([0.4, *[0.06] * 10])
    assert kept(backend, probabilities, typical_p=0.5) == list(range(1, 10))
    assert kept(backend, probabilities, typical_p=0.65) == list(range(11))
    assert kept(backend, probabilities, typical_p=0.0) == [1]
    assert kept(backend, probabilities, typical_p=1.0) == list(range(11))


def test_typical_counts_what_top_k_left_and_comes_before_top_p_and_min_p(backend):
    probabilities = np.array([0.4, *[0.06] * 10])
    # Of the three that top-k keeps, the likeliest is the typical one.
    assert kept(backend, probabilities, top_k=3, typical_p=0.5) == [0]
    # Min-p is relative to the likeliest that is left: 0.06, not 0.4.
    assert kept(backend, probabilities, typical_p=0.5, min_p=0.9) == list(range(1, 10))
    assert kept(backend, probabilities, min_p=0.9) == [0]
    # Nine equal tokens are left; five of them reach half of their mass.
    assert kept(backend, probabilities, typical_p=0.5, top_p=0.5) == list(range(1, 6))


def test_ties_at_the_typical_cutoff_go_to_the_lowest_id(backend):
    weights, _ = backend.distribution(np.zeros(4099), typical_p=0.5)
    assert np.flatnonzero(weights).tolist() == list(range(2050))


# --- Log-probabilities ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 300, 5003])
def test_log_probabilities(backend, size):
    for seed in range(4):
        logits = np.random.default_rng(seed).normal(0, 5, size).astype(np.float32)
        expected = log_softmax(logits)
        order = np.lexsort((np.arange(size), -logits))
        for top in sorted({0, 1, min(size, 7), size}):
            own, best = backend.log_probabilities(logits, size // 2, top)
            assert own == pytest.approx(expected[size // 2], rel=1e-6, abs=2e-6)
            assert [token for token, _ in best] == order[:top].tolist()
            np.testing.assert_allclose(
                [value for _, value in best], expected[order[:top]], rtol=1e-6, atol=2e-6
            )
            assert all(value == own for token, value in best if token == size // 2)


def test_log_probabilities_at_the_edge(backend):
    """Ties: lowest id. NaN counts as -infinity. Padding does not count."""
    own, best = backend.log_probabilities(np.array([1.0, 2.0, NAN, 2.0, -INF, 50.0]), 3, 5, vocab=5)
    assert [token for token, _ in best] == [1, 3, 0, 2, 4]
    assert own == best[0][1] == best[1][1] == pytest.approx(-np.log(2 + np.exp(-1)))
    assert [value for _, value in best[3:]] == [-INF, -INF]
    for value in (NAN, -INF):
        own, best = backend.log_probabilities(np.full(20, value), 3, 2)
        assert own == -INF
        assert best == [(0, -INF), (1, -INF)]
    own, best = backend.log_probabilities(np.array([0.0, INF, 1.0]), 1, 3)
    assert own == 0.0
    assert best == [(1, 0.0), (2, -INF), (0, -INF)]


def test_every_backend_gives_the_same_bits():
    ref, cpu = make_backend("ref"), make_backend("cpu")
    rng = np.random.default_rng(3)
    for size in (1, 33, 1000, 49_152):
        logits = np.round(rng.normal(0, 4, size), 1).astype(np.float32)
        token, top = int(rng.integers(size)), min(size, 20)
        expected = ref.log_probabilities(logits, token, top)
        assert cpu.log_probabilities(logits, token, top) == expected
