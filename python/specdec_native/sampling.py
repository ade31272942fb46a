"""What a request asks for: sampling, limits, stop strings."""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from specdec_native.errors import GgufError, shortened

__all__ = ["Acceptance", "SamplingParams"]

Acceptance = Literal["coupled", "rejection"]

_MAX_INT = 2**31 - 1
_MAX_SEED = 2**64 - 1
_MAX_BIAS = 1e6

# Numbers with bounds: name -> (least, most).
_RANGES = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}
# Whole numbers from 0: name -> most.
_LIMITS = {"max_tokens": _MAX_INT, "top_k": _MAX_INT, "seed": _MAX_SEED, "logprobs": _MAX_INT}

# general.sampling.* keys of a GGUF file -> our names.
_FILE_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_BUILT_IN: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn and where the text ends.

    The target's logits go through this chain at every position, with the text that the position
    really has before it: repetition penalty, presence and frequency penalty, logit bias,
    temperature, top-k, typical-p, top-p, min-p. Ties at a cut-off go to the lower token id.

    Attributes:
        max_tokens: Most tokens to generate; None: to the end of the context.
        temperature: 0 is greedy decoding. None: the file's recommendation, else 1.
        top_k: Keep the k likeliest tokens; 0 is off. None: the file's recommendation, else 0.
        top_p: Keep the smallest set of likeliest tokens whose probability reaches this; 1 is off.
            None: the file's recommendation, else 1.
        min_p: Keep tokens at least this likely, relative to the likeliest; 0 is off. None: the
            file's recommendation, else 0.
        typical_p: Keep the smallest set of tokens whose surprisal is nearest to the entropy and
            whose probability reaches this (locally typical sampling, arXiv 2202.00666); 1 is off.
            None: 1.
        repetition_penalty: Logits of tokens that stand in the prompt or the output are divided by
            this if positive, else multiplied (arXiv 1909.05858); 1 is off, from 0.01 to 100.
            None: 1.
        presence_penalty: Subtracted from the logits of tokens that stand in the output; 0 is off,
            from -100 to 100. None: 0.
        frequency_penalty: Subtracted as often as the token stands in the output; 0 is off, from
            -100 to 100. None: 0.
        logit_bias: Token id -> a number added to its logit; ``-inf`` bans the token.
        seed: The same seed gives the same text. None: a random one, reported in the statistics.
        stop: Strings that end the text; it is cut before them. One string is a list of one.
        acceptance: The rule for drafted tokens. ``"coupled"``: the text for a seed is that of
            plain decoding, whatever is drafted (Gumbel noise shared by draft and target, as in
            arXiv 2408.07978). ``"rejection"``: exactly the target's distribution, with somewhat
            more drafts accepted (arXiv 2211.17192); a seed repeats its text only with the same
            drafters and ``adaptive=False``, as the controller's choices depend on the clock.
        logprobs: With each token, return its natural log-probability and those of this many
            likeliest tokens (as many as there are, at most): the log-softmax of the target's raw
            logits, before the chain. None: none.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    seed: int | None = None
    stop: str | Sequence[str] = ()
    acceptance: Acceptance = "coupled"
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            ValueError: A value is out of range; the message names it.
            TypeError: A value has the wrong type.
        """
        for name, (low, high) in _RANGES.items():
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high))
        for name, most in _LIMITS.items():
            object.__setattr__(self, name, _whole(name, getattr(self, name), most))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
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
            logit_bias=dict(self.logit_bias or {}),
            logprobs=self.logprobs,
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
    typical_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] = field(hash=False)
    seed: int
    stop: tuple[str, ...]
    acceptance: Acceptance
    logprobs: int | None


def recommended_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling values that a GGUF file recommends (``general.sampling.*``), by our names.

    Raises:
        GgufError: A value is of the wrong type or out of range.
    """
    found = {}
    for key, name in _FILE_KEYS.items():
        if key not in metadata:
            continue
        value = metadata[key]
        if name == "top_k" and isinstance(value, numbers.Real) and value < 0:
            value = 0  # how some files say "off"
        try:
            SamplingParams(**{name: value})
        except (TypeError, ValueError) as error:
            text, shown = repr(value), shortened(repr(value))
            raise GgufError(
                f"{key} is {shown}, which is no value for it: {str(error).replace(text, shown)}. "
                "Get the file from another place, or remove the key."
            ) from None
        found[name] = value
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


def _number(name: str, value: object, low: float, high: float) -> float | None:
    """A float from `low` to `high`, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    number = _as_float(value)
    if not math.isfinite(number) or not low <= number <= high:
        bound = f"from {low:g} to {high:g}" if math.isfinite(high) else "finite and >= 0"
        raise ValueError(f"{name} is {number!r}; it must be {bound}")
    return number


def _as_float(value: numbers.Real) -> float:
    """The value as a float; infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value <= 0 else math.inf


def _biases(value: object) -> dict[int, float]:
    """Token ids and what is added to their logits."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"logit_bias is {value!r}; it must map token ids to numbers")
    found = {}
    for key, added in value.items():
        token = _whole("a token id of logit_bias", key, _MAX_INT)
        if token is None:
            raise TypeError("a token id of logit_bias is None; it must be a whole number")
        if isinstance(added, bool) or not isinstance(added, numbers.Real):
            raise TypeError(f"logit_bias of token {token} is {added!r}; it must be a number")
        number = _as_float(added)
        if number != -math.inf and not abs(number) <= _MAX_BIAS:
            raise ValueError(
                f"logit_bias of token {token} is {number!r}; it must be from {-_MAX_BIAS:g} to "
                f"{_MAX_BIAS:g}, or -inf for never"
            )
        found[token] = number
    return found


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
