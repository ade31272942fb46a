"""Drafts that propose a part of their vocabulary, and drafts with another one: nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_model import cut_layers
from specdec_native import _core
from specdec_native.text import Tokenizer, Vocabulary
from specdec_native.text.translation import TokenTranslator, shared_tokens
from support.chi_square import fit_p_value
from support.engine import FILTERED, GREEDY, finish, load, request, run
from support.joint_distribution import joint_probabilities
from support.toy_vocabulary import gpt2_metadata, llama_metadata

MODES = {"greedy": GREEDY, "coupled": FILTERED, "warm": {"temperature": 1.3}}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"max_draft": 5},
    "tree": {"max_draft": 8, "branches": 3},
}
SCORED = list(range(3, 300, 3))


@pytest.fixture(scope="module")
def paths(make_model: Callable[..., Path], tmp_path_factory: Any) -> tuple[Path, Path]:
    target = make_model(dtype="q4_0", seed=3)
    return target, cut_layers(target, tmp_path_factory.mktemp("cut") / "cut.gguf", 3)


@pytest.fixture(scope="module")
def target(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[0])


@pytest.fixture(scope="module")
def draft(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[1])


def reduced(draft: _core.Model, scored: list[int] | None = None, **shape: Any) -> Any:
    made = _core.DraftModelDrafter(draft, 512, "f16", **shape)
    made.reduce_vocabulary(SCORED if scored is None else scored)
    return made


# --- A reduced vocabulary ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_tokens_are_those_of_plain_decoding(
    target: _core.Model, draft: _core.Model, shape: str, mode: str
) -> None:
    rng = np.random.default_rng(5)
    accepted = 0
    for seed in range(4):
        prompt = [int(t) for t in rng.integers(3, 300, size=rng.integers(1, 120))]
        fields = {**MODES[mode], "seed": seed, "max_tokens": 70, "prefill_chunk": 16}
        plain = run(target, prompt, **fields)
        result = run(target, prompt, [reduced(draft, **SHAPES[shape])], **fields)
        assert result.tokens == plain.tokens
        accepted += result.stats["accepted"]
    assert accepted > 20


def test_it_proposes_the_likeliest_of_what_it_scores(
    target: _core.Model, draft: _core.Model
) -> None:
    """The scored tokens, and those of the text up to a multiple of 64 tokens."""
    prompt = [int(t) for t in np.random.default_rng(2).integers(3, 300, size=70)]
    recorder = _core.testing.ProposalRecorder(reduced(draft, max_draft=3))
    run(target, prompt, [recorder], max_tokens=50, **GREEDY)
    text = [*prompt, *run(target, prompt, max_tokens=50, **GREEDY).tokens]
    outside = 0
    for size, tokens, *_ in recorder.proposals:
        allowed = sorted({*SCORED, *text[: size // 64 * 64]})
        for place, token in enumerate(tokens):
            context = [*text[:size], *tokens[:place]]
            logits = _core.Generator(draft, 512, "f16").logits(context, len(context) - 1)[0]
            assert token == allowed[int(np.argmax(logits[allowed]))]
            outside += token not in SCORED
    assert len(recorder.proposals) > 5
    assert outside > 0


def test_proposals_do_not_depend_on_the_history_of_rounds(
    target: _core.Model, draft: _core.Model
) -> None:
    rng = np.random.default_rng(3)
    used = reduced(draft, max_draft=4)
    generator = _core.Generator(target, 512, "f16")
    text = [int(t) for t in rng.integers(3, 300, size=60)]
    for _ in range(8):
        recorder = _core.testing.ProposalRecorder(used)
        generator.begin([recorder], text, request(max_tokens=12, **GREEDY))
        whole = [*text, *finish(generator).tokens]
        for size, *proposal in recorder.proposals:
            fresh = _core.testing.ProposalRecorder(reduced(draft, max_draft=4))
            run(target, whole[:size], [fresh], max_tokens=len(text) + 12 - size, **GREEDY)
            assert list(proposal) == list(fresh.proposals[0][1:])
        keep = int(rng.integers(1, len(whole) + 1))
        text = [*whole[:keep], *(int(t) for t in rng.integers(3, 300, size=rng.integers(0, 9)))]


def test_engine_runs_of_rejection_fit_the_target(target: _core.Model, draft: _core.Model) -> None:
    """Two of the target's four tokens are never drafted; the joint distribution is the target's."""
    filters = {"temperature": 1.3, "top_k": 4}
    prompt = [12, 200, 77]
    exact = joint_probabilities(target, prompt, 1.3)
    likely = sorted({token for pair in exact for token in pair})[::2]
    generator = _core.Generator(target, 64, "f16")
    drafter = reduced(draft, likely, max_draft=2)
    counts, outcomes = dict.fromkeys(exact, 0), set()
    for seed in range(20_000):
        fields = {"seed": seed, "max_tokens": 2, "acceptance": "rejection", **filters}
        generator.begin([drafter], prompt, request(**fields))
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        outcomes.add(tuple(result.sources))
    assert len(outcomes) >= 3
    observed = np.array([counts[pair] for pair in exact])
    assert fit_p_value(observed, np.array([exact[pair] for pair in exact])) > 1e-3


def test_generator_takes_numbers_and_ids(paths: tuple[Path, Path]) -> None:
    with sd.Generator(paths[0], draft=None, progress=False) as gen:
        plain = gen.generate("once upon a time", max_tokens=30, temperature=0).tokens
    for vocab in (100, [5, 6, 7, 200], 10_000):
        draft = sd.DraftModel(paths[1], draft_vocab=vocab)
        with sd.Generator(paths[0], draft=draft, progress=False) as gen:
            assert gen.generate("once upon a time", max_tokens=30, temperature=0).tokens == plain


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (0, "draft_vocab is 0"),
        ([300], "token 300; the draft has the ids 0 to 299"),
        ([], "no token"),
    ],
)
def test_draft_vocabularies_that_cannot_be(
    paths: tuple[Path, Path], vocab: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sd.Generator(paths[0], draft=sd.DraftModel(paths[1], draft_vocab=vocab), progress=False)


# --- Stopping early -------------------------------------------------------------------------------


def test_a_chain_ends_before_a_token_that_is_not_sure(
    target: _core.Model, draft: _core.Model
) -> None:
    """At temperature 0 the draft's own distribution tells, else that of the request's chain."""
    for fields, temperature in ((GREEDY, 1.0), ({"temperature": 0.5, "seed": 3}, 0.5)):
        whole = _core.DraftModelDrafter(draft, 512, "f16", 6)
        recorder = _core.testing.ProposalRecorder(whole)
        result = run(target, [7, 8, 9], [recorder], max_tokens=40, **fields)
        text = [7, 8, 9, *result.tokens]
        made = _core.DraftModelDrafter(draft, 512, "f16", 6)
        confidences = []
        for size, tokens, *_ in recorder.proposals:
            for place in range(len(tokens)):
                context = [*text[:size], *tokens[:place]]
                logits = _core.Generator(draft, 512, "f16").logits(context, len(context) - 1)
                scaled = logits[0, :300].astype(np.float64) / temperature
                confidences.append(1 / np.exp(scaled - scaled.max()).sum())
        limit = float(np.median(confidences)) * 1.0001
        made.set_min_confidence(limit)
        stopping = _core.testing.ProposalRecorder(made)
        again = run(target, [7, 8, 9], [stopping], max_tokens=40, **fields)
        assert again.tokens == result.tokens
        first = next(i for i, one in enumerate([*confidences[:6], 0.0]) if one < limit)
        assert len(stopping.proposals[0][1]) == first
        lengths = [len(one[1]) for one in stopping.proposals]
        assert min(lengths) < max(lengths)


def test_stopping_early_keeps_the_distribution(target: _core.Model, draft: _core.Model) -> None:
    prompt, filters = [12, 200, 77], {"temperature": 1.3, "top_k": 4}
    exact = joint_probabilities(target, prompt, 1.3)
    generator = _core.Generator(target, 64, "f16")
    drafter = _core.DraftModelDrafter(draft, 64, "f16", 3)
    drafter.set_min_confidence(0.35)
    counts, drafted = dict.fromkeys(exact, 0), set()
    for seed in range(20_000):
        fields = {"seed": seed, "max_tokens": 3, "acceptance": "rejection", **filters}
        generator.begin([drafter], prompt, request(**fields))
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        drafted.add(result.stats["drafted"])
    assert len(drafted) > 2
    observed = np.array([counts[pair] for pair in exact])
    assert fit_p_value(observed, np.array([exact[pair] for pair in exact])) > 1e-3


# --- Another vocabulary --------------------------------------------------------------------------


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer(Vocabulary.from_metadata(metadata))


GPT2, LLAMA = gpt2_metadata(), llama_metadata()
TEXT = "hello world, hello Wörld!\n33 or hell — world"


@pytest.mark.parametrize(("ours", "theirs"), [(GPT2, LLAMA), (LLAMA, GPT2), (GPT2, GPT2)])
def test_shared_tokens_have_equal_strings(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    target, draft = tokenizer_of(ours), tokenizer_of(theirs)
    target_of = shared_tokens(draft, target)
    used = [one for one in target_of if one >= 0]
    assert len(used) == len(set(used)) > 256
    for here, there in enumerate(target_of):
        if there >= 0:
            assert draft.token_bytes(here) == target.token_bytes(there)
            assert draft.is_special(here) == target.is_special(there)


@pytest.mark.parametrize(("ours", "theirs"), [(GPT2, LLAMA), (LLAMA, GPT2), (GPT2, GPT2)])
def test_a_translated_text_is_the_same_text(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    target, draft = tokenizer_of(ours), tokenizer_of(theirs)
    translate = TokenTranslator(target, draft)
    assert translate(target.encode(TEXT), True) == draft.encode(TEXT)
    inside = translate(target.encode(" world or", add_special=False), False)
    assert draft.decode([*draft.encode("hello"), *inside]).endswith("world or")


def test_special_tokens_are_translated_by_spelling_or_role() -> None:
    target, draft = tokenizer_of(GPT2), tokenizer_of(LLAMA)
    bos, eos = target.vocabulary.bos_id, target.vocabulary.eos_id
    assert bos is not None
    assert eos is not None
    ids = TokenTranslator(target, draft)([bos, *target.encode("hello", False), eos], True)
    assert ids == [1, *draft.encode("hello", False), 2]


@pytest.fixture(scope="module")
def strangers(make_model: Callable[..., Path]) -> tuple[Path, Path]:
    """A target and a draft with tokenizers of different kinds."""
    return tuple(
        make_model(seed=seed, vocab=len(one["tokenizer.ggml.tokens"]), dtype="q8_0", metadata=one)
        for seed, one in ((3, GPT2), (4, LLAMA))
    )


def mismatched(target: _core.Model, draft: _core.Model, **shape: Any) -> Any:
    tokenizers = [Tokenizer.from_metadata(one.file.metadata) for one in (target, draft)]
    translator = TokenTranslator(*tokenizers)
    target_of = [one if one < target.vocab else -1 for one in translator.target_of[: draft.vocab]]
    made = _core.DraftModelDrafter(draft, 512, "f16", **shape)
    made.reduce_vocabulary([i for i, one in enumerate(target_of) if one >= 0], target_of)
    made.translate_text(translator)
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_with_another_tokenizer_changes_nothing(
    strangers: tuple[Path, Path], shape: str, mode: str
) -> None:
    target, draft = (load(path) for path in strangers)
    rng = np.random.default_rng(7)
    drafted = 0
    for seed in range(3):
        prompt = [int(t) for t in rng.integers(0, target.vocab, size=rng.integers(1, 150))]
        fields = {**MODES[mode], "seed": seed, "max_tokens": 60, "prefill_chunk": 16}
        plain = run(target, prompt, **fields)
        result = run(target, prompt, [mismatched(target, draft, **SHAPES[shape])], **fields)
        assert result.tokens == plain.tokens
        drafted += result.stats["drafted"]
    assert drafted > 100


def test_translated_proposals_do_not_depend_on_the_history_of_rounds(
    strangers: tuple[Path, Path],
) -> None:
    target, draft = (load(path) for path in strangers)
    rng = np.random.default_rng(3)
    used = mismatched(target, draft, max_draft=4)
    generator = _core.Generator(target, 512, "f16")
    text = [int(t) for t in rng.integers(0, 268, size=60)]
    for _ in range(8):
        recorder = _core.testing.ProposalRecorder(used)
        generator.begin([recorder], text, request(max_tokens=12, **GREEDY))
        whole = [*text, *finish(generator).tokens]
        for size, *proposal in recorder.proposals:
            fresh = _core.testing.ProposalRecorder(mismatched(target, draft, max_draft=4))
            run(target, whole[:size], [fresh], max_tokens=len(text) + 12 - size, **GREEDY)
            assert list(proposal) == list(fresh.proposals[0][1:])
        keep = int(rng.integers(1, len(whole) + 1))
        text = [*whole[:keep], *(int(t) for t in rng.integers(0, 268, size=rng.integers(0, 9)))]


def test_a_mismatch_is_an_error_unless_it_is_allowed(strangers: tuple[Path, Path]) -> None:
    with pytest.raises(sd.IncompatibleModelsError, match="tokens"):
        sd.Generator(strangers[0], draft=strangers[1], progress=False)
    draft = sd.DraftModel(strangers[1], allow_vocab_mismatch=True, adaptive=False)
    with sd.Generator(strangers[0], draft=None, progress=False) as gen:
        plain = gen.generate("hello world", max_tokens=40, temperature=0)
    with (
        pytest.warns(UserWarning, match="another vocabulary"),
        sd.Generator(strangers[0], draft=draft, progress=False) as gen,
    ):
        result = gen.generate("hello world", max_tokens=40, temperature=0)
    assert result.tokens == plain.tokens
    assert result.stats.drafted > 0
