"""The whole engine on the emulated device: what the cpu backend gives, with and without drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support.backends import CUDA_DEVICE
from support.engine import FILTERED, GREEDY, load, run

TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q8_0", "iq4_nl"]
PROMPT = [5, 9, 17, 5, 9, 17, 5, 9, 31, 5, 9]
MODES = {
    "greedy": GREEDY,
    "coupled": FILTERED,
    "rejection": {**FILTERED, "acceptance": "rejection"},
    "penalties": {**FILTERED, "presence_penalty": 0.4, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("dtype", TYPES)
def test_logits_are_those_of_the_cpu_by_bytes(make_model: Callable[..., Path], dtype: str) -> None:
    path = make_model(dtype=dtype, layers=2)
    tokens = [3 + 7 * i % 290 for i in range(70)]
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        with sd.Generator(path, device=device, draft=None, n_ctx=128, progress=False) as gen:
            found.append(gen.logits(tokens))
    assert np.all(np.isfinite(found[0]))
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("dtype", ["q4_K", "q6_K"])
def test_logits_of_superblock_types(make_model: Callable[..., Path], dtype: str) -> None:
    path = make_model(dtype=dtype, width=256, heads=4, head_dim=64, ffn=512, layers=1)
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        with sd.Generator(path, device=device, draft=None, n_ctx=64, progress=False) as gen:
            found.append(gen.logits([3, 4, 5, 6, 7]).tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("mode", "kv_type"), [*((mode, "f16") for mode in MODES), ("coupled", "q8_0")]
)
def test_tokens_with_and_without_drafts(
    make_model: Callable[..., Path], mode: str, kv_type: str
) -> None:
    heads = {"heads": 2, "kv_heads": 1, "head_dim": 32} if kv_type == "q8_0" else {}
    path = make_model(dtype="q4_0", seed=3, **heads)
    model, on_cpu = load(path, CUDA_DEVICE), load(path, "cpu")
    fields = {**MODES[mode], "max_tokens": 40, "seed": 11}
    plain = run(on_cpu, PROMPT, kv_type=kv_type, **fields)
    same_draft = [_core.NgramDrafter(4, 1, 4)], [_core.NgramDrafter(4, 1, 4)]
    drafted = run(on_cpu, PROMPT, same_draft[0], kv_type=kv_type, **fields)
    assert run(model, PROMPT, kv_type=kv_type, **fields).tokens == plain.tokens
    on_device = run(model, PROMPT, same_draft[1], kv_type=kv_type, **fields)
    assert on_device.tokens == drafted.tokens
    assert on_device.stats["drafted"] > 0
    if mode != "rejection":
        assert on_device.tokens == plain.tokens


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
def test_a_draft_model_on_the_same_device(make_model: Callable[..., Path], mode: str) -> None:
    path = make_model(dtype="q4_0", seed=3)
    fields = {**MODES[mode], "max_tokens": 24, "seed": 5}
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        target = load(path, device)
        drafter = _core.DraftModelDrafter(target, 256, "f16", 3)
        found.append(run(target, PROMPT, [drafter], **fields))
    assert found[0].tokens == found[1].tokens
    assert found[0].stats["accepted"] == found[1].stats["accepted"] > 0


def test_log_probabilities(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="f16", layers=1)
    fields = {**GREEDY, "max_tokens": 6, "logprobs": 3}
    found = [run(load(path, device), PROMPT, **fields).logprobs for device in (CUDA_DEVICE, "cpu")]
    assert found[0] == found[1]
    assert len(found[0]) == 6


def test_prefill_in_chunks_of_any_size(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="q8_0", layers=2)
    prompt = [3 + 11 * i % 280 for i in range(90)]
    model = load(path, CUDA_DEVICE)
    texts = {
        tuple(run(model, prompt, **FILTERED, max_tokens=5, prefill_chunk=size).tokens)
        for size in (1, 7, 64, 512)
    }
    assert len(texts) == 1
