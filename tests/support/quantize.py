"""What the quantiser's tests share: the golden tensors, rows of a type, models to quantise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from specdec_native import _core
from support.weights import decode

_GOLDEN = Path(__file__).parent.parent / "golden" / "quant_mse.json"
# The order in which the golden file's recipe draws its tensors.
_SHAPES = {
    "token_embd.weight": (512, 512),
    "blk.0.attn_q.weight": (512, 512),
    "blk.0.attn_k.weight": (512, 512),
    "blk.0.attn_v.weight": (512, 512),
    "blk.0.attn_output.weight": (512, 512),
    "blk.0.ffn_gate.weight": (1024, 512),
    "blk.0.ffn_up.weight": (1024, 512),
    "blk.0.ffn_down.weight": (512, 1024),
}


def golden_errors() -> dict[tuple[str, str], float]:
    """(type, tensor name) -> mean squared error of the reference quantiser."""
    table = json.loads(_GOLDEN.read_text())["mse"]
    return {(dtype, name): mse for row in table.values() for name, (dtype, mse) in row.items()}


def golden_tensors() -> dict[str, np.ndarray]:
    """The seeded tensors of the golden file."""
    rng = np.random.default_rng(20261129)
    return {
        name: (0.05 * rng.standard_t(5, size=shape)).astype(np.float32)
        for name, shape in _SHAPES.items()
    }


def round_trip(dtype: str, values: np.ndarray) -> np.ndarray:
    """Values quantised by us and read by the ``gguf`` package, in the same shape."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    raw = _core.testing.quantize(dtype, flat)
    return decode(dtype, raw).reshape(values.shape)


def mean_squared_error(a: np.ndarray, b: np.ndarray) -> float:
    """In double precision."""
    return float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
