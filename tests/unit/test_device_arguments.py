"""What device and layer arguments mean, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import specdec_native as sd
from specdec_native.cli.options import EngineOptions
from specdec_native.placement import Devices, Place, same_device


@pytest.mark.parametrize(
    ("device", "gpu_layers", "place"),
    [
        ("auto", None, Place("cpu")),
        ("cpu", 0, Place("cpu")),
        ("ref", None, Place("ref")),
        ("cuda", None, Place("cuda")),
        ("cuda:1", 3, Place("cuda:1", 3)),
        ("cuda", -1, Place("cuda")),
        ("cuda", 0, Place("cpu")),
    ],
)
def test_places(device: str, gpu_layers: int | None, place: Place) -> None:
    assert Devices(None).place(device, gpu_layers) == place


@pytest.mark.parametrize(
    ("device", "gpu_layers", "message"),
    [
        ("gpu", None, "device is 'gpu'; known are"),
        ("auto", 2, "device='auto' has no GPU; name one"),
        ("cpu", -1, "device='cpu' has no GPU; name one"),
        ("cuda", -2, "gpu_layers is -2"),
        ("cuda", True, "gpu_layers is True"),
    ],
)
def test_places_that_make_no_sense(device: str, gpu_layers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Devices(None).place(device, gpu_layers)


def test_names_of_the_first_device() -> None:
    assert same_device("cuda", "cuda:0")
    assert not same_device("cuda", "cuda:1")
    assert not same_device("cpu", "cuda")


def test_options_of_the_command_line() -> None:
    options = EngineOptions(
        device="cuda:1", gpu_layers=7, draft=["a.gguf", "ngram"], draft_device="cpu"
    )
    arguments = options.arguments()
    assert (arguments["device"], arguments["gpu_layers"]) == ("cuda:1", 7)
    assert arguments["draft"] == [sd.DraftModel("a.gguf", device="cpu"), sd.NgramDraft()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_layers": 3}, "gpu-layers goes with --device cuda"),
        ({"draft_device": "cpu"}, "no draft model: add --draft PATH"),
        ({"draft": ["a.gguf"], "draft_device": "tpu"}, "device is 'tpu'"),
        ({"device": "cuda_emu"}, "device is 'cuda_emu'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        EngineOptions(**options).arguments()


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
