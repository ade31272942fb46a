"""The real model as a Hugging Face checkpoint, converted back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from hf_from_gguf import metadata_of, write_hf_checkpoint
from specdec_native import _core
from support.checkpoints import convert, tensors_of
from support.engine import load

TEXTS = ["Once upon a time", "def f(x):\n    return x ** 2\n", "3333+777 = I'll\n\n  x", "\u4f60"]


def test_a_tiny_model_there_and_back(tmp_path: Path, tiny_model: Path) -> None:
    convert(write_hf_checkpoint(tiny_model, tmp_path / "hf"), tmp_path / "again.gguf", "f32")
    old, new = tensors_of(tiny_model), tensors_of(tmp_path / "again.gguf")
    assert old.keys() == new.keys()
    for name, values in old.items():
        assert np.array_equal(values, new[name]), name


@pytest.mark.slow
def test_the_real_model_there_and_back(tmp_path: Path, real_model: Path) -> None:
    """Logits and token ids are those of the same file in F32."""
    folder = write_hf_checkpoint(real_model, tmp_path / "hf")
    sd.convert(folder, tmp_path / "again.gguf", "f32", progress=False)
    sd.quantize(real_model, tmp_path / "f32.gguf", "f32", progress=False)
    first, second = (sd.Tokenizer(tmp_path / one) for one in ("f32.gguf", "again.gguf"))
    for text in TEXTS:
        assert first.encode(text, parse_special=True) == second.encode(text, parse_special=True)
    assert first.eog_ids == second.eog_ids
    old, new = (metadata_of(tmp_path / one) for one in ("f32.gguf", "again.gguf"))
    for key in ("tokens", "token_type", "merges", "pre", "bos_token_id", "eos_token_id"):
        assert old[f"tokenizer.ggml.{key}"] == new[f"tokenizer.ggml.{key}"], key
    tokens = first.encode("The quick brown fox jumps over the lazy dog. " * 3)
    logits = [
        _core.Generator(load(tmp_path / one), 128, "f32").logits(tokens, 0)
        for one in ("f32.gguf", "again.gguf")
    ]
    assert np.array_equal(logits[0], logits[1])
