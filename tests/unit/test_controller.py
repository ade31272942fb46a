"""Never slower than plain decoding, and close to the best setting, on simulated texts and costs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specdec_native import _core
from support.drafting_simulator import CURVES, Simulation, Trace, best_fixed_time, mixture
from support.drafting_traces import KINDS, noisy_clock

SEEDS = 9  # of each kind, cost curve and clock: 1080 traces


def make_trace(kind: str, curve: str, noisy: bool, seed: int) -> Trace:
    rng = np.random.default_rng([seed, len(kind), len(curve)])
    drafters = KINDS[kind](rng, int(rng.integers(256, 500)))
    # Where attention counts, a pass of one row at depth 1000 costs a tenth more.
    slope = 1e-4 if len(kind + curve) % 2 else 0.0
    clock: Callable[[], float] = noisy_clock(rng) if noisy else lambda: 1.0
    return Trace(drafters, CURVES[curve], int(rng.integers(50, 2000)), slope, clock)


@functools.cache
def outcomes(kind: str) -> list[tuple[tuple[object, ...], float, float]]:
    """(which trace, speed by that of plain decoding, speed by that of the best setting).

    Of a controller that knows nothing and of one that has seen the traces before.
    """
    found = []
    for curve in CURVES:
        for noisy in (False, True):
            seasoned = Simulation()
            for seed in range(SEEDS):
                trace = make_trace(kind, curve, noisy, seed)
                plain, best = trace.plain_time(), best_fixed_time(trace)
                for simulation in (Simulation(), seasoned):
                    taken = simulation.time(trace)
                    which = (curve, noisy, seed, simulation is seasoned)
                    found.append((which, plain / taken, best / taken))
    return found


def mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


@pytest.mark.parametrize("kind", KINDS)
def test_never_slower_than_plain_decoding(kind: str) -> None:
    for which, by_plain, _ in outcomes(kind):
        assert by_plain >= 0.97, which
    # The best setting of each trace is chosen with hindsight.
    assert mean([by_best for _, _, by_best in outcomes(kind)]) >= 0.90


@pytest.mark.parametrize("kind", KINDS)
def test_never_slower_on_a_mixture_of_experts(kind: str) -> None:
    """Where the second row costs nearly as much as the first, and what was expected is too much."""
    facts = (0.7, 128, 8)
    for share in (facts[0], 0.3):
        seasoned = Simulation(_core.testing.Controller(*facts))
        for seed in range(SEEDS):
            trace = make_trace(kind, "flat", seed % 2 == 0, seed)
            trace = replace(trace, curve=mixture(share, *facts[1:]))
            for simulation in (Simulation(_core.testing.Controller(*facts)), seasoned):
                assert trace.plain_time() / simulation.time(trace) >= 0.97, (share, seed)


def test_near_the_best_fixed_settings_in_the_mean() -> None:
    assert mean([by_best for kind in KINDS for _, _, by_best in outcomes(kind)]) >= 0.95


# --- Single decisions ----------------------------------------------------------------------------


def controller_with(max_draft: int = 8, *, runs_model: bool = False) -> _core.testing.Controller:
    controller = _core.testing.Controller()
    controller.begin([(0, max_draft, runs_model)])
    return controller


def plain_rounds(controller: _core.testing.Controller, count: int, ms: float = 2.0) -> None:
    for _ in range(count):
        controller.observe(1, 100, ms, False, 1, [], False)


def test_nothing_is_drafted_before_a_plain_pass_was_measured() -> None:
    controller = controller_with()
    offer = [(0, [-1, 0, 1], [0.99, 0.99, 0.99])]
    for _ in range(4):
        assert controller.choose(100, 50, offer, [True], [1])[0] == -1
        plain_rounds(controller, 1)
    assert controller.plain_ms(100) == 2.0
    drafter, length, nodes, _ = controller.choose(100, 50, offer, [True], [1])
    # Nothing is known of wider passes: a short one, which the first credit can bear.
    assert (drafter, nodes) == (0, [0, 1][:length])


def test_what_was_learned_outlives_a_request_but_winnings_do_not() -> None:
    controller = controller_with()
    plain_rounds(controller, 4)
    for _ in range(30):
        stood = [(depth, 0.9, True) for depth in range(8)]
        controller.observe(9, 100, 2.6, False, 9, [(0, 0.01, 8, 1, stood)], False)
    assert controller.credit() > 5.0
    assert controller.passes(9, 100) == pytest.approx(1.3)
    controller.begin([(0, 8, False)])
    assert controller.credit() == 1.0
    offer = [(0, list(range(-1, 7)), [0.9] * 8)]
    plain_rounds(controller, 1)
    assert controller.choose(100, 50, offer, [True], [1])[:2] == (0, 8)
    # Another drafter does not inherit it, and the room is kept to.
    assert controller.choose(100, 3, offer, [True], [1])[1] <= 3
    controller.begin([(7, 8, False)])
    assert controller.choose(100, 50, offer, [True], [1])[1] < 8


def test_a_part_of_a_tree_is_a_tree() -> None:
    controller = controller_with(24)
    plain_rounds(controller, 4)
    for _ in range(10):
        controller.observe(13, 100, 2.5, False, 5, [], False)
    rng = np.random.default_rng(3)
    cut = 0
    for _ in range(200):
        count = int(rng.integers(1, 25))
        parents = [int(rng.integers(-1, i)) if i else -1 for i in range(count)]
        said = [float(c) for c in rng.random(count)]
        drafter, length, nodes, _ = controller.choose(100, 50, [(0, parents, said)], [True], [1])
        if drafter < 0:
            continue
        assert nodes == sorted(set(nodes))
        assert len(nodes) == length
        assert all(parents[node] == -1 or parents[node] in nodes for node in nodes)
        cut += length < count
    assert cut > 50


def test_a_request_that_only_loses_stops_within_its_credit() -> None:
    """By the account alone: nothing is told of the drafts, so they go on looking good."""
    controller = controller_with()
    plain_rounds(controller, 4)
    lost, rounds = 0.0, 300
    for _ in range(rounds):
        chosen = controller.choose(100, 50, [(0, [-1], [0.99])], [True], [1])
        if chosen[0] < 0:
            plain_rounds(controller, 1)
            continue
        lost += 0.4
        controller.observe(2, 100, 2.8, False, 1, [(0, 0.01, 1, 1, [])], chosen[3])
    assert 1.0 < lost <= 1.5 + 0.015 * (rounds + 4) + 0.5


def test_costs_grow_with_depth() -> None:
    controller = controller_with()
    for depth in list(range(0, 4000, 100)) * 2:
        controller.observe(1, depth, 2.0 + 0.0005 * depth, False, 1, [], False)
    assert controller.plain_ms(0) == pytest.approx(2.0, rel=0.03)
    assert controller.plain_ms(4000) == pytest.approx(4.0, rel=0.03)
    for _ in range(7):
        controller.observe(5, 0, 2.6, False, 2, [], False)
    # At depth 4000: (2.6 + 5 * 2) / 4.
    assert controller.passes(5, 0) == pytest.approx(1.3, rel=0.03)
    assert controller.passes(5, 4000) == pytest.approx(12.6 / 4.0, rel=0.05)


def test_one_disturbed_measurement_moves_nothing() -> None:
    controller = controller_with()
    plain_rounds(controller, 4)
    plain_rounds(controller, 1, ms=200.0)
    assert controller.plain_ms(100) == 2.0
    controller.observe(3, 100, 300.0, False, 1, [], False)
    assert controller.passes(3, 100) < 3.0


def test_a_mixture_is_expected_to_read_more_experts() -> None:
    """Before any measurement: 16 rows of 8 of 128 experts read 64 % of them, 10 times one row's."""
    dense, mixture = _core.testing.Controller(), _core.testing.Controller(0.95, 128, 8)
    assert dense.passes(1, 0) == mixture.passes(1, 0) == 1.0
    read = 16 * (1 - (1 - 8 / 128) ** 16)
    assert mixture.passes(16, 0) == pytest.approx(1 + 0.95 * (read - 1))
    assert dense.passes(16, 0) == pytest.approx(1 + 0.57 * 15)
    # What was measured counts for more than what was expected.
    for _ in range(8):
        mixture.observe(1, 0, 10.0, False, 1, [], False)
        mixture.observe(16, 0, 30.0, False, 1, [], False)
    assert mixture.passes(16, 0) == pytest.approx(3.0, rel=0.1)
