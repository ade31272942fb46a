"""Passes that are recorded once and repeated: the same bits at other positions and for other trees.

What a pass should read from memory, but has among its arguments, is wrong when it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE
from support.engine import FILTERED, GREEDY, finish, load, request

PROMPT = [5, 9, 17, 5, 9, 17, 5, 9, 31, 5, 9]


def text(model: _core.Model, drafters: list[_core.Drafter], **fields: Any) -> Any:
    """(tokens, recordings of the target) of a request."""
    generator = _core.Generator(model, 256, "f16")
    generator.begin(drafters, PROMPT, request(**fields))
    tokens = finish(generator).tokens
    return tokens, _core.testing.recordings(generator)


def test_plain_decoding_over_several_chunks_of_the_cache(make_model: Callable[..., Path]) -> None:
    """Positions 11 to 140: one, two and three chunks of 64, the last of them rounded to four."""
    path = make_model(dtype="q4_0", seed=3, layers=1)
    fields = {**GREEDY, "max_tokens": 130}
    on_device, (recorded, repeated) = text(load(path, CUDA_DEVICE), [], **fields)
    assert on_device == text(load(path), [], **fields)[0]
    assert recorded >= 3
    assert recorded + repeated > 110


@pytest.mark.parametrize("branches", [0, 2])
def test_drafts_of_a_model(make_model: Callable[..., Path], branches: int) -> None:
    """Chains and trees, which differ from round to round though their passes are one recording."""
    path = make_model(dtype="q4_0", seed=3, layers=2)
    fields = {**FILTERED, "max_tokens": 60, "seed": 7}
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        model = load(path, device)
        drafter = _core.DraftModelDrafter(model, 256, "f16", 4, branches=branches)
        found.append(text(model, [drafter], **fields))
    assert found[0][0] == found[1][0]
    recorded, repeated = found[0][1]
    assert repeated > recorded > 0
    assert found[1][1] == (0, 0)


def test_drafts_beyond_a_span_of_the_cache(make_model: Callable[..., Path]) -> None:
    """Passes of six rows behind 500 to 530 positions: the results of one span, then of two."""
    path = make_model(dtype="q4_0", seed=3, layers=2)
    prompt = [3 + 7 * i % 290 for i in range(500)]
    found = []
    for device in ("cuda_emu", "cpu"):
        model = load(path, device)
        generator = _core.Generator(model, 600, "f16")
        generator.begin(
            [_core.LayerSkipDrafter(model, [0], 5)],
            prompt,
            request(**FILTERED, max_tokens=50, seed=7),
        )
        found.append((finish(generator).tokens, _core.testing.recordings(generator)))
    assert found[0][0] == found[1][0]
    assert found[0][1][1] > 0


def test_layers_that_change_from_pass_to_pass(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="f16", seed=3, layers=3)
    fields = {**FILTERED, "max_tokens": 40, "seed": 7}
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        model = load(path, device)
        found.append(text(model, [_core.LayerSkipDrafter(model, [0, 2], 3)], **fields))
    assert found[0][0] == found[1][0]
    assert found[0][1][1] > 0


@pytest.mark.parametrize("family", ["gemma3", "mistral3", "qwen3", "qwen2moe"])
def test_other_families(make_model: Callable[..., Path], family: str) -> None:
    """What depends on the position: two tables of angles, scales of queries, windows."""
    path = make_model(family=family, dtype="q8_0", layers=2)
    fields = {**GREEDY, "max_tokens": 80}
    on_device, (_, repeated) = text(load(path, CUDA_DEVICE), [], **fields)
    assert on_device == text(load(path), [], **fields)[0]
    assert repeated > 0


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral", "gpt-oss"])
@pytest.mark.parametrize("kind", ["chain", "tree", "lookup"])
def test_mixtures_with_drafters(make_model: Callable[..., Path], family: str, kind: str) -> None:
    """The rows of a recorded verify pass go to other experts each time."""
    path = make_model(family=family, dtype="q8_0", layers=2, seed=3)
    fields = {**FILTERED, "max_tokens": 48, "seed": 7}
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        model = load(path, device)
        if kind == "lookup":
            drafter = _core.SuffixDrafter(6, 1, 8, 3, 0.01)
        else:
            branches = 2 if kind == "tree" else 0
            drafter = _core.DraftModelDrafter(model, 256, "f16", 4, branches=branches)
        found.append(text(model, [drafter], **fields))
    plain = text(load(path), [], **fields)
    assert found[0][0] == found[1][0] == plain[0]
    recorded, repeated = found[0][1]
    assert recorded > 0
    assert repeated > 0


def test_a_text_begun_anew_on_recorded_passes(make_model: Callable[..., Path]) -> None:
    """The position falls back, and a long prompt in between makes all scratch memory move."""
    path = make_model(dtype="q8_0", seed=3, layers=2)
    texts = []
    for device in (CUDA_DEVICE, "cpu"):
        generator = _core.Generator(load(path, device), 256, "f16")
        tokens: list[list[int]] = []
        for prompt in (PROMPT, PROMPT[::-1], [3 + 7 * i % 290 for i in range(150)], PROMPT[2:]):
            generator.begin([], prompt, request(**FILTERED, max_tokens=20, seed=3))
            tokens.append(finish(generator).tokens)
        texts.append(tokens)
    assert texts[0] == texts[1]
