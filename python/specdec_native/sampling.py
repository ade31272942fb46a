"""What a request asks for: sampling, limits, stop strings."""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

__all__ = ["Acceptance", "SamplingParams"]

Acceptance = Literal["coupled", "rejection"]

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**64 - 1

# general.sampling.* keys of a GGUF file -> our names.
_FILE_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
}
_BUILT_IN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and where the text ends.

    The filters act in the order temperature, top-k, top-p, min-p, at every position, on the
    target's distribution; ties at a cut-off go to the lower token id.

    Attributes:
        max_tokens: Most tokens to generate; None: to the end of the context.
        temperature: 0 is greedy decoding. None: the file's recommendation, else 1.
        top_k: Keep the k likeliest tokens; 0 is off. None: the file's recommendation, else 0.
        top_p: Keep the smallest set of likeliest tokens whose probability reaches this; 1 is off.
            None: the file's recommendation, else 1.
        min_p: Keep tokens at least this likely, relative to the likeliest; 0 is off. None: the
            file's recommendation, else 0.
        seed: The same seed gives the same text. None: a random one, reported in the statistics.
        stop: Strings that end the text; it is cut before them. One string is a list of one.
        acceptance: The rule for drafted tokens. ``"coupled"``: the text for a seed is that of
            plain decoding, whatever is drafted (Gumbel noise shared by draft and target, as in
            arXiv 2408.07978). ``"rejection"``: exactly the target's distribution, with somewhat
            more drafts accepted (arXiv 2211.17192); a seed repeats its text only with the same
            drafter.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    acceptance: Acceptance = "coupled"

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: A value is out of range; the message names it.
            TypeError: A value has the wrong type.
        """
        for name, high in (("temperature", math.inf), ("top_p", 1.0), ("min_p", 1.0)):
            object.__setattr__(self, name, _number(name, getattr(self, name), high))
        for name, most in (("max_tokens", _MAX_INT), ("top_k", _MAX_INT), ("seed", _MAX_SEED)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), most))
        if self.acceptance not in ("coupled", "rejection"):
            raise ValueError(
                f"acceptance is {self.acceptance!r}; it must be 'coupled' or 'rejection'"
            )
        object.__setattr__(self, "stop", _stops(self.stop))

    def resolved(self, recommended: Mapping[str, Any]) -> ResolvedParams:
        """Fills in what was left open.

        Args:
            recommended: Values for open fields, such as those of `recommended_in`.
        """
        chosen = {name: getattr(self, name) for name in _BUILT_IN}
        for name, fallback in _BUILT_IN.items():
            if chosen[name] is None:
                chosen[name] = recommended.get(name, fallback)
        return ResolvedParams(
            max_tokens=self.max_tokens,
            seed=secrets.randbits(32) if self.seed is None else self.seed,
            stop=tuple(self.stop),
            acceptance=self.acceptance,
            **chosen,
        )


@dataclass(frozen=True)
class ResolvedParams:
    """`SamplingParams` with nothing left open; no `max_tokens` means to the end of the context."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stop: tuple[str, ...]
    acceptance: Acceptance


def recommended_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values that a GGUF file recommends (``general.sampling.*``), by our names."""
    found = {ours: metadata[key] for key, ours in _FILE_KEYS.items() if key in metadata}
    if "top_k" in found:
        found["top_k"] = max(0, int(found["top_k"]))
    SamplingParams(**found)  # a damaged value is an error here, where the file is at hand
    return found


def merge_params(params: SamplingParams | None, keywords: Mapping[str, Any]) -> SamplingParams:
    """One SamplingParams from an optional instance and keywords, which win.

    Raises:
        TypeError: An unknown keyword; the message lists the known ones.
    """
    known = [field.name for field in fields(SamplingParams)]
    for name in keywords:
        if name not in known:
            raise TypeError(f"unknown sampling parameter {name!r}; known are {', '.join(known)}")
    return replace(params or SamplingParams(), **keywords)


def _number(name: str, value: object, high: float) -> float | None:
    """A float from 0 to `high`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not 0.0 <= number <= high:
        bound = f"from 0 to {high:g}" if math.isfinite(high) else "finite and >= 0"
        raise ValueError(f"{name} is {number!r}; it must be {bound}")
    return number


def _whole(name: str, value: object, high: int) -> int | None:
    """An int from 0 to `high`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}; it must be a whole number")
    number = int(value)
    if not 0 <= number <= high:
        raise ValueError(f"{name} is {number}; it must be from 0 to {high}")
    return number


def _stops(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings, each a text that is not empty."""
    if value is None:
        return ()
    stops = (value,) if isinstance(value, str) else tuple(value)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise ValueError(f"stop holds {stop!r}; each stop must be a text that is not empty")
    return stops
