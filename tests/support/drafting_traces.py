"""Kinds of texts for the drafting simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from support.drafting_simulator import SimulatedDrafter

Rng = np.random.Generator
Maker = Callable[[Rng, int], list[SimulatedDrafter]]


def switching(rng: Rng, tokens: int, inside: float, outside: float, run: float, gap: float):
    """(right guesses, whether inside a run): two levels of predictability that take turns."""
    state = bool(rng.random() < run / (run + gap))
    states = np.zeros(tokens, dtype=bool)
    for i in range(tokens):
        states[i] = state
        if rng.random() < 1.0 / (run if state else gap):
            state = not state
    stands = rng.random(tokens) < np.where(states, inside, outside)
    return stands, states


def match_confidences(rng: Rng, stands: NDArray[np.bool_]) -> NDArray[np.float64]:
    """N / (n + 1) for a match of n tokens: as many as were guessed in a row, and a few."""
    out = np.zeros(len(stands))
    length = 0
    for i, right in enumerate(stands):
        n = 2 + length + int(rng.integers(0, 3))
        out[i] = n / (n + 1.0)
        length = length + 1 if right else 0
    return out


def lookup(rng: Rng, stands: NDArray[np.bool_], share: float) -> SimulatedDrafter:
    """A lookup that has something to say at a share of the places where it would be wrong."""
    offers = stands | (rng.random(len(stands)) < share)
    return SimulatedDrafter(stands, offers, match_confidences(rng, stands))


def model(rng: Rng, tokens: int, rate: float, step: float) -> SimulatedDrafter:
    return SimulatedDrafter(
        rng.random(tokens) < rate, np.ones(tokens, dtype=bool), None, step, max_draft=8
    )


def prose(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    stands, _ = switching(rng, tokens, 0.6, 0.08, 3, 20)
    return [lookup(rng, stands, 0.35)]


def code(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    stands, _ = switching(rng, tokens, 0.92, 0.25, 10, 8)
    return [lookup(rng, stands, 0.5)]


def json_text(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    stands, _ = switching(rng, tokens, 0.97, 0.2, 7, 4)
    return [lookup(rng, stands, 0.5)]


def copying(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    stands, _ = switching(rng, tokens, 0.985, 0.5, 60, 3)
    return [lookup(rng, stands, 0.8)]


def random_tokens(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    return [lookup(rng, rng.random(tokens) < 0.002, 0.15)]


def always_wrong(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    """One that is sure of itself."""
    wrong = np.zeros(tokens, dtype=bool)
    return [SimulatedDrafter(wrong, ~wrong, np.full(tokens, 0.95))]


def wrong_model(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    return [model(rng, tokens, 0.02, 0.12)]


def dear_model(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    """As dear as the target."""
    return [model(rng, tokens, 0.8, 1.0)]


def good_model(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    return [model(rng, tokens, 0.8, 0.12)]


def worse_midway(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    rate = np.where(np.arange(tokens) < tokens // 2, 0.95, 0.03)
    return [lookup(rng, rng.random(tokens) < rate, 1.0)]


def better_midway(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    rate = np.where(np.arange(tokens) < tokens // 2, 0.03, 0.95)
    return [lookup(rng, rng.random(tokens) < rate, 1.0)]


def chained(rng: Rng, tokens: int) -> list[SimulatedDrafter]:
    """A lookup that is right in runs, before a model that is right most of the time."""
    return [*json_text(rng, tokens), model(rng, tokens, 0.7, 0.12)]


KINDS: dict[str, Maker] = {
    "prose": prose,
    "code": code,
    "json": json_text,
    "copying": copying,
    "random": random_tokens,
    "always wrong": always_wrong,
    "wrong model": wrong_model,
    "dear model": dear_model,
    "good model": good_model,
    "worse midway": worse_midway,
    "better midway": better_midway,
    "lookup and model": chained,
}


def noisy_clock(rng: Rng) -> Callable[[], float]:
    """Readings that scatter by an eighth; one in 30 is many times too long."""
    return lambda: float(np.exp(rng.normal(0.0, 0.125)) * (6.0 if rng.random() < 1 / 30 else 1.0))
