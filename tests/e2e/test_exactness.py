"""P1: the tokens are the same with any drafter, draft length, thread count or prefill chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from make_tiny_model import cut_layers
from specdec_native import _core
from support.engine import FILTERED, GREEDY, finish, load, request, run, sized

MAX_TOKENS = sized(128, 14)
PROMPT_COUNT = sized(20, 2, sanitized=5)
LENGTHS = (1, 2, 4, 8, 16)[: sized(5, 3) : sized(1, 2)]
MODES = {"greedy": GREEDY, "coupled": FILTERED}


def prompts(vocab: int) -> list[list[int]]:
    """Twenty varied prompts: short, long, repetitive, random."""
    rng = np.random.default_rng(7)
    out = []
    for i in range(PROMPT_COUNT):
        length = int(rng.integers(1, sized(90, 24)))
        words = rng.integers(3, vocab, size=length)
        if i % 4 == 1:  # a loop, which lookup drafting likes
            words = np.tile(words[: max(1, length // 6)], 7)[:length]
        if i % 4 == 2:  # few distinct tokens
            words = rng.integers(3, 12, size=length)
        out.append([int(w) for w in words])
    return out


@pytest.fixture(scope="module", params=["q4_0", "f16"])
def models(
    request: pytest.FixtureRequest, make_model: Callable[..., Path], tmp_path_factory: Any
) -> tuple[Path, Path]:
    """A tiny target and its layer-cut copy."""
    target = make_model(dtype=request.param, seed=3)
    draft = tmp_path_factory.mktemp("cut") / "cut.gguf"
    return target, cut_layers(target, draft, 2)


def drafter_sets(
    draft: _core.Model, length: int
) -> dict[str, Callable[[], Sequence[_core.Drafter]]]:
    return {
        "ngram": lambda: [_core.NgramDrafter(length, 1, 4)],
        "suffix": lambda: [suffix(length)],
        "draft": lambda: [_core.DraftModelDrafter(draft, 512, "f16", length)],
        "both": lambda: [
            _core.NgramDrafter(length, 3, 4),
            _core.DraftModelDrafter(draft, 512, "f16", length),
        ],
        "adaptive": lambda: adaptive(
            suffix(length),
            _core.NgramDrafter(length, 1, 4),
            _core.DraftModelDrafter(draft, 512, "f16", length),
        ),
        "adaptive and fixed": lambda: [
            *adaptive(_core.DraftModelDrafter(draft, 512, "f16", length)),
            suffix(length),
        ],
    }


def suffix(length: int) -> _core.Drafter:
    """One that guesses boldly, in trees."""
    return _core.SuffixDrafter(length, 1, 8, 3, 0.01)


def adaptive(*drafters: _core.Drafter) -> list[_core.Drafter]:
    for drafter in drafters:
        drafter.adaptive = True
    return list(drafters)


@pytest.mark.parametrize("mode", MODES)
def test_every_drafter_and_length_gives_the_plain_tokens(
    models: tuple[Path, Path], mode: str
) -> None:
    target, draft = load(models[0]), load(models[1])
    accepted = rejected = 0
    for index, prompt in enumerate(prompts(target.vocab)):
        fields = {**MODES[mode], "seed": index, "max_tokens": MAX_TOKENS}
        plain = run(target, prompt, **fields)
        assert len(plain.tokens) == MAX_TOKENS
        assert set(plain.sources) == {"target"}
        for length in LENGTHS:
            for name, make in drafter_sets(draft, length).items():
                if (name == "both" or "adaptive" in name) and length not in (4, 16):
                    continue
                speculative = run(target, prompt, make(), **fields)
                assert speculative.tokens == plain.tokens, (name, length, index)
                accepted += speculative.stats["accepted"]
                rejected += speculative.stats["drafted"] - speculative.stats["accepted"]
    # The test means something only where both outcomes occurred, often.
    assert accepted > sized(1000, 5, sanitized=200)
    assert rejected > sized(1000, 5, sanitized=200)


@pytest.mark.parametrize("mode", MODES)
def test_threads_and_prefill_chunks_change_nothing(models: tuple[Path, Path], mode: str) -> None:
    one, two = load(models[0], threads=1), load(models[0], threads=2)
    draft = load(models[1], threads=1)
    for index, prompt in enumerate(prompts(one.vocab)):
        fields = {**MODES[mode], "seed": index, "max_tokens": sized(48, 4)}
        plain = run(one, prompt, **fields)
        for model in (one, two):
            for chunk in (1, 7, 512):
                drafter = _core.DraftModelDrafter(draft, 512, "f16", 4)
                speculative = run(model, prompt, [drafter], prefill_chunk=chunk, **fields)
                assert speculative.tokens == plain.tokens, (chunk, index)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_logits_of_any_width_equal_serial_decoding_by_bytes(
    make_model: Callable[..., Path], device: str, kv_type: str
) -> None:
    """R41: a pass of several tokens gives, to the bit, what passes of one token give."""
    model = load(make_model(dtype="q4_1", seed=5, head_dim=32), device)
    rng = np.random.default_rng(11)
    tokens = [int(t) for t in rng.integers(3, model.vocab, size=100)]
    serial = _core.Generator(model, 256, kv_type)
    expected = np.concatenate([serial.logits(tokens[: i + 1], i) for i in range(len(tokens))])
    for width in range(1, 17):
        wide = _core.Generator(model, 256, kv_type)
        rows = [
            wide.logits(tokens[: first + width], first) for first in range(0, len(tokens), width)
        ]
        np.testing.assert_array_equal(
            np.concatenate(rows).view(np.uint32)[: len(tokens)], expected.view(np.uint32)
        )


def test_several_tokens_over_a_cache_see_what_single_ones_see(
    make_model: Callable[..., Path],
) -> None:
    """R43: the causal mask of a pass of several tokens over a cache, with grouped queries."""
    model = load(make_model(dtype="f32", seed=5, layers=2))
    tokens = [int(t) for t in np.random.default_rng(1).integers(3, 300, size=70)]
    single = _core.Generator(model, 128, "f16")
    for prefix in (1, 2, 63, 64, 65):
        whole = tokens[: prefix + 3]
        expected = [single.logits(whole[: prefix + i + 1], prefix + i)[0] for i in range(3)]
        wide = _core.Generator(model, 128, "f16")
        wide.logits(whole[:prefix], prefix - 1)
        assert np.array_equal(wide.logits(whole, prefix), np.array(expected))
        # What comes later is not seen: another last token changes no row before it.
        other = _core.Generator(model, 128, "f16").logits([*whole[:-1], whole[-1] % 290 + 5], 0)
        again = _core.Generator(model, 128, "f16").logits(whole, 0)
        assert np.array_equal(other[:-1], again[:-1])
        assert not np.array_equal(other[-1], again[-1])


@pytest.mark.parametrize("mode", MODES)
def test_a_q8_0_cache_gives_the_plain_tokens(
    make_model: Callable[..., Path], tmp_path: Path, mode: str
) -> None:
    path = make_model(dtype="q4_0", seed=3, head_dim=32)
    target, draft = load(path), load(cut_layers(path, tmp_path / "cut.gguf", 2))
    accepted = 0
    for index, prompt in enumerate(prompts(target.vocab)[:8]):
        fields = {**MODES[mode], "seed": index, "max_tokens": sized(96, 12), "kv_type": "q8_0"}
        plain = run(target, prompt, **fields)
        for drafter in (
            _core.NgramDrafter(8, 1, 4),
            _core.DraftModelDrafter(draft, 512, "q8_0", 5),
        ):
            speculative = run(target, prompt, [drafter], **fields)
            assert speculative.tokens == plain.tokens, index
            accepted += speculative.stats["accepted"]
    assert accepted > sized(200, 1)


def test_reused_prefix_gives_the_tokens_of_a_cold_start(tiny_model: Path, tmp_path: Path) -> None:
    """R13: same prompt twice, a prefix of it, an edited middle, a draft attached on turn 2."""
    model = load(tiny_model)
    draft = load(cut_layers(tiny_model, tmp_path / "cut.gguf", 2))
    base = [int(t) for t in np.random.default_rng(2).integers(3, 300, size=60)]
    edited = [*base[:30], 17, 18, *base[32:]]
    shared = _core.Generator(model, 512, "f16")
    drafter = _core.DraftModelDrafter(draft, 512, "f16", 4)
    for turn, prompt in enumerate([base, base, base[:20], edited, base, [5]]):
        drafters = [] if turn == 0 else [drafter]
        fields = {"temperature": 0.0, "max_tokens": sized(64, 12)}
        shared.begin(drafters, prompt, request(**fields))
        warm = finish(shared)
        assert warm.tokens == run(model, prompt, **fields).tokens, turn
        if turn in (1, 2):
            assert warm.stats["reused_tokens"] == len(prompt) - 1
