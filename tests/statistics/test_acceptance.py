"""The texts that the acceptance rules write fit the target's distribution.

Every rule goes through ``p_value``: the one of the backends must fit at p > 1e-3, and rules with a
known fault must fail at p < 1e-6, which shows that the test can tell them apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specdec_native import _core
from support.backends import BACKENDS
from support.chi_square import fit_p_value, survival
from support.toy_rules import (
    DuplicatesDropped,
    NumpyRule,
    RatioWithoutDraft,
    ResidualNotUpdated,
    Rule,
    SharedCoin,
    SoftmaxOfResidual,
    StopsOnTheDrawnToken,
    ToyTask,
    WithReplacement,
)

TRIALS = 200_000
DRAWS = {"cuda_emu": 400}  # of a slow device, with one seed; the level of the test is the same

# Target and drafter peak at different tokens; token 4 of the draft is unlikely for the target.
TARGET = np.log(
    np.array(
        [
            [0.40, 0.25, 0.20, 0.10, 0.05],
            [0.05, 0.50, 0.05, 0.30, 0.10],
            [0.20, 0.20, 0.20, 0.20, 0.20],
            [0.02, 0.08, 0.60, 0.10, 0.20],
            [0.30, 0.05, 0.05, 0.30, 0.30],
        ]
    )
).astype(np.float32)
DRAFT = np.array(
    [
        [0.10, 0.15, 0.30, 0.15, 0.30],
        [0.40, 0.10, 0.30, 0.10, 0.10],
        [0.60, 0.10, 0.10, 0.10, 0.10],
        [0.20, 0.20, 0.20, 0.20, 0.20],
        [0.05, 0.05, 0.80, 0.05, 0.05],
    ],
    dtype=np.float32,
)
# Without tokens 0 and 1, which top-k 2 keeps after token 0: nothing drafted there can stand.
DISJOINT = np.tile(np.array([0.0, 0.0, 0.5, 0.3, 0.2], np.float32), (5, 1))

TREE = (-1, -1, 0, 0, 1, 2)
FILTERS = {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "min_p": 0.08}
# Typical-p drops the likeliest token after token 1; the bias makes token 4 likely everywhere.
CHAIN = {"temperature": 1.2, "typical_p": 0.7, "min_p": 0.2, "logit_bias": {4: 1.0, 1: -0.5}}


def task(name, parents, sampled, **options) -> ToyTask:
    draft = options.pop("draft", DRAFT)
    return ToyTask(name, TARGET, draft, parents, sampled, **options)


TASKS = {
    t.name: t
    for t in [
        task("no proposal", (), (), length=2),
        task("one sampled", (-1,), (True,)),
        task("one deterministic", (-1,), (False,)),
        task("filters, sampled", (-1, 0), (True, True), length=2, filters=FILTERS),
        task("filters, deterministic", (-1, 0), (False, False), length=2, filters=FILTERS),
        task("high temperature", (-1, 0), (True, True), length=2, filters={"temperature": 2.5}),
        task("chain, sampled", (-1, 0), (True, True), length=2),
        task("chain, deterministic", (-1, 0, 1), (False, False, False), length=2),
        task("chain, mixed", (-1, 0, 1), (True, False, True), length=3),
        task("siblings, sampled", (-1, -1, -1), (True, True, True)),
        task("siblings, deterministic", (-1, -1), (False, False)),
        task("siblings, mixed", (-1, -1, -1), (False, True, True)),
        task("all tokens as siblings", (-1,) * 5, (True,) * 5),
        task("tree, sampled", TREE, (True,) * 6, length=2),
        task("tree, filters", TREE, (True,) * 6, length=2, filters=FILTERS),
        task("tree, whole chain", TREE, (True,) * 6, length=2, filters=CHAIN),
        task("tree, mixed", TREE, (True, False, False, True, True, True), length=3),
        task("equal", (-1, 0), (True, True), length=2, draft=np.exp(TARGET)),
        task("removed tokens", (-1, -1, 0), (True,) * 3, draft=DISJOINT, filters={"top_k": 2}),
    ]
}


def p_value(rule: Rule, toy: ToyTask, seed: int, trials: int = TRIALS) -> float:
    return fit_p_value(rule(toy, seed, trials), toy.text_probabilities())


def trials_on(backend: str, count: int = TRIALS) -> int:
    return min(count, DRAWS.get(backend, count))


def run_backend(name, toy, seed, trials, rule="rejection"):
    backend = _core.testing.Backend(name, threads=1)
    counts, rounds, accepted = backend.verify_many(
        toy.target_logits,
        toy.draft_weights,
        toy.parents,
        toy.sampled,
        length=toy.length,
        trials=trials,
        seed=seed,
        # Each task has positions of its own, so that one unlucky seed is not unlucky everywhere.
        position=sum(toy.name.encode()) << 40,
        rule=rule,
        **toy.filters,
    )
    return counts, rounds, accepted


def backend_rule(name: str) -> Rule:
    return lambda toy, seed, trials: run_backend(name, toy, seed, trials)[0]


@pytest.mark.parametrize(
    ("backend", "name", "seed"),
    [(b, n, s) for b in BACKENDS for n in TASKS for s in ([1] if b in DRAWS else range(1, 6))],
)
def test_rejection_fits_the_target(backend, name, seed):
    """R1, R2: the residual is renormalised, the draft's probability is the one drawn from."""
    assert p_value(backend_rule(backend), TASKS[name], seed, trials_on(backend)) > 1e-3


@pytest.mark.parametrize("name", TASKS)
def test_numpy_rule_fits_the_target(name):
    assert p_value(NumpyRule(), TASKS[name], seed=1) > 1e-3


def test_siblings_drawn_with_replacement_fit_the_target():
    """The right form of what `DuplicatesDropped` gets wrong."""
    assert p_value(WithReplacement(), TASKS["siblings, sampled"], seed=1) > 1e-3


WRONG = [
    (StopsOnTheDrawnToken(), "one sampled"),
    (StopsOnTheDrawnToken(), "chain, sampled"),
    (DuplicatesDropped(), "siblings, sampled"),
    (DuplicatesDropped(), "tree, sampled"),
    (SoftmaxOfResidual(), "one sampled"),
    (SoftmaxOfResidual(), "one deterministic"),
    (SoftmaxOfResidual(), "filters, sampled"),
    (SoftmaxOfResidual(), "tree, sampled"),
    (RatioWithoutDraft(), "one sampled"),
    (RatioWithoutDraft(), "chain, sampled"),
    (RatioWithoutDraft(), "tree, sampled"),
    (SharedCoin(), "siblings, sampled"),
    (SharedCoin(), "siblings, deterministic"),
    (SharedCoin(), "siblings, mixed"),
    (ResidualNotUpdated(), "one sampled"),
    (ResidualNotUpdated(), "siblings, sampled"),
    (ResidualNotUpdated(), "siblings, deterministic"),
]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("rule", "name"), WRONG, ids=[f"{type(rule).__name__}-{name}" for rule, name in WRONG]
)
def test_wrong_rules_are_found_out(rule, name, seed):
    """R1, R2 as they were shipped elsewhere, and two more."""
    assert p_value(rule, TASKS[name], seed) < 1e-6


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_coupled_writes_the_same_texts_as_no_proposal(backend, name):
    toy = TASKS[name]
    plain = replace(toy, parents=(), sampled=())
    trials = trials_on(backend, 20_000)
    counts, rounds, accepted = run_backend(backend, toy, 7, trials, rule="coupled")
    plain_counts, plain_rounds, _ = run_backend(backend, plain, 7, trials, rule="coupled")
    assert np.array_equal(counts, plain_counts)
    assert plain_rounds == trials * toy.length
    assert rounds <= plain_rounds
    assert (accepted > 0) == (bool(toy.parents) and name != "removed tokens")


@pytest.mark.parametrize("backend", BACKENDS)
def test_coupled_fits_the_target(backend):
    toy = TASKS["tree, filters"]
    counts, _, _ = run_backend(backend, toy, 1, trials_on(backend), rule="coupled")
    assert fit_p_value(counts, toy.text_probabilities()) > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_distributions_are_always_accepted(backend):
    """The draft is the target's own filtered distribution, so no coin can reject it."""
    ref = _core.testing.Backend("ref")
    draft = np.stack([ref.distribution(row, temperature=0.7, top_k=4)[0] for row in TARGET])
    toy = task(
        "equal", (-1, 0), (True, True), draft=draft, filters={"temperature": 0.7, "top_k": 4}
    )
    _, rounds, accepted = run_backend(backend, toy, 3, trials_on(backend, 50_000))
    assert accepted == 2 * rounds


@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_that_the_filters_remove_never_come_out(backend):
    toy = TASKS["removed tokens"]
    counts, _, accepted = run_backend(backend, toy, 5, trials_on(backend, 50_000))
    assert np.all(counts[[2, 3, 4]] == 0)
    assert accepted == 0


# Upper 5 % points and others from published tables; two degrees of freedom are exp(-x / 2).
@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [
        (3.841458820694124, 1, 0.05),
        (5.991464547107979, 2, 0.05),
        (18.307038053275146, 10, 0.05),
        (124.34211340400407, 100, 0.05),
        (10.827566170662733, 1, 0.001),
        (0.0, 4, 1.0),
        (1.0, 2, math.exp(-0.5)),
        (80.0, 2, math.exp(-40.0)),
        (3.0, 3, 0.3916251762710877),
    ],
)
def test_chi_square_survival(statistic, degrees, expected):
    assert survival(statistic, degrees) == pytest.approx(expected, rel=1e-10)


def test_fit_p_value_refuses_impossible_outcomes():
    assert fit_p_value(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0])) == 0.0
    assert fit_p_value(np.array([50, 50, 0]), np.array([0.5, 0.5, 0.0])) == 1.0
