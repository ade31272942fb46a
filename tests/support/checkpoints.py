"""Checkpoints of golden files, changed, and what conversion makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import load_file, save_file

import specdec_native as sd
from oracle_checkpoint import read_oracle, write_checkpoint

WEIGHTS = "model.safetensors"


def convert(*args: Any, **fields: Any) -> sd.ConvertResult:
    return sd.convert(*args, progress=False, **fields)


def checkpoint(folder: Path, name: str = "llama", **config: Any) -> Path:
    """The checkpoint of a golden file, with other values in its configuration."""
    write_checkpoint(read_oracle(name), folder)
    path = folder / "config.json"
    values = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "gone"}))
    return folder


def edit_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def tensors_of(path: Path) -> dict[str, Any]:
    return {t.name: dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def types_of(path: Path) -> dict[str, str]:
    return {t.name: t.tensor_type.name for t in GGUFReader(path).tensors}


def metadata_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in GGUFReader(path).fields.items()}


def assert_same(one: Path, two: Path) -> None:
    first, second = tensors_of(one), tensors_of(two)
    assert list(first) == list(second)
    for name, values in first.items():
        assert np.array_equal(values, second[name]), name
