"""Stop strings in text that arrives in pieces (R33)."""

from __future__ import annotations

import random
import time

import pytest

from specdec_native.text import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], int | None]:
    """What each push released (and flush at the end), and the index of the push that matched."""
    matcher = StopMatcher(stops)
    released = []
    for index, piece in enumerate(pieces):
        text, matched = matcher.push(piece)
        released.append(text)
        if matched:
            return released, index
    return [*released, matcher.flush()], None


def test_no_start_of_a_stop_string_leaks() -> None:
    assert run(["DEFGHIJ"], ["abcDEF", "G", "HI", "Jxyz"]) == (["abc", "", "", ""], 3)


def test_held_text_is_released_at_the_end() -> None:
    assert run(["ab"], ["xa"]) == (["x", "a"], None)


def test_stop_inside_one_piece() -> None:
    assert run(["ab"], ["xxabyy"]) == (["xx"], 0)


def test_only_a_possible_prefix_is_held() -> None:
    assert run(["aab"], ["aaaa", "c"]) == (["aa", "aac", ""], None)
    assert run(["\n\n"], ["a\n", "b\n", "\n"]) == (["a", "\nb", ""], 2)


def test_the_first_complete_match_wins_and_of_several_the_longest() -> None:
    assert run(["abcd", "bc"], ["xabcd"]) == (["xa"], 0)
    assert run(["b", "aab", "ab"], ["xaab"]) == (["x"], 0)


def test_no_stops_pass_everything() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_after_a_match_nothing_more_comes() -> None:
    matcher = StopMatcher(["a"])
    assert matcher.push("xay") == ("x", True)
    assert matcher.matched == "a"
    assert matcher.push("z") == ("", True)
    assert matcher.flush() == ""


@pytest.mark.parametrize("stops", [[""], ["a", ""]])
def test_empty_stop_strings_are_an_error(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="is empty"):
        StopMatcher(stops)


def test_wrong_types_are_an_error() -> None:
    with pytest.raises(TypeError, match="list of strings"):
        StopMatcher("stop")
    with pytest.raises(TypeError, match=r"stops\[0\]"):
        StopMatcher([3])  # type: ignore[list-item]


def test_against_a_plain_search() -> None:
    draw = random.Random(4)
    for _ in range(3000):
        stops = ["".join(draw.choices("ab", k=draw.randrange(1, 5))) for _ in range(3)]
        text = "".join(draw.choices("abc", k=draw.randrange(14)))
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        expected = text if not ends else text[: min(ends)[0] + min(ends)[1]]
        pieces, rest = [], text
        while rest:
            size = draw.randrange(1, 5)
            pieces.append(rest[:size])
            rest = rest[size:]
        released, index = run(stops, pieces)
        assert "".join(released) == expected
        if ends:
            # The piece in which the match became complete.
            assert index is not None
            assert len("".join(pieces[:index])) < min(ends)[0] <= len("".join(pieces[: index + 1]))
        # Nothing is held that could not become a stop string.
        for count in range(len(pieces) if index is None else index):
            seen = "".join(pieces[: count + 1])
            held = seen[len("".join(released[: count + 1])) :]
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_long_repeats_take_linear_time() -> None:
    start = time.perf_counter()
    released, _ = run(["a" * 20_000 + "b"], ["a"] * 100_000)
    assert sum(map(len, released)) == 100_000
    assert time.perf_counter() - start < 10
