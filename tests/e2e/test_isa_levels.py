"""Every instruction-set level gives the same bits; SPECDEC_CPU_ISA forces one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import specdec_native as sd
from model_families import FAMILIES

# Prints the active level, and hashes of logits and of sampled text for each model file.
SCRIPT = """
import hashlib, json, sys
import specdec_native as sd
out = {"active": sd.cpu_info().active}
for path in sys.argv[1:]:
    with sd.Generator(path, draft="ngram", n_ctx=256, progress=False) as gen:
        tokens = [3 + 7 * i % 290 for i in range(100)]
        logits = hashlib.sha256(gen.logits(tokens).tobytes()).hexdigest()
        text = gen.generate(tokens, max_tokens=40, temperature=0.9, top_p=0.9, seed=1).tokens
        out[path] = [logits, hashlib.sha256(repr(text).encode()).hexdigest()]
print(json.dumps(out))
"""


def run_level(level: str, paths: list[str], prefix: tuple[str, ...] = ()) -> dict[str, object]:
    # OPENBLAS_CORETYPE would make NumPy, not us, use instructions that an emulated processor lacks.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    result = subprocess.run(
        [*prefix, sys.executable, "-c", SCRIPT, *paths],
        env={**environment, "SPECDEC_CPU_ISA": level},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def model_paths(make_model: Callable[..., Path]) -> list[str]:
    small = [make_model(dtype=t, layers=2) for t in ("f32", "f16", "bf16", "q4_0", "q5_1", "q8_0")]
    wide = {"width": 256, "heads": 4, "head_dim": 64, "ffn": 512, "layers": 1}
    large = [make_model(dtype=t, **wide) for t in ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K")]
    small += [make_model(dtype=t, layers=1) for t in ("iq4_nl", "mxfp4")]
    large += [make_model(dtype=t, **wide) for t in ("iq4_xs", "iq3_xxs", "iq3_s", "iq2_xxs")]
    large += [make_model(dtype=t, **wide) for t in ("iq2_xs", "iq2_s", "iq1_s", "iq1_m")]
    families = [make_model(family=name, dtype="q8_0", layers=2) for name in FAMILIES]
    return [str(path) for path in (*small, *large, *families)]


def test_all_levels_give_the_same_bits(model_paths: list[str]) -> None:
    info = sd.cpu_info()
    assert info.active in info.detected
    levels = [level for level in info.compiled if level in info.detected]
    results = {level: run_level(level, model_paths) for level in levels}
    for level, result in results.items():
        assert result.pop("active") == level
    assert all(result == results["scalar"] for result in results.values())


@pytest.mark.parametrize("level", ["sse9", "", "AVX2"])
def test_an_unknown_level_is_an_error_that_lists_the_valid_ones(level: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", "import specdec_native as sd; print(sd.cpu_info())"],
        env={**os.environ, "SPECDEC_CPU_ISA": level},
        capture_output=True,
        text=True,
        check=False,
    )
    if level == "":  # as if unset
        assert result.returncode == 0
    else:
        assert "BackendUnavailableError" in result.stderr
        assert "scalar" in result.stderr


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-x86_64 (qemu-user)")
def test_runs_on_a_processor_without_avx(make_model: Callable[..., Path]) -> None:
    """R57: baseline code plus run-time dispatch, on an emulated processor of 2008."""
    path = str(make_model(dtype="q4_0", layers=2))
    emulated = run_level("", [path], ("qemu-x86_64", "-cpu", "Nehalem"))
    assert emulated.pop("active") == "scalar"
    here = run_level("", [path])
    here.pop("active")
    assert emulated == here
