"""Every sampling kernel a few times against `cpu`: few enough calls for ThreadSanitizer, too.

More of what they compute is tested by the operation tests, which take the emulated device along.
"""

from __future__ import annotations

import numpy as np
import pytest

from support.backends import CUDA_DEVICE, make_backend

CHAINS = {
    "plain": {},
    "top_k": {"top_k": 37},
    "top_p": {"temperature": 0.7, "top_p": 0.8},
    "min_p": {"temperature": 1.4, "min_p": 0.05},
    "typical": {"typical_p": 0.6},
    "all": {"temperature": 1.2, "top_k": 300, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.01},
    "greedy": {"temperature": 0.0},
}
# No multiple of the threads of a block, nor of the bits of a word of the mask.
VOCAB = 1100
TREE = [-1, -1, 0, 0, 1, 2, 2, 5]


@pytest.fixture(scope="module")
def both():
    return make_backend(CUDA_DEVICE), make_backend("cpu")


def logits_of(rows, seed=0):
    """Rows with many ties, and some logits that are minus infinity."""
    values = np.random.default_rng(seed).normal(0, 3, (rows, VOCAB)).astype(np.float16)
    values = np.round(values.astype(np.float32) * 4) / 4
    values[:, 7::101] = -np.inf
    return values


def mask_of(rows, seed=1):
    return np.random.default_rng(seed).random((rows, VOCAB)) < 0.7


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_distributions(both, chain, masked):
    (row,) = logits_of(1)
    mask = mask_of(1)[0] if masked else None
    found = [one.distribution(row, mask=mask, **CHAINS[chain]) for one in both]
    assert found[0][0].tobytes() == found[1][0].tobytes()
    assert found[0][1] == found[1][1]


def test_draws_and_likeliest_tokens(both):
    (row,) = logits_of(1, seed=2)
    weights = both[1].distribution(row, top_k=400)[0]
    for purpose in ("target", "draft"):
        drawn = [[one.draw(weights, 3, at, purpose) for at in range(4)] for one in both]
        assert drawn[0] == drawn[1]
    for count in (1, 3, 500):  # more than have a weight
        assert both[0].top_tokens(weights, count) == both[1].top_tokens(weights, count)
    for top in (0, 5):
        assert both[0].log_probabilities(row, 9, top) == both[1].log_probabilities(row, 9, top)


def test_adjusted_and_scattered_logits(both):
    (row,) = logits_of(1, seed=3)
    fields = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "prompt": [1, 2, 3, 1],
        "output": [2, 2, 9],
        "logit_bias": {3: 1.5, 1099: -2.0},
    }
    found = [one.adjust_logits(row, **fields).tobytes() for one in both]
    assert found[0] == found[1]
    ids = [4, 0, 1099, 8]
    found = [one.scatter_logits(row[:4], ids, VOCAB).tobytes() for one in both]
    assert found[0] == found[1]


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_walks(both, rule):
    """Drafted from distributions and without, siblings of both kinds, penalties and masks."""
    rows = len(TREE) + 1
    logits, mask = logits_of(rows, seed=4), mask_of(rows, seed=5)
    mask[:, :40] = True
    logits[:, :40] += 3.0
    fields = {"temperature": 0.0} if rule == "greedy" else {"rule": rule, "top_k": 60}
    fields |= {"mask": mask, "presence_penalty": 0.3, "prompt": [5, 6], "output": [7]}
    rng = np.random.default_rng(6)
    draft = np.zeros((3, VOCAB), np.float32)
    draft[:, :60] = rng.random((3, 60))
    prob_rows = [0, 0, 1, -1, 2, -1, -1, 2]
    accepted = 0
    for seed in range(6):
        likely = np.argsort(-np.where(mask, logits, -np.inf), axis=1)[:, :3]
        choice = [int(likely[parent + 1, rng.integers(3)]) for parent in TREE]
        given = (logits, choice, TREE, prob_rows, draft)
        found = [one.verify(*given, seed=seed, position=9, **fields) for one in both]
        assert found[0] == found[1]
        accepted += len(found[0][0])
    assert accepted > 0


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_walks_over_tokens_in_place(both, rule):
    """Tokens, and the masses of what they were drawn from, that the host has not seen."""
    tree, prob_rows = [-1, 0, 1, -1, 3], [0, 1, -1, 2, -1]
    logits = logits_of(len(tree) + 1, seed=14)
    logits[:, :40] += 3.0
    fields = {"temperature": 0.0} if rule == "greedy" else {"rule": rule, "top_k": 60}
    fields |= {"presence_penalty": 0.3, "prompt": [5, 6], "output": [7], "position": 9}
    rng = np.random.default_rng(16)
    draft = np.zeros((3, VOCAB), np.float32)
    draft[:, :60] = rng.random((3, 60))
    likely = np.argsort(-logits, axis=1, kind="stable")
    accepted = 0
    for seed in range(6):
        choice = [int(likely[parent + 1, rng.integers(2)]) for parent in tree]
        given = (logits, choice, tree, prob_rows, draft)
        found = [one.verify(*given, seed=seed, in_place=True, **fields) for one in both]
        assert found[0] == found[1] == both[1].verify(*given, seed=seed, **fields)
        accepted += len(found[0][0])
    assert accepted > 0


def test_ranks(both):
    (row,) = logits_of(1, seed=2)
    for count, fields in ((1, {}), (64, {}), (9, {"top_k": 5}), (7, {"temperature": 0.6})):
        found = [one.rank_tokens(row, count, **fields) for one in both]
        assert found[0] == found[1]
