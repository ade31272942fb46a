"""What the machine could do at best, measured between the passes that are compared with it."""

from __future__ import annotations

from typing import Any

from specdec_native import _core
from specdec_native.bench.samples import median

__all__ = ["LimitMeter"]


class LimitMeter:
    """Collects samples of the read bandwidth and of the int8 peak, with 1 thread and with all."""

    def __init__(self, threads: int) -> None:
        """Takes the memory that is read, some 256 MB or more."""
        self._probe = _core.MachineProbe(threads)
        self._samples: dict[str, list[float]] = {}

    def measure(self) -> None:
        """One sample of everything; some 100 ms."""
        many = self._probe.threads > 1
        for all_threads in (False, True):
            if all_threads and not many:
                continue
            read, peak = (
                self._probe.read_bandwidth(all_threads),
                self._probe.int8_peak(all_threads),
            )
            self._add("read_gbps", all_threads, read / 1e9)
            self._add("int8_gmacs", all_threads, peak / 1e9)
        if not many:
            for name in ("read_gbps", "int8_gmacs"):
                self._samples[name] = self._samples[f"{name}_1_thread"]

    def _add(self, name: str, all_threads: bool, value: float) -> None:
        key = name if all_threads else f"{name}_1_thread"
        self._samples.setdefault(key, []).append(value)

    def result(self) -> dict[str, Any]:
        """Medians, and the best of all samples.

        ``read_gbps`` (10^9 bytes a second), ``int8_gmacs`` (10^9 multiply-adds a second), each also
        with the endings ``_1_thread`` and ``_best``.
        """
        result: dict[str, Any] = {name: median(them) for name, them in self._samples.items()}
        for name in ("read_gbps", "int8_gmacs"):
            result[f"{name}_best"] = max(self._samples[name])
        result["buffer_bytes"] = self._probe.buffer_bytes
        result["samples"] = len(self._samples["read_gbps"])
        return result
