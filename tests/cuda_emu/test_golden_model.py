"""The real model on the CUDA kernels: the reference's figures, and the bytes of the cpu backend."""

from __future__ import annotations

from pathlib import Path

import specdec_native as sd
from support.backends import CUDA_DEVICE
from support.golden import CASES, assert_follows, log_probability_differences

SHORT = [case for case in CASES if len(case["ids"]) < 16]


def test_eight_tokens_and_the_likeliest_ten(real_model: Path) -> None:
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        with sd.Generator(real_model, device=device, draft=None, n_ctx=64, progress=False) as gen:
            differences = log_probability_differences(gen, SHORT[:2])
            tokens = gen.generate(SHORT[0]["ids"], max_tokens=8, temperature=0).tokens
            found.append((differences, tokens))
    assert found[0] == found[1]
    assert max(found[0][0]) < 0.6
    assert len(found[0][1]) == 8
    assert_follows(found[0][1], SHORT[0])
