"""What a request did, and how long it took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Stats"]


@dataclass(frozen=True)
class Stats:
    """Counts and times of one request.

    Attributes:
        seed: The seed that the request used, given or random.
        prompt_tokens: Tokens of the prompt.
        reused_tokens: Of these, tokens whose cache rows were still there from the text before.
        generated_tokens: Tokens of the output.
        rounds: Verify passes.
        drafted: Tokens proposed by drafters.
        accepted: Of these, tokens that stood.
        acceptance_rate: ``accepted / drafted``; 0 where nothing was drafted.
        accepted_per_position: For each place in a proposal, the share of the proposed tokens that
            stood.
        tokens_per_round: Mean tokens that a round brought.
        draft_lengths: Rounds by the number of tokens drafted in them.
        prompt_ms: Prefill of the target and the drafters, milliseconds.
        draft_prompt_ms: The drafters' share of `prompt_ms`.
        decode_ms: All rounds.
        draft_ms: Proposing, part of `decode_ms`; where drafted tokens stay on a device, by its
            clock.
        verify_ms: Verify passes and acceptance, part of `decode_ms`.
        tokens_per_second: Tokens after the first round by the time after it; None for one round.
        plain_tokens_per_second: Estimate of plain decoding, from the median of this request's own
            one-token passes, or else from what the controller remembers of earlier ones; None
            where there were none.
        speedup: ``tokens_per_second / plain_tokens_per_second``, or None; 1 where nothing was
            drafted.
    """

    seed: int
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_rate: float = 0.0
    accepted_per_position: list[float] = field(default_factory=list)
    tokens_per_round: float = 0.0
    draft_lengths: dict[int, int] = field(default_factory=dict)
    prompt_ms: float = 0.0
    draft_prompt_ms: float = 0.0
    decode_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    tokens_per_second: float | None = None
    plain_tokens_per_second: float | None = None
    speedup: float | None = None


def stats_from(raw: Mapping[str, Any], seed: int) -> Stats:
    """Stats from the decode loop's counters (`_core.Generator.stats`)."""
    later_tokens = raw["generated"] - raw["first_round_tokens"]
    later_ms = raw["decode_ms"] - raw["first_round_ms"]
    speed = 1000.0 * later_tokens / later_ms if later_tokens > 0 and later_ms > 0 else None
    plain_rounds = raw["plain_round_ms"]
    plain_ms = statistics.median(plain_rounds) if plain_rounds else raw["plain_ms_estimate"]
    plain = 1000.0 / plain_ms if plain_ms > 0.0 else None
    if not raw["drafted"]:
        plain = speed  # that was plain decoding
    shares = [
        accepted / drafted
        for accepted, drafted in zip(raw["accepted_at"], raw["drafted_at"], strict=True)
        if drafted
    ]
    return Stats(
        seed=seed,
        prompt_tokens=raw["prompt_tokens"],
        reused_tokens=raw["reused_tokens"],
        generated_tokens=raw["generated"],
        rounds=raw["rounds"],
        drafted=raw["drafted"],
        accepted=raw["accepted"],
        acceptance_rate=raw["accepted"] / raw["drafted"] if raw["drafted"] else 0.0,
        accepted_per_position=shares,
        tokens_per_round=raw["generated"] / raw["rounds"] if raw["rounds"] else 0.0,
        draft_lengths={m: n for m, n in enumerate(raw["draft_lengths"]) if n},
        prompt_ms=raw["prompt_ms"],
        draft_prompt_ms=raw["draft_prompt_ms"],
        decode_ms=raw["decode_ms"],
        draft_ms=raw["draft_ms"],
        verify_ms=raw["verify_ms"],
        tokens_per_second=speed,
        plain_tokens_per_second=plain,
        speedup=speed / plain if speed and plain else None,
    )
