"""Finds stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class _Progress:
    """How far the text so far has got into one stop string (Knuth, Morris and Pratt)."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        # fallback[i]: length of the longest proper border of the first i characters.
        self._fallback = [0] * (len(stop) + 1)
        border = 0
        for index in range(1, len(stop)):
            while border and stop[index] != stop[border]:
                border = self._fallback[border]
            border += stop[index] == stop[border]
            self._fallback[index + 1] = border

    def advance(self, character: str) -> bool:
        """Takes one character in; True when it completes the stop string."""
        matched = self.matched
        while matched and self.stop[matched] != character:
            matched = self._fallback[matched]
        matched += self.stop[matched] == character
        self.matched = matched
        return matched == len(self.stop)


class StopMatcher:
    """Passes text on until a stop string is complete, and never a part of that string.

    It holds back the longest end of the text that could still become a stop string, and nothing
    more. The match is the one that is complete first, and of several complete at the same
    character the longest; so how the text was cut into pieces makes no difference.

    Push one token's text at a time, and the token whose push returns True completed the match.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepares to look for `stops`.

        Args:
            stops: The stop strings; none at all is allowed, and then all text passes.

        Raises:
            ValueError: A stop string is empty.
            TypeError: `stops` is one string, or holds something that is not a string.
        """
        if isinstance(stops, str):
            raise TypeError(f"stops must be a list of strings, got the string {stops!r}: use [...]")
        for index, stop in enumerate(stops):
            if not isinstance(stop, str):
                raise TypeError(f"stops[{index}] must be a string, got {stop!r}")
            if not stop:
                raise ValueError(f"stops[{index}] is empty; leave it out, it would match at once")
        self._progress = [_Progress(stop) for stop in dict.fromkeys(stops)]
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that was found, or None so far."""
        return self._matched

    def push(self, text: str) -> tuple[str, bool]:
        """Takes in a piece of text.

        Returns:
            The text that may be shown now, and whether a stop string is complete. After a match
            every push returns ``("", True)``.
        """
        if self._matched is not None:
            return "", True
        if not self._progress:
            return text, False
        window = self._held + text
        for index, character in enumerate(text, start=len(self._held)):
            complete = [one for one in self._progress if one.advance(character)]
            if complete:
                self._matched = max((one.stop for one in complete), key=len)
                self._held = ""
                return window[: index + 1 - len(self._matched)], True
        keep = max(one.matched for one in self._progress)
        cut = len(window) - keep
        self._held = window[cut:]
        return window[:cut], False

    def flush(self) -> str:
        """Returns the text still held back, at the end of the text; "" after a match."""
        held, self._held = self._held, ""
        for one in self._progress:
            one.matched = 0
        return held
