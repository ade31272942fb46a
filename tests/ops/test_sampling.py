"""The filtered distribution of every backend against a float64 oracle, and the draw from it."""

from __future__ import annotations

import numpy as np
import pytest

from support.backends import BACKENDS, make_backend
from support.chi_square import fit_p_value
from support.sampling_oracle import filtered_probabilities

NAN, INF = np.nan, np.inf


@pytest.fixture(params=BACKENDS)
def backend(request):
    return make_backend(request.param)


def masses(weights):
    return np.floor(weights.astype(np.float64) * 2.0**44).astype(np.uint64)


def check(backend, logits, **options):
    """Compares kept tokens and probabilities with the oracle; returns the probabilities."""
    logits = np.asarray(logits, np.float32)
    weights, total = backend.distribution(logits, **options)
    expected = filtered_probabilities(logits, **options)
    mass = masses(weights)
    assert int(mass.sum()) == total > 0
    probabilities = mass.astype(np.float64) / total
    # Below 2^-44 of the likeliest a token has no mass; next to that the oracle cannot decide.
    assert np.all(probabilities[expected == 0] == 0)
    assert np.all(probabilities[expected > 1e-12] > 0)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-5, atol=1e-12)
    return probabilities


FILTERS = {
    "none": {},
    "cold": {"temperature": 0.3},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_k 1": {"top_k": 1},
    "top_k of more than there are": {"top_k": 1_000_000},
    "top_p": {"top_p": 0.8},
    "top_p small": {"top_p": 0.01},
    "min_p": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "typical": {"typical_p": 0.5},
    "typical small": {"typical_p": 0.01},
    "typical 0": {"typical_p": 0.0},
    "typical, hot": {"typical_p": 0.9, "temperature": 2.0},
    "all": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "all and typical": {
        "temperature": 1.5,
        "top_k": 60,
        "typical_p": 0.8,
        "top_p": 0.9,
        "min_p": 0.3,
    },
    "greedy": {"temperature": 0.0},
    "greedy ignores filters": {
        "temperature": 0.0,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.5,
        "typical_p": 0.1,
    },
}


SHORT = [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.9}, {"typical_p": 0.9}]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 257, 5003])
def test_random_rows(backend, name, size):
    for seed in range(5):
        logits = np.random.default_rng(seed).normal(0, 3, size)
        check(backend, logits, **FILTERS[name])


@pytest.mark.parametrize("name", FILTERS)
def test_masked_rows(backend, name):
    rng = np.random.default_rng(3)
    for density in (0.5, 0.05):
        logits = rng.normal(0, 3, 331)
        mask = rng.random(331) < density
        probabilities = check(backend, logits, mask=mask, **FILTERS[name])
        assert np.all(probabilities[~mask] == 0)


def test_filters_apply_in_order(backend):
    """Top-k before top-p: p is counted within what top-k kept; min-p is relative to the best."""
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # 0.4 of 0.7 is 0.57: one token reaches 0.5 of the two kept; of all four it would be two.
    assert np.flatnonzero(check(backend, logits, top_k=2, top_p=0.5)).tolist() == [0]
    assert np.flatnonzero(check(backend, logits, top_p=0.5)).tolist() == [0, 1]
    # At temperature 0.5 the weights are 0.16, 0.09, 0.04, 0.01.
    kept = check(backend, logits, temperature=0.5, min_p=0.3)
    assert np.flatnonzero(kept).tolist() == [0, 1]
    assert np.flatnonzero(check(backend, logits, min_p=0.3)).tolist() == [0, 1, 2]


def test_top_p_keeps_just_enough(backend):
    """Equal weights have exact masses: half of four tokens is two, not three."""
    logits = np.zeros(4)
    for top_p, expected in [(0.25, 1), (0.5, 2), (0.51, 3), (0.75, 3), (1.0, 4), (0.0, 1)]:
        weights, _ = backend.distribution(logits, top_p=top_p)
        assert np.flatnonzero(weights).tolist() == list(range(expected))


def test_ties_go_to_the_lowest_id(backend):
    logits = np.array([1.0, 5.0, 2.0, 5.0, 5.0, 2.0])
    for options, expected in [
        ({"temperature": 0.0}, [1]),
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 4}, [1, 2, 3, 4]),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.6}, [1, 3]),
    ]:
        assert np.flatnonzero(check(backend, logits, **options)).tolist() == expected


def test_many_ties_across_blocks(backend):
    logits = np.zeros(4099)
    for top_k in (1, 100, 2048, 4098):
        weights, _ = backend.distribution(logits, top_k=top_k)
        assert np.flatnonzero(weights).tolist() == list(range(top_k))
    assert np.flatnonzero(check(backend, logits, top_p=0.5)).size == 2050


def test_padding_never_has_probability(backend):
    logits = np.array([0.0, 1.0, 2.0, 99.0, 99.0])
    for options in (*SHORT, {"top_k": 5}):
        assert check(backend, logits, vocab=3, **options).size == 3


@pytest.mark.parametrize("options", SHORT)
def test_nan_counts_as_impossible(backend, options):
    probabilities = check(backend, [NAN, 1.0, NAN, 2.0, -INF], **options)
    assert np.all(probabilities[[0, 2, 4]] == 0)


@pytest.mark.parametrize("options", SHORT)
@pytest.mark.parametrize("value", [NAN, -INF])
def test_nothing_left_gives_the_lowest_allowed_id(backend, options, value):
    logits = np.full(70, value)
    assert check(backend, logits, **options)[0] == 1.0
    mask = np.zeros(70, bool)
    mask[[41, 69]] = True
    assert check(backend, logits, mask=mask, **options)[41] == 1.0
    # The mask removes the only finite logit.
    logits[3] = 1.0
    assert check(backend, logits, mask=mask, **options)[41] == 1.0
    assert check(backend, logits, mask=np.zeros(70, bool), **options)[0] == 1.0


def test_infinite_logit_takes_everything(backend):
    for options in SHORT:
        weights, total = backend.distribution(np.array([0.0, INF, 3.0, NAN]), **options)
        assert np.flatnonzero(weights).tolist() == [1]
        assert total == 2**44


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-6])
def test_tiny_temperature_is_the_argmax(backend, temperature):
    weights, _ = backend.distribution(np.array([1.0, 3.0, 2.0]), temperature=temperature)
    assert np.flatnonzero(weights).tolist() == [1]


def test_wide_range_of_logits(backend):
    check(backend, [3e38, -3e38, 0.0])
    check(backend, np.linspace(-200, 0, 301))


@pytest.mark.parametrize("name", FILTERS)
def test_every_backend_gives_the_same_bits(name):
    ref, cpu = make_backend("ref"), make_backend("cpu")
    rng = np.random.default_rng(11)
    for size in (1, 33, 1000, 49_152):
        # Rounded logits have many ties.
        logits = np.round(rng.normal(0, 3, size), 1).astype(np.float32)
        expected, expected_total = ref.distribution(logits, **FILTERS[name])
        actual, total = cpu.distribution(logits, **FILTERS[name])
        assert total == expected_total
        assert np.array_equal(masses(actual), masses(expected))


def test_draw_depends_on_its_whole_key_and_on_nothing_else(backend):
    weights = np.ones(50_000, np.float32)
    base = {"seed": 1, "position": 2, "purpose": "target"}
    keys = [base, base | {"seed": 2}, base | {"position": 3}, base | {"purpose": "draft"}]
    tokens = [backend.draw(weights, **key) for key in keys]
    assert len(set(tokens)) == len(tokens)
    assert backend.draw(weights, **base) == tokens[0]
    # Removing other tokens does not move the draw: what couples a drafter to the target.
    fewer = np.zeros_like(weights)
    fewer[: tokens[0] + 1] = 1.0
    assert backend.draw(fewer, **base) == tokens[0]


def test_draws_fit_the_distribution(backend):
    weights = np.array([1.0, 0.5, 0.0, 0.25, 0.01, 1e-6], np.float32)
    count = 10_000 if backend.name.startswith("cuda") else 50_000
    draws = [backend.draw(weights, 3, position) for position in range(count)]
    counts = np.bincount(draws, minlength=weights.size)
    assert fit_p_value(counts, weights / weights.sum()) > 1e-3


def test_every_backend_draws_the_same_token():
    ref, cpu = make_backend("ref"), make_backend("cpu")
    rng = np.random.default_rng(5)
    for seed in range(200):
        size = int(rng.integers(1, 2000))
        weights = np.where(rng.random(size) < 0.5, rng.random(size), 0).astype(np.float32)
        weights[size // 2] = 1.0
        assert ref.draw(weights, seed, 7) == cpu.draw(weights, seed, 7)
