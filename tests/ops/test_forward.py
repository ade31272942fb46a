"""The forward pass against the float64 NumPy reference, backends `ref` and `cpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_families import FAMILIES
from reference.llama_numpy import forward
from reference.llama_numpy import load as load_reference
from reference.transformer_numpy import forward as forward_any
from reference.transformer_numpy import load as load_any
from specdec_native import _core
from support.engine import load

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tied": False},
    "one_kv_head": {"kv_heads": 1},
    "no_grouping": {"kv_heads": 4},
    "odd_sizes": {"width": 96, "heads": 3, "kv_heads": 1, "head_dim": 32, "ffn": 160},
    "wide_head": {"width": 64, "heads": 2, "kv_heads": 1, "head_dim": 48},
    "linear": {"rope_scaling": "linear"},
    "yarn": {"rope_scaling": "yarn", "rope_original_context": 64},
    "yarn_magnitude": {
        "rope_scaling": "yarn",
        "metadata": {
            "llama.rope.scaling.attn_factor": 1.2,
            "llama.rope.scaling.yarn_log_multiplier": 0.5,
        },
    },
    "llama3": {"rope_scaling": "llama3", "rope_original_context": 64},
    "factor_without_type": {"metadata": {"llama.rope.scaling.factor": 4.0}},
    "half_rope": {"metadata": {"llama.rope.dimension_count": 8}},
}


def token_ids(count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(5).integers(3, 300, size=count)]


@pytest.mark.parametrize("device", ["ref", "cpu"])
@pytest.mark.parametrize("shape", SHAPES)
def test_f32_models_agree_with_numpy(
    make_model: Callable[..., Path], device: str, shape: str
) -> None:
    path = make_model(dtype="f32", **SHAPES[shape])
    tokens = token_ids(150)
    expected = forward(load_reference(path), tokens)
    generator = _core.Generator(load(path, device), 256, "f32")
    logits = np.concatenate(
        [generator.logits(tokens[: first + 50], first) for first in (0, 50, 100)]
    )
    np.testing.assert_allclose(logits, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("f16", 2e-3), ("bf16", 2e-3), ("q8_0", 0.15), ("q4_0", 0.15), ("q4_1", 0.15), ("q5_0", 0.15)],
)
def test_other_types_stay_near_the_dequantised_model(
    make_model: Callable[..., Path], dtype: str, tolerance: float
) -> None:
    """The reference computes with dequantised weights; `cpu` rounds activations to 8 bits."""
    path = make_model(dtype=dtype, layers=2)
    tokens = token_ids(60)
    expected = forward(load_reference(path), tokens)
    for device, bound in (("ref", 2e-3), ("cpu", tolerance)):
        logits = _core.Generator(load(path, device), 64, "f32").logits(tokens, 0)
        error = np.sqrt(np.mean((logits - expected) ** 2)) / expected.std()
        assert error < bound, device


# Head sizes that differ from width / heads, more layers than a window pattern's period.
FAMILY_SHAPES: dict[str, dict[str, Any]] = {
    "smollm3": {"layers": 5},
    "gemma3": {"layers": 3, "head_dim": 32},
    "olmo2": {"layers": 5, "metadata": {"olmo2.attention.sliding_window": 40}},
    "qwen3": {"head_dim": 32},
    "gpt-oss": {"head_dim": 32, "layers": 3, "tied": False},
}


@pytest.mark.parametrize("device", ["ref", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_architecture_agrees_with_numpy(
    make_model: Callable[..., Path], device: str, family: str
) -> None:
    """Texts longer than every window and than the context before extension."""
    path = make_model(family=family, dtype="f32", **FAMILY_SHAPES.get(family, {}))
    tokens = token_ids(130 if device == "cpu" else 100)
    expected = forward_any(load_any(path, family), tokens)
    generator = _core.Generator(load(path, device), 256, "f32")
    logits = np.concatenate(
        [
            generator.logits(tokens[: first + 50], first)
            for first in (0, 50, 100)
            if first < len(tokens)
        ]
    )
    np.testing.assert_allclose(logits, expected, atol=2e-4)


@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_long_rope_chooses_its_factors_by_n_ctx(
    make_model: Callable[..., Path], device: str
) -> None:
    factors = {
        "phi3.rope.scaling.type": "longrope",
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": 1.19,
        "phi3.rope.dimension_count": 12,
    }
    path = make_model(family="phi3", dtype="f32", long_rope=True, metadata=factors)
    tokens = token_ids(60)
    results = []
    for n_ctx in (64, 65):
        expected = forward_any(load_any(path, n_ctx=n_ctx), tokens)
        logits = _core.Generator(load(path, device), n_ctx, "f32").logits(tokens, 0)
        np.testing.assert_allclose(logits, expected, atol=2e-4)
        results.append(logits)
    assert np.abs(results[0] - results[1]).max() > 0.1
