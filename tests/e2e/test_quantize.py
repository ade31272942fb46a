"""Quantised models load and still know what they knew; the command; the time it takes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from specdec_native.quantization import QUANTIZE_TYPES

CASES = json.loads(
    (Path(__file__).parent.parent / "golden" / "smollm2_135m_q4_1.json").read_text()
)["cases"]
# Highest rise of the mean negative log-likelihood. The source has been through Q4_1 already.
TINY_RISE = {
    "f32": 1e-6, "f16": 0.001, "bf16": 0.002, "q8_0": 0.005, "q6_k": 0.01, "q5_1": 0.03,
    "q5_0": 0.03, "q5_k_m": 0.03, "q5_k_s": 0.03, "q4_1": 0.1, "q4_0": 0.1, "q4_k_m": 0.1,
    "q4_k_s": 0.1, "q3_k_l": 0.25, "q3_k_m": 0.25, "q3_k_s": 0.25, "q2_k": 0.9, "iq4_nl": 0.1,
    "iq4_xs": 0.1, "mxfp4": 0.25, "mxfp4_moe": 0.005,
}  # fmt: skip
REAL_RISE = {
    "f16": 0.002, "q8_0": 0.002, "q6_k": 0.005, "q5_1": 0.015, "q4_0": 0.08, "q4_k_m": 0.03,
    "iq4_nl": 0.06, "q2_k": 0.6,
}  # fmt: skip


def mean_nll(path: Path, texts: list[list[int]]) -> float:
    with sd.Generator(path, draft=None, n_ctx=1024, threads=2, progress=False) as generator:
        scores = [generator.score(ids) for ids in texts]
    return float(np.average(scores, weights=[len(ids) - 1 for ids in texts]))


@pytest.fixture(scope="module")
def wide_model(make_model: Callable[..., Path]) -> Path:
    """A tiny model whose rows are whole blocks of every type."""
    return make_model(width=256, heads=4, kv_heads=2, head_dim=64, ffn=512, layers=2)


@pytest.mark.parametrize("name", QUANTIZE_TYPES)
def test_tiny_model(wide_model: Path, tmp_path: Path, name: str) -> None:
    with sd.Generator(wide_model, draft=None, progress=False) as generator:
        texts = [generator.generate("the cat", max_tokens=100, seed=s).tokens for s in (1, 2)]
    out = tmp_path / "out.gguf"
    assert sd.quantize(wide_model, out, name, progress=False).fallbacks == ()
    before = mean_nll(wide_model, texts)
    assert mean_nll(out, texts) - before < TINY_RISE[name] * before


@pytest.mark.parametrize("name", QUANTIZE_TYPES)
def test_rows_of_64_load_too(tiny_model: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.gguf"
    result = sd.quantize(tiny_model, out, name, progress=False)
    whole = ("f32", "f16", "bf16", "q8_0", "mxfp4", "mxfp4_moe")  # no K type, no Q6_K output
    assert bool(result.fallbacks) == (name not in whole)
    with sd.Generator(out, draft="ngram", progress=False) as generator:
        assert generator.generate("the cat", max_tokens=20, temperature=0).tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_RISE)
def test_real_model(real_model: Path, tmp_path: Path, name: str) -> None:
    texts = [case["ids"] for case in CASES]
    out = tmp_path / "out.gguf"
    sd.quantize(real_model, out, name, threads=2, progress=False)
    before, after = mean_nll(real_model, texts), mean_nll(out, texts)
    assert after - before < REAL_RISE[name] * before


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_native", "quantize", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=120,
        check=False,
    )


def test_command(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run(tiny_model, out, "--type", "Q4_K", "--threads", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{out}: ")
    assert "tensors Q5_0" in done.stdout
    assert done.stdout.count("\n") == 1
    assert (
        "are Q5_0, since their rows are no whole blocks of the type that q4_k means" in done.stderr
    )
    assert "are Q8_0, since their rows" in done.stderr
    pure = run(tiny_model, out, "--type", "q4_k", "--pure")
    assert "Q8_0" not in pure.stdout + pure.stderr


def test_command_json(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = run(tiny_model, out, "-t", "q6_k", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    about = json.loads(done.stdout)
    assert (about["path"], about["type"]) == (str(out), "q6_k")
    assert about["bytes_after"] == out.stat().st_size
    assert about["fallbacks"] == sum(one["fallback"] for one in about["tensors"]) > 0
    assert about["tensors"][0]["from_type"] == "F32"


def test_command_splits(tiny_model: Path, tmp_path: Path) -> None:
    done = run(tiny_model, tmp_path / "out.gguf", "-t", "f32", "--split-size", "300K")
    assert done.returncode == 0, done.stderr
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == [f"out-{i + 1:05}-of-{len(names):05}.gguf" for i in range(len(names))]
    assert done.stdout.startswith(f"{tmp_path / names[0]} and {len(names) - 1} more: ")
    wrong = run(tiny_model, tmp_path / "out.gguf", "-t", "f32", "--split-size", "big")
    assert wrong.returncode == 2
    assert "split size is 'big'" in " ".join(wrong.stderr.split())


def test_command_with_importance_weights(tiny_model: Path, tmp_path: Path) -> None:
    """The older form: entries, then each name, calls, and sums of squares."""
    name = b"blk.0.ffn_up.weight"
    source = tmp_path / "weights.imatrix"
    head = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 1, 64)
    source.write_bytes(head + np.linspace(0, 1, 64, dtype="<f4").tobytes())
    done = run(tiny_model, tmp_path / "out.gguf", "-t", "q4_0", "--imatrix", source)
    assert done.returncode == 0, done.stderr
    assert f"tensors have no weights in {source}: " in done.stderr


def test_command_errors(tiny_model: Path, tmp_path: Path) -> None:
    usage = run(tiny_model, tmp_path / "out.gguf", "--type", "q9")
    assert usage.returncode == 2
    assert "known are f32, f16" in " ".join(usage.stderr.split())
    failed = run(tiny_model, tmp_path / "none" / "out.gguf", "--type", "q4_0")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: cannot write ")
    assert "there is no folder" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert run(tiny_model, tiny_model, "--type", "q4_0").returncode == 1
    assert list(tmp_path.iterdir()) == []
