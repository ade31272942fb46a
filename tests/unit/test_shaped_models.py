"""Random blocks of every type, and models with the shape of big ones."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from make_tiny_model import make_shaped_model
from random_blocks import BLOCK_TYPES, FLOAT_TYPES, random_rows
from shaped_model import PRESETS, q4_k_m
from specdec_native import Tokenizer, _core
from support.engine import load


@pytest.mark.parametrize("name", [*FLOAT_TYPES, *BLOCK_TYPES])
def test_random_rows_have_the_wanted_spread(name: str) -> None:
    qtype = gguf.GGMLQuantizationType[name]
    rows = random_rows(np.random.default_rng(1), 32, 1024, 0.05, qtype)
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    assert rows.shape == (32, 1024 // block * block_bytes)
    values = gguf.dequantize(rows, qtype)
    assert values.shape == (32, 1024)
    assert np.isfinite(values).all()
    assert 0.03 < values.std() < 0.08
    assert abs(values.mean()) < 0.02
    again = random_rows(np.random.default_rng(1), 32, 1024, 0.05, qtype)
    assert np.array_equal(rows, again)


def test_random_rows_of_different_spread() -> None:
    qtype = gguf.GGMLQuantizationType.Q4_K
    std = np.array([0.01, 1.0], np.float32)
    values = gguf.dequantize(random_rows(np.random.default_rng(1), 2, 4096, std, qtype), qtype)
    assert values.std(axis=1) == pytest.approx(std, rel=0.2)


def test_random_rows_refuse() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(ValueError, match="no multiple of 256"):
        random_rows(rng, 1, 128, 1.0, gguf.GGMLQuantizationType.Q4_K)
    with pytest.raises(ValueError, match="cannot make random Q8_K blocks"):
        random_rows(rng, 1, 256, 1.0, gguf.GGMLQuantizationType.Q8_K)


def test_a_mixture_of_types_from_a_pattern_that_repeats(tmp_path: Path) -> None:
    exceptions = q4_k_m(layers=8, tied=False)
    path = make_shaped_model(
        tmp_path / "m.gguf",
        "tiny",
        dtype="q4_k",
        layers=8,
        tensor_dtypes=exceptions,
        repeating=True,
    )
    file = _core.GgufFile(path)
    _core.check_model(file)
    tensors = {one.name: one for one in file.tensors}
    kinds = [tensors[f"blk.{layer}.ffn_down.weight"].dtype for layer in range(8)]
    assert kinds == ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    assert (tensors["output.weight"].dtype, tensors["token_embd.weight"].dtype) == ("Q6_K", "Q4_K")
    assert file.dequantize("blk.0.attn_k.weight").std() == pytest.approx(1 / 16, rel=0.1)


def test_a_mixture_of_experts(tmp_path: Path) -> None:
    path = make_shaped_model(tmp_path / "m.gguf", "tiny-moe", dtype="q4_k")
    file = _core.GgufFile(path)
    _core.check_model(file)
    tensors = {one.name: one for one in file.tensors}
    assert tensors["blk.1.ffn_down_exps.weight"].shape == (6, 256, 256)
    assert tensors["blk.1.ffn_gate_inp.weight"].dtype == "F32"
    generator = _core.Generator(load(path), 64, "f16")
    assert np.isfinite(generator.logits([5, 9, 17, 300], 0)).all()


def test_what_a_token_of_the_mixture_reads() -> None:
    mixture, token = PRESETS["moe"], PRESETS["moe-token"]
    assert token.ffn == mixture.experts_used * mixture.ffn


def test_shape_of_a_big_model(tmp_path: Path) -> None:
    exceptions = {"ffn_down": "q6_k"}
    path = make_shaped_model(
        tmp_path / "m.gguf", "1b", dtype="q4_k", layers=1, tensor_dtypes=exceptions
    )
    file = _core.GgufFile(path)
    _core.check_model(file)
    tensors = {one.name: one for one in file.tensors}
    assert tensors["token_embd.weight"].shape == (128256, 2048)
    assert tensors["blk.0.attn_k.weight"].shape == (512, 2048)
    assert tensors["blk.0.ffn_up.weight"].dtype == "Q4_K"
    assert tensors["blk.0.ffn_down.weight"].dtype == "Q6_K"
    assert "output.weight" not in tensors
    assert "blk.1.attn_k.weight" not in tensors
    values = file.dequantize("blk.0.attn_k.weight")
    assert values.std() == pytest.approx(2048**-0.5, rel=0.1)
    assert Tokenizer(path).vocab_size == PRESETS["1b"].vocab
    # The last tensor ends where the file ends, but for padding.
    assert file.file_size % 32 == 0
