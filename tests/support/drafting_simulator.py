"""A simulated decode loop: the engine's controller on made-up texts, costs and clocks.

A trace says, for each position of a text, whether a drafter that continues the right text would
guess it. Time is counted in plain passes, by the true costs; the controller sees the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specdec_native import _core

Curve = Callable[[int], float]
PLAIN_MS = 3.0
PROPOSE_MS = 0.01  # of a lookup

FIXED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def linear(of_eight: float) -> Curve:
    """A pass of w rows in passes of one; a pass of eight costs `of_eight`."""
    return lambda width: 1.0 + (of_eight - 1.0) * (width - 1) / 7.0


def recorded(points: dict[int, float]) -> Curve:
    """Straight lines through measured widths."""
    widths, ratios = list(points), list(points.values())
    slope = (ratios[-1] - ratios[-2]) / (widths[-1] - widths[-2])

    def curve(width: int) -> float:
        beyond = max(0, width - widths[-1]) * slope
        return float(np.interp(width, widths, ratios)) + beyond

    return curve


def mixture(share: float, experts: int, used: int) -> Curve:
    """Rows that choose experts independently; `share` of the bytes of one row are its experts'."""
    return lambda w: 1.0 + share * (experts / used * (1.0 - (1.0 - used / experts) ** w) - 1.0)


CURVES: dict[str, Curve] = {
    "flat": linear(1.3),
    "steep": linear(3.0),
    "slow engine": linear(5.0),
    # `specdec bench passes` on 2 cores with AVX-512: Q4_1, and one where wide passes have a cliff.
    "recorded": recorded({1: 1.0, 2: 1.07, 4: 1.2, 8: 1.7, 16: 2.5, 32: 4.6}),
    "cliff": recorded({1: 1.0, 8: 1.3, 9: 2.4, 16: 2.6, 17: 3.9, 32: 4.5}),
}


@dataclass(frozen=True)
class SimulatedDrafter:
    """What a drafter would guess.

    Attributes:
        stands: [tokens] whether its guess at this position is right, the text before it being so.
        offers: [tokens] whether a lookup has anything to propose here.
        confidences: [tokens] what a lookup says of a first guess; None: it says nothing.
        step: Cost of a drafted token in plain passes; 0: a lookup.
        max_draft: Most tokens of a proposal.
    """

    stands: NDArray[np.bool_]
    offers: NDArray[np.bool_]
    confidences: NDArray[np.float64] | None = None
    step: float = 0.0
    max_draft: int = 24

    def runs(self) -> NDArray[np.int64]:
        """[tokens + 1] how many guesses in a row are right from here on."""
        out = np.zeros(len(self.stands) + 1, dtype=np.int64)
        for i in range(len(self.stands) - 1, -1, -1):
            out[i] = out[i + 1] + 1 if self.stands[i] else 0
        return out


@dataclass(frozen=True)
class Trace:
    """One request."""

    drafters: Sequence[SimulatedDrafter]
    curve: Curve
    first_depth: int = 100
    depth_slope: float = 0.0  # plain passes per row and cached position
    noise: Callable[[], float] = field(default=lambda: 1.0)

    @property
    def tokens(self) -> int:
        """Of the output."""
        return len(self.drafters[0].stands)

    def pass_cost(self, width: int, at: int) -> float:
        """True cost of a verify pass, in plain passes at depth 0."""
        return self.curve(width) + self.depth_slope * width * (self.first_depth + at)

    def plain_time(self) -> float:
        """Time of plain decoding."""
        return sum(self.pass_cost(1, at) for at in range(self.tokens))


def fixed_time(trace: Trace, drafter: int, length: int) -> float:
    """Time with one drafter that always drafts `length` tokens where it can."""
    one = trace.drafters[drafter]
    runs = one.runs()
    at, time = 0, 0.0
    while at < trace.tokens:
        count = min(length, one.max_draft, trace.tokens - at) if one.offers[at] else 0
        time += trace.pass_cost(1 + count, at) + count * one.step
        at += min(int(runs[at]), count) + 1
    return time


def best_fixed_time(trace: Trace) -> float:
    """The best of plain decoding and all fixed settings."""
    times = [trace.plain_time()]
    for index in range(len(trace.drafters)):
        times += [fixed_time(trace, index, length) for length in FIXED_LENGTHS]
    return min(times)


@dataclass
class Simulation:
    """Runs traces, one after the other, on one controller."""

    controller: _core.testing.Controller = field(default_factory=_core.testing.Controller)

    def time(self, trace: Trace) -> float:
        """Time of a trace under the controller."""
        run = _Run(self.controller, trace)
        while run.at < trace.tokens:
            run.round()
        return run.time


class _Run:
    def __init__(self, controller: _core.testing.Controller, trace: Trace) -> None:
        self.controller, self.trace = controller, trace
        self.at, self.time = 0, 0.0
        self._runs = [one.runs().tolist() for one in trace.drafters]
        self._asked_at = [0] * len(trace.drafters)
        self._chains = [
            (list(range(-1, one.max_draft - 1)), _deeper(one)) for one in trace.drafters
        ]
        controller.begin(
            [(i, one.max_draft, one.step > 0.0) for i, one in enumerate(trace.drafters)]
        )

    def round(self) -> None:
        """One round: lookups offer, the controller chooses, outcomes are told."""
        trace, at = self.trace, self.at
        room = trace.tokens - at
        gaps = [max(1, at - asked) for asked in self._asked_at]
        offers, asked, cost = [], {}, 0.0
        ask_lookups = self.controller.asks_lookup()
        for i, one in enumerate(trace.drafters):
            if one.step > 0.0 or not ask_lookups:
                continue
            asked[i] = (PROPOSE_MS, 0)
            cost += PROPOSE_MS / PLAIN_MS
            if one.offers[at]:
                count = min(room, one.max_draft)
                parents, said = self._chains[i]
                asked[i] = (PROPOSE_MS, count)
                offers.append((i, parents[:count], said(at)[:count]))
        chosen, length, nodes, probe = self.controller.choose(
            trace.first_depth + at, room, offers, [True] * len(trace.drafters), gaps
        )
        count = 0
        if chosen >= 0:
            one = trace.drafters[chosen]
            count = length
            assert one.step > 0.0 or nodes == list(range(count))  # a chain is cut at its end
            if one.step > 0.0:
                # A pass over the gap costs less a token than steps do.
                draft = one.step * (count + max(0, gaps[chosen] - count) / 8.0)
                asked[chosen] = (draft * PLAIN_MS * trace.noise(), count)
                cost += draft
        stood = min(self._runs[chosen][at], count) if count else 0
        committed = min(stood + 1, room)
        pass_cost = trace.pass_cost(1 + count, at)
        self.time += cost + pass_cost
        outcomes = [
            (i, ms, proposed, gaps[i], self._nodes(i, at, proposed, committed))
            for i, (ms, proposed) in asked.items()
        ]
        for i in asked:
            self._asked_at[i] = at
        reading = pass_cost * PLAIN_MS * trace.noise()
        self.controller.observe(
            1 + count, trace.first_depth + at, reading, at == 0, committed, outcomes, probe
        )
        self.at += committed

    def _nodes(self, index: int, at: int, proposed: int, committed: int) -> list[tuple]:
        said = self._chains[index][1](at)
        right = self._runs[index][at]
        seen = min(proposed, committed, right + 1)
        return [(depth, said[depth], depth < right) for depth in range(seen)]


def _deeper(one: SimulatedDrafter) -> Callable[[int], list[float]]:
    """What is said of the nodes of a chain from a position on: ever longer matches."""
    if one.confidences is None:
        nothing = [-1.0] * one.max_draft
        return lambda at: nothing
    table = []
    for first in one.confidences:
        length = first / max(1e-6, 1.0 - first)  # the inverse of n / (n + 1)
        table.append([(length + j) / (length + j + 1.0) for j in range(one.max_draft)])
    return lambda at: table[at]
