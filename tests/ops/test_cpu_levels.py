"""All instruction-set levels and thread counts of the cpu backend give the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specdec_native import _core
from support.backends import make_backend
from support.weights import DTYPES, random_weight

LEVELS = list(_core.cpu_info().detected)
TREE = [-1, -1, 0, 1, 1, 4, 2, 5, 7, 8, 8]


def digests(threads: int) -> dict[str, str]:
    """Every operation on fixed inputs: name -> digest of the resulting bytes."""
    cpu = make_backend("cpu", threads)
    rng = np.random.default_rng(7)
    found: dict[str, str] = {}

    def note(name: str, *arrays: np.ndarray) -> None:
        data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        found[name] = hashlib.sha256(data).hexdigest()

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(0, 1, shape).astype(np.float32)

    for dtype in DTYPES:
        raw, _ = random_weight(dtype, 75, 512, seed=8)
        note(f"matmul {dtype}", cpu.matmul(dtype, raw, 512, floats(11, 512)))
    note("rms_norm", cpu.rms_norm(floats(5, 93), floats(93), 1e-5))
    note("add", cpu.add(floats(101), floats(101)))
    mixes = {"a": ("Q4_0", "Q5_1", "Q8_0"), "b": ("F16", "Q4_1", "F32"), "c": ("Q8_0",) * 3}
    for name, (first, second, third) in mixes.items():
        shapes = ((first, 160, 96), (second, 160, 96), (third, 96, 160))
        mlp = [(t, random_weight(t, n, k, seed=9)[0]) for t, n, k in shapes]
        note(f"mlp {name}", cpu.gated_mlp(floats(13, 96), *mlp))
        for layout in ("interleaved", "halves"):
            shapes = ((first, 96, 64), (second, 48, 64), (third, 48, 64))
            qkv = [(t, random_weight(t, n, k, seed=10)[0]) for t, n, k in shapes]
            cache = _core.testing.Cache(cpu, "F16", 1, 2, 24, 32)
            parents = np.arange(-1, 8, dtype=np.int32)
            q = cpu.qkv_rope_store(
                cache, 0, floats(9, 64), *qkv, 3, parents, floats(9, 8, 2), layout
            )
            note(f"qkv {name} {layout}", q, cache.keys(), cache.values())
    heads = ((64, 200, "F16"), (80, 61, "F32"), (12, 0, "F16"), (128, 64, "F32"), (96, 77, "Q8_0"))
    heads += ((32, 1100, "F16"),)  # more than a span
    qkv = [("Q4_0", random_weight("Q4_0", 160, 96, seed=11)[0])] * 3
    cache = _core.testing.Cache(cpu, "Q8_0", 1, 1, 160, 32)
    parents = np.arange(-1, 8, dtype=np.int32)
    cpu.qkv_rope_store(cache, 0, floats(9, 96), *qkv, 3, parents, floats(9, 8, 2))
    note("qkv q8_0", cache.keys(), cache.values())
    for dim, base, kind in heads:
        cache = _core.testing.Cache(cpu, kind, 1, 2, dim, base + 56)
        cache.set(floats(1, 2, base + 56, dim), floats(1, 2, base + 56, dim))
        tree = np.array(TREE, np.int32)
        note(f"attention {dim}", cpu.attention(cache, 0, floats(11, 6, dim), base, tree, 0.1))
    logits = floats(5000) * 4
    weights, total = cpu.distribution(logits, temperature=0.8, top_k=200, top_p=0.9)
    draws = [cpu.draw(weights, seed, 3) for seed in range(50)]
    note("sampling", weights, np.array([total], np.uint64), np.array(draws))
    chain = {"repetition_penalty": 1.3, "presence_penalty": 0.2, "logit_bias": {9: 1.5}}
    typical, total = cpu.distribution(
        logits,
        temperature=1.4,
        top_k=900,
        typical_p=0.7,
        top_p=0.9,
        min_p=0.01,
        prompt=[1, 2],
        output=[2, 3, 3],
        **chain,
    )
    note("chain", typical, np.array([total], np.uint64))
    for size in (5000, 4999, 17):
        own, best = cpu.log_probabilities(logits[:size], 11, 12)
        note(f"log_probabilities {size}", np.array([own], np.float32), np.array(best))
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return digests(threads=1)


@pytest.mark.parametrize("threads", [2, 3])
def test_thread_counts_agree(expected, threads):
    assert digests(threads) == expected


@pytest.mark.parametrize("level", LEVELS)
def test_levels_agree(expected, level):
    here = Path(__file__).resolve()
    code = (
        "import json; from specdec_native import _core; import test_cpu_levels as t; "
        "print(json.dumps([_core.cpu_info().active, t.digests(2)]))"
    )
    folders = [*sys.path, str(here.parent), str(here.parent.parent)]
    env = {**os.environ, "SPECDEC_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(folders)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    active, found = json.loads(out.stdout)
    assert active == level
    assert found == expected


@pytest.mark.parametrize("level", ["mmx", "AVX2 ", "neon_dotprod_9"])
def test_an_unknown_level_is_an_error_that_lists_the_valid_ones(level):
    code = "from specdec_native import _core; _core.testing.Backend('cpu', 1)"
    env = {**os.environ, "SPECDEC_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert out.returncode != 0
    assert "BackendUnavailableError" in out.stderr
    assert all(name in out.stderr for name in LEVELS)
