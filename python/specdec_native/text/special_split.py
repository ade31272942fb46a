"""Finds the special tokens in a text, before the rest is cut into words."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SpecialSplitter"]


class SpecialSplitter:
    """Finds special tokens: leftmost first, and of several at one place the longest.

    Time is linear in the text: a pattern of short beginnings finds the candidates, and looking a
    candidate up in a table does the rest.
    """

    _HEAD = 3

    def __init__(self, always: Mapping[str, int], control: Mapping[str, int]) -> None:
        """Prepares the tables.

        Args:
            always: Text -> id of tokens found in any text.
            control: Text -> id of tokens found only where the caller allows it.
        """
        self._always = {text: one for text, one in always.items() if text}
        self._all = {**{text: one for text, one in control.items() if text}, **self._always}
        self._always_heads = self._heads(self._always)
        self._all_heads = self._heads(self._all)
        self._always_pattern = self._pattern(self._always_heads)
        self._all_pattern = self._pattern(self._all_heads)

    def find(self, text: str, barred: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yields (start, end, id) of each special token in `text`.

        Args:
            text: The whole text.
            barred: Ascending, disjoint [start, end) ranges that no control token may touch.
        """
        everywhere = len(barred) == 1 and barred[0][0] == 0 and barred[0][1] >= len(text)
        pattern = self._always_pattern if everywhere else self._all_pattern
        if pattern is None:
            return
        starts = [start for start, _ in barred]
        position = 0
        while True:
            found = pattern.search(text, position)
            if found is None:
                return
            start = found.start()
            hit = self._longest(text, start, found.group(), barred, starts, everywhere)
            if hit is None:
                position = start + 1
            else:
                end, token = hit
                yield start, end, token
                position = end

    def _longest(
        self,
        text: str,
        start: int,
        head: str,
        barred: Sequence[tuple[int, int]],
        starts: Sequence[int],
        everywhere: bool,
    ) -> tuple[int, int] | None:
        """The end and id of the longest token allowed at `start`."""
        lengths = (self._always_heads if everywhere else self._all_heads)[head]
        for length in lengths:
            candidate = text[start : start + length]
            token = self._always.get(candidate)
            if token is not None:
                return start + length, token
            if not everywhere and candidate in self._all:
                # The last barred range that starts before the end is the one that may touch.
                last = bisect_left(starts, start + length) - 1
                if last < 0 or barred[last][1] <= start:
                    return start + length, self._all[candidate]
        return None

    @classmethod
    def _heads(cls, tokens: Mapping[str, int]) -> dict[str, list[int]]:
        """Beginning of a token -> the lengths of all tokens that can start with it."""
        heads = {text[: cls._HEAD] for text in tokens}
        lengths: dict[str, set[int]] = {head: set() for head in heads}
        for text in tokens:
            # A short token is found under every longer beginning that continues it, too.
            for head in heads if len(text) < cls._HEAD else (text[: cls._HEAD],):
                if head.startswith(text[: cls._HEAD]):
                    lengths[head].add(len(text))
        return {head: sorted(found, reverse=True) for head, found in lengths.items()}

    @staticmethod
    def _pattern(heads: Mapping[str, object]) -> re.Pattern[str] | None:
        if not heads:
            return None
        longest_first = sorted(heads, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))
