"""Which of a target's layers draft best: a search, once per model, for `LayerSkipDraft`."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec_native import _core
from specdec_native.bench.prediction import expected_speedup
from specdec_native.bench.prompts import BUILT_IN
from specdec_native.drafters import LayerSkipDraft
from specdec_native.errors import naming_file
from specdec_native.models import resolve_model
from specdec_native.progress import ProgressOption, open_progress
from specdec_native.text import Tokenizer

__all__ = ["LayerSearch", "PassCosts", "best_chain", "choose_layers", "search_layers"]

_LONGEST = 8  # drafted tokens in a round at most
_LEAST_ACCEPTANCE = 0.2  # below, no draft pays whatever it costs
_PASSES = 5  # timed of each kind; their median counts
_CONTEXT = 1024


@dataclass(frozen=True)
class LayerSearch:
    """What a search found.

    Attributes:
        draft: The drafter to use: layers and draft length.
        acceptance: The share of single drafted tokens that stood.
        speedup: Expected against plain decoding; below 1 no subset pays on this machine.
        tried: How many subsets were tried.
    """

    draft: LayerSkipDraft
    acceptance: float
    speedup: float
    tried: int


@dataclass(frozen=True)
class PassCosts:
    """Measured costs, in milliseconds.

    Attributes:
        passes: Of a verify pass over 1, 2, ... tokens.
        draft_base: Of a drafted token without any layer: embedding, output matrix, drawing.
        draft_layer: Of each layer that runs.
    """

    passes: tuple[float, ...]
    draft_base: float
    draft_layer: float


def best_chain(acceptance: float, draft_ms: float, passes: Sequence[float]) -> tuple[float, int]:
    """The best draft length and what it brings.

    Args:
        acceptance: The probability that a drafted token stands, given that those before it do.
        draft_ms: Of one drafted token.
        passes: Of a pass over 1, 2, ... tokens, in ms.

    Returns:
        Tokens per second over those of plain decoding, and a length of at least 1.
    """
    by_width = dict(enumerate(passes, start=1))
    lengths = range(1, len(passes))
    found = {k: expected_speedup(acceptance, k, by_width, draft_ms) for k in lengths}
    length = max(lengths, key=found.__getitem__)  # of equals the shortest
    return found[length], length


def choose_layers(
    total: int, acceptance: Callable[[Sequence[int]], float], costs: PassCosts
) -> LayerSearch:
    """Drops layers one after the other, the least missed first, and keeps the fastest subset.

    How much a layer is missed is measured once, by leaving out that one alone.

    Args:
        total: Layers of the target, at least 2.
        acceptance: Measures a subset.
        costs: Of passes.

    Returns:
        The best subset, its draft length and the speed-up to expect.
    """
    alone = {layer: acceptance([i for i in range(total) if i != layer]) for layer in range(total)}
    kept, tried = list(range(total)), total
    best: LayerSearch | None = None
    for layer in sorted(alone, key=lambda one: (-alone[one], one))[: total - 1]:
        kept = [i for i in kept if i != layer]
        # The first subset has been measured already.
        rate = alone[layer] if len(kept) == total - 1 else acceptance(kept)
        tried += len(kept) < total - 1
        draft_ms = costs.draft_base + len(kept) * costs.draft_layer
        speedup, length = best_chain(rate, draft_ms, costs.passes)
        if best is None or speedup > best.speedup:
            best = LayerSearch(LayerSkipDraft(tuple(kept), length), rate, speedup, tried)
        if rate < _LEAST_ACCEPTANCE:
            break
    assert best is not None
    return LayerSearch(best.draft, best.acceptance, best.speedup, tried)


def search_layers(
    model: str | os.PathLike[str],
    *,
    texts: Sequence[str] | None = None,
    tokens: int = 24,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> LayerSearch:
    """Searches for the layers of a target that draft best for it on this machine.

    Takes some 1.5 times as many measurements as the target has layers, each `tokens` greedy tokens
    behind each text. Keep the result: ``result.draft.save("layers.json")``, and later
    ``draft="layerskip:layers.json"``.

    Args:
        model: The target's GGUF file, or a name that was pulled.
        texts: What it goes on from; None: a few built-in ones.
        tokens: Generated per text and subset.
        threads: None: one per physical core.
        progress: None: a bar if stderr is a terminal; True; False; or a callback that gets the
            fraction done and a text.

    Returns:
        The best subset found.

    Raises:
        ValueError: The target has one layer only, `tokens` is below 2, or there is no text.
        GgufError: The file is damaged or not supported.
    """
    if tokens < 2:
        raise ValueError(f"tokens is {tokens}; at least 2 are needed")
    path = resolve_model(model)
    with open_progress(progress) as shown:
        target = _core.Model.load(str(path), _core.make_backend("cpu", threads or 0), None)
        if target.layers < 2:
            raise ValueError(f"{path}: a model of one layer has none to leave out")
        with naming_file(target.file.path):
            tokenizer = Tokenizer.from_metadata(target.file.metadata)
        given = [one.text for one in BUILT_IN] if texts is None else list(texts)
        prompts = [tokenizer.encode(text)[: _CONTEXT // 2] for text in given]
        if not prompts or not all(prompts):
            raise ValueError("texts holds no text, or an empty one")
        meter = _Meter(target, prompts, tokens)
        done = 0

        def measured(layers: Sequence[int]) -> float:
            nonlocal done
            done += 1
            shown(min(1.0, done / (1.5 * target.layers)), "searching layers to draft with")
            return meter.acceptance(layers)

        return choose_layers(target.layers, measured, meter.costs())


class _Meter:
    """Measures acceptance and costs on one target."""

    def __init__(self, target: _core.Model, prompts: Sequence[list[int]], tokens: int) -> None:
        self._target = target
        self._prompts = prompts
        self._tokens = tokens
        # One each, so that a prompt is prefilled once.
        self._generators = [_core.Generator(target, _CONTEXT, "f16") for _ in prompts]

    def _run(self, index: int, layers: Sequence[int]) -> dict[str, float]:
        request = _core.RequestParams(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            seed=0,
            acceptance="coupled",
            max_tokens=self._tokens,
            stop_tokens=[],
            prefill_chunk=512,
        )
        generator = self._generators[index]
        drafter = _core.LayerSkipDrafter(self._target, list(layers), 1)
        generator.begin([drafter], self._prompts[index], request)
        while generator.step().finish_reason is None:
            pass
        return generator.stats()

    def acceptance(self, layers: Sequence[int]) -> float:
        stats = [self._run(index, layers) for index in range(len(self._prompts))]
        return sum(one["accepted"] for one in stats) / sum(one["drafted"] for one in stats)

    def costs(self) -> PassCosts:
        timer = _core.PassTimer(self._target, _CONTEXT, "f16")
        timer.fill(64)
        widths = list(range(1, _LONGEST + 2))
        rounds = [timer.time_passes(widths) for _ in range(_PASSES)]
        passes = tuple(statistics.median(column) for column in zip(*rounds, strict=True))
        one = self._draft_ms([0])
        all_layers = self._draft_ms(range(self._target.layers))
        per_layer = max(0.0, (all_layers - one) / (self._target.layers - 1))
        return PassCosts(passes, max(0.0, one - per_layer), per_layer)

    def _draft_ms(self, layers: Sequence[int]) -> float:
        times = []
        for _ in range(_PASSES):
            stats = self._run(0, layers)
            times.append(stats["draft_ms"] / stats["drafted"])
        return statistics.median(times)
