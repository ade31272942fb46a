"""Figures of a request from the decode loop's counters."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_native.stats import stats_from

RAW: dict[str, Any] = {
    "prompt_tokens": 7,
    "reused_tokens": 3,
    "generated": 21,
    "rounds": 6,
    "drafted": 20,
    "accepted": 15,
    "drafted_at": [5, 5, 5, 5, 0],
    "accepted_at": [5, 4, 3, 3, 0],
    "draft_lengths": [1, 0, 0, 0, 5],
    "prompt_ms": 11.0,
    "draft_prompt_ms": 4.0,
    "decode_ms": 110.0,
    "draft_ms": 1.0,
    "verify_ms": 100.0,
    "first_round_tokens": 1,
    "first_round_ms": 10.0,
    "plain_round_ms": [10.0, 9.0, 50.0],
    "plain_ms_estimate": 12.5,
}


def test_speeds_and_shares() -> None:
    stats = stats_from(RAW, seed=4)
    assert stats.tokens_per_second == pytest.approx(200.0)  # 20 tokens in 100 ms
    assert stats.plain_tokens_per_second == pytest.approx(100.0)  # the median pass: 10 ms
    assert stats.speedup == pytest.approx(2.0)
    assert stats.acceptance_rate == pytest.approx(0.75)
    assert stats.accepted_per_position == [1.0, 0.8, 0.6, 0.6]
    assert stats.draft_lengths == {0: 1, 4: 5}
    assert stats.tokens_per_round == pytest.approx(3.5)
    assert stats.seed == 4


def test_plain_decoding_has_a_speedup_of_one() -> None:
    stats = stats_from({**RAW, "drafted": 0, "accepted": 0}, seed=0)
    assert stats.speedup == pytest.approx(1.0)
    assert stats.acceptance_rate == 0.0


def test_the_controllers_estimate_stands_in_where_no_round_was_plain() -> None:
    stats = stats_from({**RAW, "plain_round_ms": []}, seed=0)
    assert stats.plain_tokens_per_second == pytest.approx(80.0)
    assert stats.speedup == pytest.approx(2.5)


def test_what_cannot_be_told_is_none() -> None:
    short = {**RAW, "generated": 1, "decode_ms": 10.0, "plain_round_ms": []}
    short["plain_ms_estimate"] = 0.0
    stats = stats_from(short, seed=0)
    assert (stats.tokens_per_second, stats.plain_tokens_per_second, stats.speedup) == (None,) * 3
