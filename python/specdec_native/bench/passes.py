"""``specdec bench passes``: how long a verify pass of each width takes, beside the limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec_native import _core
from specdec_native.bench.limits import LimitMeter
from specdec_native.bench.samples import disturbance, load_average, median, ratio, summary
from specdec_native.models import resolve_model
from specdec_native.progress import Progress, ProgressOption, open_progress

__all__ = ["LEAST_REPEATS", "TimedModel", "check_counts", "measure_passes"]

LEAST_REPEATS = 20
_LIMIT_SAMPLES = 8  # per depth
_REALISTIC_SHARE = 0.7


class TimedModel:
    """A loaded model with what times its passes."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        positions: int,
        *,
        device: str = "cpu",
        threads: int | None = None,
        kv_type: str = "f16",
        profile: bool = False,
        shown: Progress = lambda fraction, text: None,
    ) -> None:
        """Loads a model whose cache has `positions` positions."""
        path = resolve_model(model)
        backend = _core.make_backend(device, threads or 0)
        self.profiler = _core.ProfilingBackend(backend) if profile else None
        self.path = path
        self.isa = _core.cpu_info().active if device == "cpu" else device
        loaded = _core.Model.load(
            str(path), self.profiler or backend, lambda part: shown(part, f"loading {path.name}")
        )
        self.threads = backend.threads
        self.timer = _core.PassTimer(loaded, positions, kv_type)
        totals = self.timer.weight_totals()
        self.weights = [
            {"type": one.type, "bytes": one.bytes, "multiply_adds": one.multiply_adds}
            for one in totals
        ]
        self.weight_bytes = sum(one.bytes for one in totals)
        self.multiply_adds = sum(one.multiply_adds for one in totals)

    def figures(self, width: int, ms: float) -> dict[str, float]:
        """Weights read and multiplied in a pass of `width` tokens, by its time."""
        return {
            "gbps": self.weight_bytes / ms / 1e6,
            "gmacs": self.multiply_adds * width / ms / 1e6,
        }


def check_counts(name: str, values: Sequence[int], least: int, most: int) -> list[int]:
    """The values, each once and ascending.

    Raises:
        ValueError: None are given, or one is out of range.
    """
    if not values:
        raise ValueError(f"{name}: none are given; write them like 1,2,4")
    for value in values:
        if not least <= value <= most:
            raise ValueError(f"{name} holds {value}; each must be from {least} to {most}")
    return sorted(set(values))


def measure_passes(
    model: str | os.PathLike[str],
    widths: Sequence[int] = (1, 2, 4, 8, 16),
    depths: Sequence[int] = (64,),
    *,
    threads: int | None = None,
    device: str = "cpu",
    kv_type: str = "f16",
    repeats: int = LEAST_REPEATS,
    profile: bool = False,
    progress: ProgressOption = None,
) -> dict[str, Any]:
    """Times passes of each width behind caches of each depth, in turns.

    First it is checked that a pass of each width gives, bit for bit, what passes of one token give.

    Args:
        model: Path of a GGUF file, or a name known to ``specdec pull``.
        widths: Tokens of a pass; logits are computed for each.
        depths: Tokens in the cache before the pass.
        threads: Threads that compute; None: one per physical core.
        device: ``"cpu"``, or ``"ref"``.
        kv_type: Type of the cache, ``"f16"``, ``"q8_0"`` or ``"f32"``.
        repeats: Passes of each width, at least 20.
        profile: Whether to find out, in further passes, where their time goes.
        progress: As for `Generator`.

    Returns:
        What ``specdec bench passes --json`` prints.

    Raises:
        InternalError: A width gives other results than single tokens: nothing is timed.
    """
    widths = check_counts("widths", widths, 1, 512)
    depths = check_counts("depths", depths, 0, 2**20)
    repeats = max(LEAST_REPEATS, repeats)
    with open_progress(progress) as shown:
        timed = TimedModel(
            model,
            max(depths) + max(widths),
            device=device,
            threads=threads,
            kv_type=kv_type,
            profile=profile,
            shown=shown,
        )
        meter = LimitMeter(timed.threads)
        run = _Run(timed, meter, widths, repeats, profile, shown)
        for index, depth in enumerate(depths):
            run.at_depth(depth, index / len(depths), 1 / len(depths))
    return run.result()


class _Run:
    """The passes of one measurement, and what came of them."""

    def __init__(
        self,
        timed: TimedModel,
        meter: LimitMeter,
        widths: list[int],
        repeats: int,
        profile: bool,
        shown: Progress,
    ) -> None:
        self._timed, self._meter, self._shown = timed, meter, shown
        self._asked = widths
        self._widths = sorted({1, *widths})  # one token is what the others are compared with
        self._repeats, self._profile = repeats, profile
        self._passes: list[dict[str, Any]] = []
        self._profiles: list[dict[str, Any]] = []
        self._samples: list[list[float]] = []

    def at_depth(self, depth: int, done: float, share: float) -> None:
        timer = self._timed.timer
        self._shown(done, f"filling the cache to {depth}")
        timer.fill(depth)
        self._shown(done, f"checking widths at depth {depth}")
        timer.check_widths(self._widths)
        samples: dict[int, list[float]] = {width: [] for width in self._widths}
        for turn in range(self._repeats):
            if turn % max(1, self._repeats // _LIMIT_SAMPLES) == 0:
                self._meter.measure()
                timer.time_passes([1])  # brings back what that has pushed out of the caches
            # Every width comes after every other in turn.
            shift = turn % len(self._widths)
            order = self._widths[shift:] + self._widths[:shift]
            for width, ms in zip(order, timer.time_passes(order), strict=True):
                samples[width].append(ms)
            self._shown(done + share * (turn + 1) / self._repeats, f"timing passes at {depth}")
        one = median(samples[1])
        for width in self._asked:
            entry = {"width": width, "depth": depth, **summary(samples[width])}
            entry["ratio"] = entry["ms"] / one
            self._passes.append({**entry, **self._timed.figures(width, entry["ms"])})
            if self._profile:
                self._profiles.append(self._profiled(depth, width))
        self._samples += samples.values()

    def _profiled(self, depth: int, width: int) -> dict[str, Any]:
        profiler = self._timed.profiler
        assert profiler is not None
        timer, runs = self._timed.timer, []
        timer.time_passes([width])
        for _ in range(LEAST_REPEATS):
            profiler.start()
            (ms,) = timer.time_passes([width])
            profiler.stop()
            runs.append(_ProfiledPass(ms, profiler.results()))
        ms = median([one.ms for one in runs])
        return {"depth": depth, "width": width, "ms": ms, "ops": _ops(runs)}

    def result(self) -> dict[str, Any]:
        timed, limits = self._timed, self._meter.result()
        for entry in self._passes:
            entry["share_of_read"] = ratio(entry["gbps"], limits["read_gbps"])
            entry["share_of_int8"] = ratio(entry["gmacs"], limits["int8_gmacs"])
            # What the multiply-adds alone would take at the speed that is realistic of the peak.
            macs = timed.multiply_adds * entry["width"]
            entry["int8_ms"] = macs / (_REALISTIC_SHARE * limits["int8_gmacs"]) / 1e6
        result = {
            "model": str(timed.path),
            "isa": timed.isa,
            "threads": timed.threads,
            "passes": self._passes,
            "weights": timed.weights,
            "limits": limits,
            "machine": {
                "load_average": load_average(),
                "disturbance": disturbance(self._samples),
            },
        }
        return {**result, "profile": self._profiles} if self._profile else result


@dataclass(frozen=True)
class _ProfiledPass:
    """One pass and its operations, which are the same in every pass."""

    ms: float
    ops: list[_core.OpProfile]

    @property
    def rest(self) -> float:
        """Milliseconds between the operations."""
        return self.ms - 1e3 * sum(one.seconds for one in self.ops)


def _ops(runs: Sequence[_ProfiledPass]) -> list[dict[str, Any]]:
    """Operations of a pass by their medians, the slowest first, then the time between them."""
    ops: list[dict[str, Any]] = []
    for index, one in enumerate(runs[0].ops):
        seconds = median([run.ops[index].seconds for run in runs])
        ops.append(
            {
                "op": one.op,
                "types": one.types,
                "calls": one.calls,
                "ms": seconds * 1e3,
                "gbps": ratio(one.bytes / 1e9, seconds) if one.bytes else None,
                "gmacs": ratio(one.multiply_adds / 1e9, seconds) if one.multiply_adds else None,
            }
        )
    ops.sort(key=lambda one: -one["ms"])
    rest = {"types": "", "calls": 0, "gbps": None, "gmacs": None}
    ops.append({"op": "(between)", "ms": median([run.rest for run in runs]), **rest})
    total = sum(one["ms"] for one in ops)
    return [{**one, "share": one["ms"] / total} for one in ops]
