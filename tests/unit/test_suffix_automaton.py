"""The suffix automaton against brute force on small alphabets, where everything repeats."""

from __future__ import annotations

import numpy as np
import pytest

from specdec_native import _core


def occurrences(text: list[int], part: list[int]) -> list[int]:
    """Where `part` ends in `text`."""
    n = len(part)
    return [end for end in range(n, len(text) + 1) if text[end - n : end] == part]


def continuations(text: list[int], context: list[int]) -> dict[int, tuple[int, int]]:
    """Token -> (how often it followed the context, where it did last)."""
    found: dict[int, tuple[int, int]] = {}
    for end in occurrences(text, context):
        if end < len(text):
            count, _ = found.get(text[end], (0, 0))
            found[text[end]] = (count + 1, end)
    return found


def longest_repeated_suffix(text: list[int], most: int) -> int:
    for length in range(min(most, len(text) - 1), 0, -1):
        if len(occurrences(text, text[-length:])) > 1:
            return length
    return 0


def expected(text: list[int], context: list[int]) -> tuple[list[tuple[int, int]], int]:
    """The three most frequent continuations, ties by the latest, and how many there are."""
    found = continuations(text, context)
    order = sorted(found, key=lambda token: (-found[token][0], -found[token][1]))
    return [(t, found[t][0]) for t in order[:3]], sum(count for count, _ in found.values())


@pytest.mark.parametrize("alphabet", [1, 2, 3, 7])
@pytest.mark.parametrize("max_match", [1, 3, 12])
def test_counts_equal_brute_force_after_every_token(alphabet: int, max_match: int) -> None:
    rng = np.random.default_rng(alphabet * 100 + max_match)
    automaton = _core.testing.SuffixAutomaton(max_match)
    text: list[int] = []
    for _ in range(70):
        if len(text) > 10 and rng.random() < 0.1:  # a copy, for long matches
            start = int(rng.integers(0, len(text) - 5))
            new = text[start : start + int(rng.integers(2, 9))]
        else:
            new = [int(rng.integers(0, alphabet))]
        for token in new:
            automaton.append(token)
            text.append(token)
        length, ranked, total = automaton.repeated_suffix()
        assert length == longest_repeated_suffix(text, max_match)
        context = text[len(text) - length :] if length else []
        assert (ranked, total) == expected(text, context)
        for _ in range(3):
            start = int(rng.integers(0, len(text)))
            part = text[start : start + int(rng.integers(1, max_match + 2))]
            assert automaton.occurrences(part) == len(occurrences(text, part))
            length, ranked, total = automaton.match(part)
            assert length == min(len(part), max_match)
            assert (ranked, total) == expected(text, part[len(part) - length :])


def test_another_text_is_matched_by_its_longest_suffix() -> None:
    rng = np.random.default_rng(5)
    text = [int(t) for t in rng.integers(0, 4, size=200)]
    automaton = _core.testing.SuffixAutomaton(6)
    for token in text:
        automaton.append(token)
    for _ in range(300):
        other = [int(t) for t in rng.integers(0, 5, size=rng.integers(1, 12))]
        length = max(n for n in range(7) if n == 0 or occurrences(text, other[-n:]))
        assert automaton.match(other)[0] == min(length, len(other))
        # The next shorter match is a suffix with more occurrences.
        shorter = automaton.shorter_match(other)[0]
        if length > 0:
            assert shorter < length
        if shorter > 0:
            assert len(occurrences(text, other[-shorter:])) > len(
                occurrences(text, other[-length:])
            )


@pytest.mark.parametrize("kind", ["one token", "period", "copies", "random"])
def test_long_texts_stay_small(kind: str) -> None:
    """Amortised constant work: what is kept grows by the token, however the text repeats."""
    rng = np.random.default_rng(1)
    block = [int(t) for t in rng.integers(0, 49152, size=500)]
    text = {
        "one token": [7] * 20000,
        "period": [1, 2, 3, 4, 5] * 4000,
        "copies": block * 40,
        "random": [int(t) for t in rng.integers(0, 49152, size=20000)],
    }[kind]
    automaton = _core.testing.SuffixAutomaton(32)
    for token in text:
        automaton.append(token)
    assert automaton.bytes < 400 * len(text)
    last = text[-10:]
    assert automaton.occurrences(last) == len(occurrences(text, last))
