"""Every architecture on the emulated device: by bytes what the cpu backend gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from model_families import FAMILIES
from specdec_native import _core
from support.backends import CUDA_DEVICE
from support.engine import GREEDY, load, run

TOKENS = [3 + 7 * i % 290 for i in range(85)]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_cpu_by_bytes(make_model: Callable[..., Path], family: str) -> None:
    """A long pass, whose blocks see all chunks, and a short one, whose chunks are merged."""
    layers = 4 if family == "smollm3" else 2
    path = make_model(family=family, dtype="q8_0", layers=layers)
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        generator = _core.Generator(load(path, device), 128, "f16")
        found.append([generator.logits(TOKENS[:n], n - 1) for n in (80, len(TOKENS))])
    for device, cpu in zip(*found, strict=True):
        assert np.all(np.isfinite(device))
        assert device.tobytes() == cpu.tobytes()


@pytest.mark.parametrize("family", ["gemma2", "qwen2moe", "gpt-oss"])
def test_trees_on_the_device(make_model: Callable[..., Path], family: str) -> None:
    """Rows of a tree with windows, caps and sinks; experts that few rows choose."""
    path = make_model(family=family, dtype="f32", layers=2, seed=3)
    prompt = [*TOKENS[:50], *TOKENS[:9]]
    fields = {**GREEDY, "max_tokens": 12}
    plain = run(load(path), prompt, **fields)
    drafted = run(
        load(path, CUDA_DEVICE), prompt, [_core.SuffixDrafter(6, 1, 8, 3, 0.01)], **fields
    )
    assert drafted.tokens == plain.tokens
    assert drafted.stats["drafted"] > 0
