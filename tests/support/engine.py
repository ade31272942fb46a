"""Runs requests on the compiled engine directly, with every knob that the exactness tests turn."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec_native import _core
from support.backends import THREADS

# Where engine tests run, unless one names its device itself.
DEVICE = os.environ.get("SPECDEC_TEST_DEVICE", "cpu")


def sized(full: int, emulated: int, sanitized: int | None = None) -> int:
    """How much of something a test does: less where all is slow.

    Args:
        full: As a rule.
        emulated: On the emulated device.
        sanitized: Where the host's code is sanitized, and what counts is that it runs.
    """
    if DEVICE == "cuda_emu":
        return emulated
    if sanitized is not None and "SPECDEC_SANITIZED" in os.environ:
        return sanitized
    return full


GREEDY: dict[str, Any] = {"temperature": 0.0}
FILTERED: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02}


@dataclass(frozen=True)
class Run:
    """What a request brought."""

    tokens: list[int]
    sources: list[str]
    finish_reason: str
    stats: dict[str, Any]
    # One per token, if asked for: (log-probability, [(id, log-probability) of the likeliest])
    logprobs: list[tuple[float, list[tuple[int, float]]]]


def load(path: Path, device: str | None = None, threads: int = THREADS) -> _core.Model:
    """Loads a model on a backend of its own; SPECDEC_TEST_DEVICE names it where no test does."""
    return _core.Model.load(str(path), _core.make_backend(device or DEVICE, threads))


def request(**fields: Any) -> _core.RequestParams:
    """Request parameters, plain unless said otherwise."""
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "acceptance": "coupled",
        "max_tokens": 64,
        "stop_tokens": [],
        "prefill_chunk": 512,
    }
    return _core.RequestParams(**{**values, **fields})


def finish(generator: _core.Generator) -> Run:
    """Steps a begun request to its end."""
    tokens: list[int] = []
    sources: list[str] = []
    logprobs: list[tuple[float, list[tuple[int, float]]]] = []
    while True:
        result = generator.step()
        tokens += result.tokens
        logprobs += result.logprobs
        sources += [
            result.source if i < result.drafted else "target" for i in range(len(result.tokens))
        ]
        if result.finish_reason is not None:
            return Run(tokens, sources, result.finish_reason, generator.stats(), logprobs)


def run(
    model: _core.Model,
    prompt: Sequence[int],
    drafters: Sequence[_core.Drafter] = (),
    n_ctx: int = 512,
    kv_type: str = "f16",
    **fields: Any,
) -> Run:
    """One request on a fresh generator."""
    generator = _core.Generator(model, n_ctx, kv_type)
    generator.begin(list(drafters), list(prompt), request(**fields))
    return finish(generator)
