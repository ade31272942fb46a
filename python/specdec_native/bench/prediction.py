"""What a draft model would bring, from measured passes: for ``specdec inspect --draft``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_native.bench.passes import LEAST_REPEATS, TimedModel
from specdec_native.bench.samples import median
from specdec_native.progress import ProgressOption, open_progress

__all__ = ["ACCEPTANCES", "expected_speedup", "measure_costs", "predict_speedups"]

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9)
_MOST_DRAFTED = 8
_DEPTH = 64


def expected_speedup(
    acceptance: float, drafted: int, pass_ms: Mapping[int, float], draft_ms: float
) -> float:
    """Tokens per second with chains of `drafted` tokens, over those of plain decoding.

    A chain in which each token stands with probability a brings (1 - a^(k + 1)) / (1 - a) tokens
    (Leviathan et al., arXiv 2211.17192, equation 1) for k draft steps and one pass of k + 1.

    Args:
        acceptance: Chance that a drafted token stands, given that those before it do; 0 to 1.
        drafted: k, tokens of a chain; 0 is plain decoding.
        pass_ms: Milliseconds of a pass of the target by its width; must hold 1 and k + 1.
        draft_ms: Milliseconds of one draft step.
    """
    tokens = sum(acceptance**place for place in range(drafted + 1))
    return tokens * pass_ms[1] / (drafted * draft_ms + pass_ms[drafted + 1])


def predict_speedups(pass_ms: Mapping[int, float], draft_ms: float) -> list[dict[str, float]]:
    """The best chain for each of `ACCEPTANCES`: ``acceptance, draft_length, speedup``.

    A length of 0 with a speed-up of 1 means that plain decoding is faster.
    """
    lengths = range(max(pass_ms))
    best = []
    for acceptance in ACCEPTANCES:
        found = [expected_speedup(acceptance, k, pass_ms, draft_ms) for k in lengths]
        length = max(lengths, key=found.__getitem__)
        best.append({"acceptance": acceptance, "draft_length": length, "speedup": found[length]})
    return best


def measure_costs(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    *,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> dict[str, Any]:
    """Times passes of the target of 1 to 9 tokens, and one-token passes of the draft.

    Medians behind a cache of 64 tokens. Both models are in memory at once.

    Args:
        target: Path of a GGUF file, or a name known to ``specdec pull``.
        draft: The same, of the draft.
        threads: Threads that compute; None: one per physical core.
        progress: As for `Generator`.

    Returns:
        ``pass_ms`` (width -> milliseconds), ``draft_ms``, ``threads``, and ``predictions`` as of
        `predict_speedups`.
    """
    widths = list(range(1, _MOST_DRAFTED + 2))
    with open_progress(progress) as shown:
        models = [
            TimedModel(path, _DEPTH + len(widths), threads=threads, shown=shown)
            for path in (target, draft)
        ]
        samples = _time_in_turns(models, [widths, [1]], shown)
    pass_ms = {width: median(one) for width, one in zip(widths, samples[0], strict=True)}
    draft_ms = median(samples[1][0])
    return {
        "pass_ms": pass_ms,
        "draft_ms": draft_ms,
        "threads": models[0].threads,
        "predictions": predict_speedups(pass_ms, draft_ms),
    }


def _time_in_turns(
    models: Sequence[TimedModel], widths: Sequence[list[int]], shown: Any
) -> list[list[list[float]]]:
    """Milliseconds by model, width and turn."""
    samples: list[list[list[float]]] = [[[] for _ in one] for one in widths]
    for model in models:
        model.timer.fill(_DEPTH)
    for turn in range(LEAST_REPEATS):
        for model, asked, found in zip(models, widths, samples, strict=True):
            model.timer.time_passes([1])  # brings back what the other has pushed out of the caches
            for place, ms in enumerate(model.timer.time_passes(asked)):
                found[place].append(ms)
        shown((turn + 1) / LEAST_REPEATS, "timing passes")
    return samples
