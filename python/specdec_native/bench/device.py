"""Passes on a device beside what its memory can do, for ``tools/gpu_check.sh``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from specdec_native import _core
from specdec_native.bench.passes import TimedModel
from specdec_native.bench.samples import median

__all__ = ["measure_device_passes"]

_VERIFIED = 8  # rows of a round


def measure_device_passes(
    model: str | os.PathLike[str],
    device: str,
    *,
    widths: Sequence[int] = (1, 2, 4, 8, 16),
    depths: Sequence[int] = (64, 4096),
    repeats: int = 20,
    copy_bytes: int = 1 << 30,
) -> dict[str, Any]:
    """Times passes, and the verify-and-accept step, on a device.

    First it is checked that a pass of each width gives, bit for bit, what passes of one token give.

    Args:
        model: Path of a GGUF file.
        device: ``"cuda"``, ``"cuda:N"``.
        widths: Tokens of a pass; logits are computed for each.
        depths: Tokens in the cache before the pass.
        repeats: Passes of each width; medians count.
        copy_bytes: Size of the copy that the speed of the device's memory is measured by.

    Returns:
        ``copy_gbps``: what a copy reads and writes; ``weight_bytes``; ``passes``: by depth and
        width ``ms``, ``ratio`` to one token's, ``gbps`` of weights and cache, ``share_of_copy``;
        ``verify``: by depth and rule ``ms`` and ``share`` of a round of 8 rows.

    Raises:
        InternalError: A width gives other results than single tokens: nothing is timed.
    """
    copy = _core.cuda_copy_bandwidth(device, copy_bytes)
    positions = max(depths) + max(max(widths), _VERIFIED) + 1
    timed = TimedModel(model, positions, device=device)
    asked = sorted({1, _VERIFIED, *widths})
    per_position = _cache_bytes(model)
    passes: list[dict[str, float]] = []
    verify: list[dict[str, Any]] = []
    for depth in sorted(depths):
        timed.timer.fill(depth)
        timed.timer.check_widths(asked)
        samples: dict[int, list[float]] = {width: [] for width in asked}
        for _ in range(repeats):
            for width, ms in zip(asked, timed.timer.time_passes(asked), strict=True):
                samples[width].append(ms)
        times = {width: median(values) for width, values in samples.items()}
        read = timed.weight_bytes + depth * per_position
        for width in asked:
            gbps = read / times[width] / 1e6
            passes.append(
                {
                    "depth": depth,
                    "width": width,
                    "ms": times[width],
                    "ratio": times[width] / times[1],
                    "gbps": gbps,
                    "share_of_copy": gbps * 1e9 / copy,
                }
            )
        for greedy in (True, False):
            ms = median([timed.timer.time_verify(_VERIFIED, greedy) for _ in range(repeats)])
            rule = "greedy" if greedy else "rejection"
            share = ms / (ms + times[_VERIFIED])
            verify.append({"depth": depth, "rule": rule, "ms": ms, "share": share})
    return {
        "model": os.fspath(model),
        "device": device,
        "copy_gbps": copy / 1e9,
        "weight_bytes": timed.weight_bytes,
        "weights": timed.weights,
        "cache_bytes_per_position": per_position,
        "passes": passes,
        "verify": verify,
    }


def _cache_bytes(model: str | os.PathLike[str]) -> int:
    """Of one position in an f16 cache."""
    metadata = _core.GgufFile(os.fspath(model)).metadata
    prefix = metadata["general.architecture"]
    heads = metadata[f"{prefix}.attention.head_count"]
    kv_heads = metadata.get(f"{prefix}.attention.head_count_kv", heads)
    width = metadata[f"{prefix}.embedding_length"]
    head_dim = metadata.get(f"{prefix}.attention.key_length", width // heads)
    return int(2 * 2 * metadata[f"{prefix}.block_count"] * kv_heads * head_dim)
