"""Devices and layers on them, as arguments: what is no device is told before any is looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd

NAMES = [
    "cuda:x",
    "cuda:",
    "cuda:-1",
    "cuda: 1",
    "cuda:1 ",
    "cuda:00",
    "cuda:\ud800",
    "CUDA",
    "tpu",
]
COUNTS = [-2, -5, 2.5, float("nan"), "3", [1], True]


@pytest.mark.parametrize("name", [*NAMES, "cuda:" + "9" * 100_000, 0, None])
@pytest.mark.parametrize("gpu_layers", [None, 0])
def test_what_is_no_device(tiny_model: Path, name: Any, gpu_layers: int | None) -> None:
    with pytest.raises(ValueError, match=r"^device is .*known are 'auto', 'cpu', 'cuda'") as caught:
        sd.Generator(tiny_model, device=name, gpu_layers=gpu_layers, draft=None, progress=False)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_no_number_of_layers(tiny_model: Path, count: Any) -> None:
    with pytest.raises(ValueError, match=r"gpu_layers is .*must be a number of layers"):
        sd.estimate_memory(tiny_model, n_ctx=64, gpu_layers=count)
    with pytest.raises(ValueError, match=r"gpu_layers is .*must be a number of layers"):
        sd.Generator(tiny_model, device="cuda", gpu_layers=count, draft=None, progress=False)


def test_numpy_counts_too(tiny_model: Path) -> None:
    estimates = [
        sd.estimate_memory(tiny_model, n_ctx=64, gpu_layers=one) for one in (2, np.int64(2))
    ]
    assert estimates[0] == estimates[1]
