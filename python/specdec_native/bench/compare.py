"""``specdec bench compare``: passes and prefill beside those of a given ``llama-bench``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdec_native.bench.limits import LimitMeter
from specdec_native.bench.passes import LEAST_REPEATS, TimedModel, check_counts
from specdec_native.bench.peer import LlamaBench, PeerTest, find_llama_bench
from specdec_native.bench.samples import disturbance, load_average, median, ratio
from specdec_native.models import resolve_model
from specdec_native.progress import ProgressOption, open_progress

__all__ = ["compare_with_peer"]

_GENERATED = 32  # tokens of the peer's generating test
_CHUNK = 512  # most tokens of a prefill pass, ours and the peer's


@dataclass
class _Row:
    """One line of the comparison and its samples."""

    what: str
    tests: list[PeerTest]  # the best median of these is the peer's figure
    ours: Callable[[], float]  # one sample, in milliseconds
    our_ms: list[float] = field(default_factory=list)
    peer_ms: dict[PeerTest, list[float]] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        ours = median(self.our_ms)
        medians = {test: median(them) for test, them in self.peer_ms.items()}
        best = min(medians, key=lambda test: medians[test])
        return {
            "what": self.what,
            "ours_ms": ours,
            "peer_ms": medians[best],
            "ours_by_peer": ratio(ours, medians[best]),
            "peer_test": f"-p {best.prompt} -n {best.generate}",
            "ours_samples": len(self.our_ms),
            "peer_samples": len(self.peer_ms[best]),
        }


def compare_with_peer(
    model: str | os.PathLike[str],
    peer: str | os.PathLike[str],
    *,
    widths: Sequence[int] = (1, 8, 16),
    prefill: int = 512,
    threads: int | None = None,
    kv_type: str = "f16",
    rounds: int = 4,
    repeats: int = 5,
    progress: ProgressOption = None,
) -> dict[str, Any]:
    """Times passes and a prefill, ours and those of ``llama-bench``, in turns on the same file.

    Both start with an empty cache. A pass of ours computes logits for every row, one of
    ``llama-bench`` for the last. Its one-token figure is the better of ``-p 1`` and ``-n 32``.

    Args:
        model: Path of a GGUF file, or a name known to ``specdec pull``.
        peer: The folder that ``llama-bench`` lies in.
        widths: Tokens of a pass.
        prefill: Tokens of the prefill; 0: none.
        threads: Threads of both; None: one per physical core.
        kv_type: Type of our cache.
        rounds: How often the two take turns.
        repeats: Repetitions of the peer in a round; of ours, at least 20 in all.
        progress: As for `Generator`.

    Returns:
        What ``specdec bench compare --json`` prints.

    Raises:
        PeerError: ``llama-bench`` is not there or fails.
    """
    widths = check_counts("widths", widths, 1, 512)
    (prefill,) = check_counts("prefill", [prefill], 0, 2**20)
    executable = find_llama_bench(peer)  # before the model is loaded
    path = resolve_model(model)
    with open_progress(progress) as shown:
        timed = TimedModel(
            path, max(*widths, prefill, 2), threads=threads, kv_type=kv_type, shown=shown
        )
        bench = LlamaBench(executable, path, timed.threads)
        meter = LimitMeter(timed.threads)
        shown(0.0, "checking widths")
        timed.timer.check_widths(widths)
        rows = _rows(timed, widths, prefill)
        steps = rounds * len(rows)
        for step in range(steps):
            row = rows[step % len(rows)]
            shown(step / steps, f"timing the {row.what}, ours and the peer's")
            meter.measure()
            _sample(row, bench, repeats, rounds)
    return {
        "model": str(path),
        "isa": timed.isa,
        "threads": timed.threads,
        "peer": {"path": str(executable), "build": bench.build},
        "rows": [row.figures() for row in rows],
        "limits": meter.result(),
        "machine": {
            "load_average": load_average(),
            "disturbance": disturbance([row.our_ms for row in rows]),
        },
    }


def _rows(timed: TimedModel, widths: Sequence[int], prefill: int) -> list[_Row]:
    def pass_of(width: int) -> Callable[[], float]:
        return lambda: timed.timer.time_passes([width])[0]

    rows = []
    for width in widths:
        tests = [PeerTest(width, 0, width)]
        if width == 1:
            tests.append(PeerTest(0, _GENERATED, _CHUNK))
        rows.append(_Row(f"pass of {width}", tests, pass_of(width)))
    if prefill:
        test = PeerTest(prefill, 0, min(prefill, _CHUNK))
        rows.append(
            _Row(f"prefill of {prefill}", [test], lambda: timed.timer.time_prefill(prefill, _CHUNK))
        )
    return rows


def _sample(row: _Row, bench: LlamaBench, repeats: int, rounds: int) -> None:
    """Ours, the peer's, ours again: a drift of the machine hits both."""
    prefilling = row.what.startswith("prefill")
    ours = 1 if prefilling else -(-LEAST_REPEATS // (2 * rounds))
    row.ours()  # what the peer's run has pushed out of the caches comes back
    row.our_ms += [row.ours() for _ in range(ours)]
    for test in row.tests:
        row.peer_ms.setdefault(test, []).extend(bench.run(test, repeats))
    row.ours()
    row.our_ms += [row.ours() for _ in range(ours)]
