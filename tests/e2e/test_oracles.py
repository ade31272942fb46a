"""Checkpoints of every family, converted, against the logits that `transformers` computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec_native as sd
from oracle_checkpoint import Oracle, names_of, read_oracle, write_checkpoint
from specdec_native import _core
from support.engine import load


def logits_of(path: Path, oracle: Oracle, device: str) -> list[NDArray[np.float32]]:
    """The logits at the golden positions of each prompt."""
    model = load(path, device)
    found = []
    for ids, rows, n_ctx in zip(oracle.prompts, oracle.rows, oracle.n_ctx, strict=True):
        found.append(_core.Generator(model, n_ctx, "f32").logits(ids, 0)[rows])
    return found


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("device", ["ref", "cpu"])
@pytest.mark.parametrize("name", names_of())
def test_logits_are_those_of_transformers(tmp_path: Path, name: str, device: str) -> None:
    """R46: with 32 query and 4 key/value heads too ("llama-heads")."""
    oracle = read_oracle(name)
    folder = write_checkpoint(oracle, tmp_path / name, shards=2)
    sd.convert(folder, tmp_path / "f32.gguf", "f32", progress=False)
    for found, expected in zip(
        logits_of(tmp_path / "f32.gguf", oracle, device), oracle.logits, strict=True
    ):
        assert np.all(np.abs(found - expected) <= 1e-3 * np.maximum(1.0, np.abs(expected)))
    sd.convert(folder, tmp_path / "q8_0.gguf", "q8_0", progress=False)
    for found, expected in zip(
        logits_of(tmp_path / "q8_0.gguf", oracle, device), oracle.logits, strict=True
    ):
        mine, theirs = log_probabilities(found), log_probabilities(expected)
        assert np.abs(mine - theirs).mean() <= 0.02 * np.abs(theirs).mean()
