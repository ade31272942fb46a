"""The loop's own behaviour: limits, stops, provenance, cancellation, drafts that run out."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_model import cut_layers
from specdec_native import _core
from support.chi_square import fit_p_value
from support.engine import GREEDY, finish, load, request, run, sized
from support.joint_distribution import joint_probabilities

PROMPT = [40, 41, 42, 43, 44, 45]


@pytest.fixture(scope="module")
def target(tiny_model: Path) -> _core.Model:
    return load(tiny_model)


@pytest.fixture(scope="module")
def draft(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> _core.Model:
    return load(cut_layers(tiny_model, tmp_path_factory.mktemp("cut") / "cut.gguf", 2))


def self_draft(model: _core.Model, length: int, n_ctx: int = 512) -> _core.Drafter:
    return _core.DraftModelDrafter(model, n_ctx, "f16", length)


def test_a_model_drafting_for_itself_is_always_accepted(target: _core.Model) -> None:
    """R8: and the sources say who proposed each token."""
    result = run(target, PROMPT, [self_draft(target, 2)], max_tokens=5, **GREEDY)
    assert result.sources == ["draft", "draft", "target", "draft", "draft"]
    for length in (1, 3, 8):
        long = run(target, PROMPT, [self_draft(target, length)], max_tokens=100, **GREEDY)
        assert long.stats["accepted"] == long.stats["drafted"] > 0


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_model_drafting_for_itself_is_accepted_when_sampling(
    target: _core.Model, rule: str
) -> None:
    result = run(target, PROMPT, [self_draft(target, 4)], temperature=0.9, acceptance=rule)
    assert result.stats["accepted"] == result.stats["drafted"] > 0


def test_rejection_drafts_with_noise_of_its_own(target: _core.Model) -> None:
    """Drawn with the target's noise, drafts would not be independent of the recovered token."""
    fields = {"temperature": 2.0, "max_tokens": 40, "seed": 5}
    coupled = run(target, PROMPT, [self_draft(target, 4)], acceptance="coupled", **fields)
    rejection = run(target, PROMPT, [self_draft(target, 4)], acceptance="rejection", **fields)
    assert coupled.sources == rejection.sources
    assert sum(a == b for a, b in zip(coupled.tokens, rejection.tokens, strict=True)) < 20


@pytest.mark.parametrize("adaptive", [False, True])
def test_engine_runs_of_rejection_fit_the_target(
    target: _core.Model, draft: _core.Model, adaptive: bool
) -> None:
    """The joint distribution of two consecutive tokens, over whole engine runs, is the target's."""
    filters = {"temperature": 1.3, "top_k": 4}
    prompt = [12, 200, 77]
    exact = joint_probabilities(target, prompt, 1.3)
    assert min(exact.values()) > 1e-3
    generator = _core.Generator(target, 64, "f16")
    drafter = _core.DraftModelDrafter(draft, 64, "f16", 2)
    drafter.adaptive = adaptive
    counts, outcomes = dict.fromkeys(exact, 0), set()
    for seed in range(sized(20_000, 200, sanitized=2000)):
        fields = {"seed": seed, "max_tokens": 2, "acceptance": "rejection", **filters}
        generator.begin([drafter], prompt, request(**fields))
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        outcomes.add(tuple(result.sources))
    # Accepted, rejected at once, rejected later; an adaptive one may be asked for one token only.
    assert len(outcomes) >= (2 if adaptive else 3)
    observed = np.array([counts[pair] for pair in exact])
    expected = np.array([exact[pair] for pair in exact])
    assert fit_p_value(observed, expected) > 1e-3


@pytest.mark.parametrize("length", [1, 5, 64])
def test_context_end_is_reached_exactly(target: _core.Model, length: int) -> None:
    """R10: drafting never runs past the end of the context."""
    prompt = list(range(10, 38))
    plain = run(target, prompt, n_ctx=32, max_tokens=100, **GREEDY)
    assert plain.finish_reason == "context"
    assert len(plain.tokens) == 4
    for drafter in (self_draft(target, length, 32), _core.NgramDrafter(length, 1, 4)):
        result = run(target, prompt, [drafter], n_ctx=32, max_tokens=100, **GREEDY)
        assert (result.tokens, result.finish_reason) == (plain.tokens, "context")


def test_a_limit_that_equals_the_room_is_a_length_finish(target: _core.Model) -> None:
    result = run(target, list(range(10, 38)), n_ctx=32, max_tokens=4, **GREEDY)
    assert (len(result.tokens), result.finish_reason) == (4, "length")
    assert run(target, PROMPT, max_tokens=0).finish_reason == "length"


def test_a_prompt_that_fills_the_context_is_an_error(target: _core.Model) -> None:
    with pytest.raises(sd.ContextFullError, match=r"32 tokens.*holds 32"):
        run(target, list(range(10, 42)), n_ctx=32)


def test_a_draft_with_a_shorter_context_sits_out(target: _core.Model) -> None:
    """R11: beyond the draft's context decoding goes on without it."""
    plain = run(target, PROMPT, max_tokens=100, **GREEDY)
    for n_ctx in (2, 7, 20):
        for adaptive in (False, True):
            drafter = self_draft(target, 4, n_ctx)
            drafter.adaptive = adaptive
            result = run(target, PROMPT, [drafter], max_tokens=100, **GREEDY)
            assert result.tokens == plain.tokens
            if n_ctx == 20 and not adaptive:
                assert result.stats["drafted"] > 0
    # A lookup goes on where the draft model cannot.
    both = [self_draft(target, 4, 2), _core.SuffixDrafter(4, 1, 8, 1, 0.02)]
    result = run(target, PROMPT * 3, both, max_tokens=60, **GREEDY)
    assert result.stats["drafted"] > 0


def test_a_shorter_draft_context_is_warned_of_once(tiny_model: Path) -> None:
    """R11: when it is loaded; decoding goes on beyond it."""
    draft = sd.DraftModel(tiny_model, n_ctx=32, max_draft=3, adaptive=False)
    with pytest.warns(UserWarning, match=r"draft's context of 32 .* target's of 128") as caught:
        generator = sd.Generator(tiny_model, draft=draft, n_ctx=128, progress=False)
    prompt = [int(t) for t in np.random.default_rng(4).integers(3, 300, size=100)]
    with warnings.catch_warnings(), generator:
        warnings.simplefilter("error")
        out = generator.generate(prompt, temperature=0)
        assert (len(out.tokens), out.finish_reason) == (28, "context")
        assert out.stats.drafted == 0
        assert generator.generate(prompt[:10], max_tokens=10, temperature=0).stats.drafted > 0
    assert len(caught) == 1


@pytest.mark.parametrize("stop_at", [1, 2, 3, 7, 11])
def test_a_stop_token_inside_an_accepted_run_cuts_everything(
    target: _core.Model, stop_at: int
) -> None:
    """R18: any stop token ends the text, wherever in a round it falls."""
    plain = run(target, PROMPT, max_tokens=40, **GREEDY)
    stop = plain.tokens[stop_at]
    expected = plain.tokens[: plain.tokens.index(stop) + 1]
    for length in (0, 1, 4, 16):
        drafters = [self_draft(target, length)] if length else []
        generator = _core.Generator(target, 512, "f16")
        generator.begin(drafters, PROMPT, request(stop_tokens=[299, stop], **GREEDY))
        result = finish(generator)
        assert (result.tokens, result.finish_reason) == (expected, "stop")
        # The session goes on from exactly there.
        generator.begin(drafters, [*PROMPT, *expected], request(max_tokens=20, **GREEDY))
        after = finish(generator)
        assert after.tokens == run(target, [*PROMPT, *expected], max_tokens=20, **GREEDY).tokens
        assert after.stats["reused_tokens"] == len(PROMPT) + len(expected) - 1


def test_cut_output_keeps_the_session_usable(target: _core.Model) -> None:
    plain = run(target, PROMPT, max_tokens=30, **GREEDY)
    generator = _core.Generator(target, 512, "f16")
    generator.begin([self_draft(target, 8)], PROMPT, request(**GREEDY))
    tokens: list[int] = []
    while len(tokens) < 6:
        tokens += generator.step().tokens
    generator.cut_output(3, "stop")
    assert generator.step().finish_reason == "stop"
    generator.begin([], [*PROMPT, *plain.tokens[:3]], request(max_tokens=27, **GREEDY))
    assert finish(generator).tokens == plain.tokens[3:]


@pytest.mark.parametrize("rejected_at", range(5))
def test_a_rejection_at_each_place_leaves_both_caches_right(
    target: _core.Model, draft: _core.Model, rejected_at: int
) -> None:
    """R8: whatever was rejected, the next proposals equal those of a fresh drafter."""
    plain = run(target, PROMPT, max_tokens=60, **GREEDY)
    # Prompts that end at each offset make the cut draft fail at different places.
    prompt = [*PROMPT, *plain.tokens[:rejected_at]]
    used = _core.DraftModelDrafter(draft, 512, "f16", 5)
    first = run(target, prompt, [used], max_tokens=40, **GREEDY)
    again = run(target, prompt, [used], max_tokens=40, **GREEDY)
    fresh = run(
        target, prompt, [_core.DraftModelDrafter(draft, 512, "f16", 5)], max_tokens=40, **GREEDY
    )
    for result in (again, fresh):
        assert result.tokens == first.tokens
        assert result.sources == first.sources
        assert result.stats["drafted"] == first.stats["drafted"]


def test_proposals_do_not_depend_on_the_history_of_rounds(
    target: _core.Model, draft: _core.Model
) -> None:
    """Design, invariant 3, for every drafter: random cuts against a fresh drafter."""
    rng = np.random.default_rng(3)
    makers: list[Callable[[], _core.Drafter]] = [
        lambda: _core.DraftModelDrafter(draft, 512, "f16", 4),
        lambda: _core.NgramDrafter(4, 1, 3),
        lambda: _core.LayerSkipDrafter(target, [0, 3], 4),
        lambda: _core.SuffixDrafter(4, 1, 3, 2, 0.02),
    ]
    for make in makers:
        used = make()
        text = [int(t) for t in rng.integers(3, 12, size=20)]
        for _ in range(30):
            fields = {"temperature": 0.0, "max_tokens": 5}
            with_used = run(target, text, [used], **fields)
            with_fresh = run(target, text, [make()], **fields)
            assert with_used.stats["drafted_at"] == with_fresh.stats["drafted_at"]
            assert with_used.sources == with_fresh.sources
            keep = int(rng.integers(1, len(text) + 1))
            text = [*text[:keep], *(int(t) for t in rng.integers(3, 12, size=rng.integers(1, 9)))]


def test_cancel_ends_the_request_and_nothing_else(target: _core.Model) -> None:
    generator = _core.Generator(target, 512, "f16")
    generator.begin([self_draft(target, 4)], PROMPT, request(**GREEDY))
    seen = generator.step().tokens + generator.step().tokens + generator.step().tokens
    generator.cancel()
    assert generator.step().finish_reason == "cancelled"
    assert generator.step().finish_reason == "cancelled"
    generator.begin([], PROMPT, request(max_tokens=20, **GREEDY))
    result = finish(generator)
    assert result.tokens == run(target, PROMPT, max_tokens=20, **GREEDY).tokens
    assert result.tokens[: len(seen)] == seen


def test_cancel_ends_a_pass_between_two_layers(make_model: Callable[..., Path]) -> None:
    """The pass that is running does not go on to its end: its rows are not in the cache."""
    model = load(make_model(width=256, heads=8, ffn=1024, layers=8, context=8192))
    prompt = [int(t) for t in np.random.default_rng(1).integers(3, 300, size=4000)]
    generator = _core.Generator(model, 4096, "f16")
    generator.begin([], prompt, request(prefill_chunk=4096, **GREEDY))
    timer = threading.Timer(0.02, generator.cancel)
    timer.start()
    assert generator.step().finish_reason == "cancelled"
    timer.join()
    generator.begin([], prompt, request(max_tokens=0, **GREEDY))
    assert generator.stats()["reused_tokens"] == 0


def test_two_threads_on_one_engine_get_busy(target: _core.Model) -> None:
    """R38: a second caller is refused, never a race."""
    generator = _core.Generator(target, 512, "f16")
    prompt = [int(t) for t in np.random.default_rng(1).integers(3, 300, size=400)]
    generator.begin([], prompt, request(max_tokens=60, **GREEDY))
    errors: list[Exception] = []
    ends: list[str] = []

    def work() -> None:
        while not ends:
            try:
                if (reason := generator.step().finish_reason) is not None:
                    ends.append(reason)
            except sd.BusyError as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(ends) == {"length"}
    assert generator.stats()["generated"] == 60


def test_token_ids_are_checked(target: _core.Model) -> None:
    for bad in (-1, 300, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"token id {bad} at index 1"):
            run(target, [5, bad])
    with pytest.raises(ValueError, match="no tokens"):
        run(target, [])


def test_seeds(target: _core.Model) -> None:
    """R4: the same seed repeats, another differs; a neighbour has no effect."""
    fields = {"temperature": 2.0, "max_tokens": 40}
    first = run(target, PROMPT, seed=1, **fields).tokens
    assert run(target, PROMPT, seed=1, **fields).tokens == first
    assert run(target, PROMPT, seed=2, **fields).tokens != first
    assert run(target, PROMPT, seed=2**63, **fields).tokens != first
    assert run(target, PROMPT, seed=2**63 + 1, **fields).tokens != first
    mine, other = (_core.Generator(target, 512, "f16") for _ in range(2))
    mine.begin([], PROMPT, request(seed=1, **fields))
    other.begin([], PROMPT, request(seed=9, **fields))
    tokens: list[int] = []
    while len(tokens) < 40:
        tokens += mine.step().tokens
        other.step()
    assert tokens == first


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_holds_at_every_position(
    target: _core.Model, draft: _core.Model, temperature: float, rule: str
) -> None:
    """The mask of a position is that of the prefix it really has, drafted tokens included."""
    fields = {"temperature": temperature, "max_tokens": 60, "acceptance": rule}
    masks = [_core.testing.StepMask(5) for _ in range(3)]
    plain = run(target, PROMPT, mask=masks[0], **fields)
    steps = np.diff([PROMPT[-1], *plain.tokens]) % 300
    assert ((steps >= 1) & (steps <= 5)).all()
    for mask, drafter in zip(
        masks[1:],
        (self_draft(target, 4), _core.DraftModelDrafter(draft, 512, "f16", 4)),
        strict=True,
    ):
        result = run(target, PROMPT, [drafter], mask=mask, **fields)
        assert ((np.diff([PROMPT[-1], *result.tokens]) % 300 - 1) <= 4).all()
        if rule == "coupled" or temperature == 0.0:
            assert result.tokens == plain.tokens
