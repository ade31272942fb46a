"""Drafting with some of the target's own layers, on its own cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support.engine import FILTERED, GREEDY, finish, load, request, run, sized

MODES = {"greedy": GREEDY, "coupled": FILTERED}


@pytest.fixture(scope="module", params=["f32", "q4_0"])
def target(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> _core.Model:
    return load(make_model(dtype=request.param, layers=6, head_dim=32, seed=2))


def some_prompts(vocab: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(21)
    sizes = rng.integers(1, 70, size=count)
    return [[int(t) for t in rng.integers(3, vocab, size=size)] for size in sizes]


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_plain_decoding(target: _core.Model, mode: str) -> None:
    accepted = rejected = 0
    for index, prompt in enumerate(some_prompts(target.vocab, sized(5, 1))):
        fields = {**MODES[mode], "seed": index, "max_tokens": sized(80, 8)}
        plain = run(target, prompt, **fields)
        for layers in ([0], [0, 2, 5], [0, 1, 2, 3, 4, 5]):
            for length in (1, 4, 9)[: sized(3, 2)]:
                drafter = _core.LayerSkipDrafter(target, layers, length)
                result = run(target, prompt, [drafter], **fields)
                assert result.tokens == plain.tokens, (layers, length)
                assert drafter.weight_bytes == drafter.cache_bytes == 0
                accepted += result.stats["accepted"]
                rejected += result.stats["drafted"] - result.stats["accepted"]
    assert accepted > sized(300, 5)
    assert rejected > sized(300, 5)


def test_all_layers_are_always_accepted(target: _core.Model) -> None:
    """The draft pass is then the target's own pass."""
    drafter = _core.LayerSkipDrafter(target, list(range(6)), 5)
    for rule in ("coupled", "rejection"):
        fields = {"acceptance": rule, "temperature": 0.9, "max_tokens": sized(64, 12)}
        result = run(target, [9, 8, 7], [drafter], **fields)
        assert result.stats["accepted"] == result.stats["drafted"] > 0


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_the_cache_of_each_round_is_that_of_plain_decoding(
    target: _core.Model, kv_type: str
) -> None:
    """What a draft wrote is overwritten in every layer, the skipped ones included."""
    for mode in MODES.values():
        prompt = some_prompts(target.vocab, 3)[2]
        fields = {**mode, "seed": 3, "max_tokens": sized(60, 24), "prefill_chunk": 16}
        plain, drafting = (_core.Generator(target, 256, kv_type) for _ in range(2))
        plain.begin([], prompt, request(**fields))
        drafting.begin([_core.LayerSkipDrafter(target, [0, 3], 4)], prompt, request(**fields))
        compared = 0
        while (result := drafting.step()).finish_reason is None:
            generated = drafting.stats()["generated"]
            if not generated:
                continue
            while plain.stats()["generated"] < generated:
                plain.step()
            assert _core.testing.cache_bytes(drafting) == _core.testing.cache_bytes(plain)
            compared += 1
        assert compared > sized(5, 2)
        assert result.finish_reason == "length"
        assert 0 < drafting.stats()["accepted"] < drafting.stats()["drafted"]


def test_an_interrupted_draft_leaves_the_session_sound(target: _core.Model) -> None:
    """Provisional rows never count as the text's, wherever a request ends."""
    prompt = some_prompts(target.vocab, 1)[0]
    plain = run(target, prompt, max_tokens=40, **GREEDY)
    generator = _core.Generator(target, 256, "f16")
    generator.begin([_core.LayerSkipDrafter(target, [0, 3], 6)], prompt, request(**GREEDY))
    tokens: list[int] = []
    while len(tokens) < 12:
        tokens += generator.step().tokens
    generator.cut_output(7, "stop")
    generator.begin([], [*prompt, *plain.tokens[:7]], request(max_tokens=33, **GREEDY))
    assert finish(generator).tokens == plain.tokens[7:]


def test_the_end_of_the_context_is_reached_exactly(target: _core.Model) -> None:
    prompt = list(range(10, 38))
    plain = run(target, prompt, n_ctx=32, max_tokens=100, **GREEDY)
    for length in (1, 3, 64):
        drafter = _core.LayerSkipDrafter(target, [0], length)
        result = run(target, prompt, [drafter], n_ctx=32, max_tokens=100, **GREEDY)
        assert (result.tokens, result.finish_reason) == (plain.tokens, "context")


def test_spread_layers() -> None:
    assert _core.spread_layers(1, 30) == [0]
    assert _core.spread_layers(2, 30) == [0, 29]
    assert _core.spread_layers(3, 5) == [0, 2, 4]
    for total in (1, 2, 7, 30):
        assert _core.spread_layers(total, total) == list(range(total))
        for count in range(2, total + 1):
            layers = _core.spread_layers(count, total)
            assert len(set(layers)) == count
            assert layers == sorted(layers)
            assert (layers[0], layers[-1]) == (0, total - 1)
    for count in (0, 6):
        with pytest.raises(ValueError, match=f"wants {count} layers, but the target has 5"):
            _core.spread_layers(count, 5)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one layer"),
        ([0, 6], r"layer 6 is not one of the target's 6 \(0 to 5\)"),
        ([-1], "layer -1 is not one"),
        ([2, 2], "must ascend, but 2 follows 2"),
    ],
)
def test_layers_are_checked(target: _core.Model, layers: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.LayerSkipDrafter(target, layers, 4)


def test_a_drafter_of_another_target_is_refused(
    target: _core.Model, make_model: Callable[..., Path]
) -> None:
    other = load(make_model(layers=6, seed=9))
    with pytest.raises(sd.Error, match="the model it was made for"):
        run(other, [5, 6], [_core.LayerSkipDrafter(target, [0], 2)], **GREEDY)


def test_names_and_objects(tiny_model: Path) -> None:
    with sd.Generator(tiny_model, draft=None, progress=False) as gen:
        plain = gen.generate("once upon", max_tokens=30, temperature=0)
    for draft in ("layerskip:2", "layerskip:0,3", "layerskip:1,", sd.LayerSkipDraft([0, 1], 2)):
        with sd.Generator(tiny_model, draft=draft, progress=False) as gen:
            result = gen.generate("once upon", max_tokens=30, temperature=0)
            assert result.tokens == plain.tokens
            assert result.stats.drafted > 0
            assert gen.memory()["draft_weights"] == gen.memory()["draft_cache"] == 0
    assert sd.LayerSkipDraft([0, 1]).layers == (0, 1)
    for bad in ("layerskip:", "layerskip:x", "layerskip:1,,2", "layerskip:0"):
        with pytest.raises(ValueError, match="layer"):
            sd.Generator(tiny_model, draft=bad, progress=False)
    with pytest.raises(ValueError, match="wants 9 layers, but the target has 4"):
        sd.Generator(tiny_model, draft="layerskip:9", progress=False)
