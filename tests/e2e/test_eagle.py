"""EAGLE-3 heads: their forward pass, chains and trees, and that they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_heads import make_eagle3
from reference import heads_numpy
from reference.llama_numpy import hidden_states, log_softmax
from reference.llama_numpy import load as load_reference
from specdec_native import _core
from support.engine import FILTERED, GREEDY, finish, load, request, run, sized
from support.heads import converted, few_token_target, fitted_eagle3

STATES = [2, 3, 4]
MODES = {"greedy": GREEDY, "coupled": FILTERED, "warm": {"temperature": 1.0}}
SHAPES: list[dict[str, Any]] = [
    {"max_draft": 1},
    {"max_draft": 5},
    {"max_draft": 6, "branches": 1},
    {"max_draft": 12, "branches": 3},
    {"max_draft": 30, "branches": 8},
    {"max_draft": 9, "paths": [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 1, 2]]},
]


@pytest.fixture(scope="module")
def target_path(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = make_model(dtype="f32", seed=4, tied=False)
    return few_token_target(source, tmp_path_factory.mktemp("target") / "few.gguf")


@pytest.fixture(scope="module")
def target(target_path: Path) -> _core.Model:
    return load(target_path)


@pytest.fixture(scope="module")
def head_path(
    target_path: Path, target: _core.Model, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("heads") / "eagle"
    return converted(
        fitted_eagle3(folder, target_path, load(target_path, "cpu"), STATES), target_path
    )


@pytest.fixture(scope="module")
def head(head_path: Path, target: _core.Model) -> _core.EagleHead:
    return _core.EagleHead.load(str(head_path), target)


def drafter(head: _core.EagleHead, kv_type: str = "f16", **shape: Any) -> _core.Drafter:
    return _core.EagleDrafter(head, 512, kv_type, **shape)


def first_proposal(made: _core.Drafter, model: _core.Model, prompt: list[int], **fields: Any):
    recorder = _core.testing.ProposalRecorder(made)
    values = {"kv_type": "f32", "max_tokens": 64, **GREEDY, **fields}
    run(model, prompt, [recorder], **values)
    return recorder.proposals[0]


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def llama3_divisors(base: float, half: int) -> np.ndarray:
    turns = 256 * base ** (-np.arange(half) / half) / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / 8.0 + smooth)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own embedding": {"own_embedding": True},
    "speculators, bf16": {"layout": "speculators", "dtype": "bfloat16"},
    "norm before residual": {"norm_before_residual": True},
    "whole vocabulary": {"draft_vocab": 300},
    "other width": {"width": 32, "target_width": 64, "own_embedding": True, "heads": 2},
    "llama3 rope": {"rope": LLAMA3},
    "default layers": {"states": None},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_forward_pass_is_that_of_the_published_module(
    target_path: Path, target: _core.Model, tmp_path: Path, variant: str
) -> None:
    """A greedy chain behind a text, from prefill in chunks, against NumPy on the checkpoint."""
    fields = {"states": STATES, **VARIANTS[variant]}
    folder = make_eagle3(tmp_path / "eagle", **fields)
    head = _core.EagleHead.load(str(converted(folder, target_path)), target)
    checkpoint, reference = heads_numpy.load(folder), load_reference(target_path)
    states = [2, 2, 1] if fields["states"] is None else STATES
    assert head.states == states
    divisors = llama3_divisors(10000.0, 8) if "rope" in fields else 1.0
    for prompt in ([5, 9], [int(t) for t in np.random.default_rng(1).integers(3, 300, size=150)]):
        expected, scores = heads_numpy.eagle3_chain(
            checkpoint, reference, states, prompt, 6, divisors
        )
        proposal = first_proposal(
            drafter(head, "f32", max_draft=6, branches=1), target, prompt, prefill_chunk=23
        )
        assert proposal[0] == len(prompt)
        assert list(proposal[1]) == expected
        assert list(proposal[2]) == [-1, 0, 1, 2, 3, 4]
        probabilities = [float(np.exp(log_softmax(one).max())) for one in scores]
        assert list(proposal[4]) == pytest.approx(probabilities, rel=5e-3)
        chain = first_proposal(drafter(head, "f32", max_draft=6), target, prompt)
        assert list(chain[1]) == expected


@pytest.mark.parametrize(("seed", "nodes", "branches"), [(2, 14, 3), (3, 40, 2), (4, 40, 2)])
def test_a_tree_is_what_the_reference_scores(
    target_path: Path,
    target: _core.Model,
    head: _core.EagleHead,
    head_path: Path,
    seed: int,
    nodes: int,
    branches: int,
) -> None:
    """Every node: its probability given its own path, its siblings in order, the heaviest kept."""
    reference = load_reference(target_path)
    checkpoint = heads_numpy.load(head_path.with_suffix("").with_suffix(""))
    ids = np.arange(len(checkpoint.tensors["d2t"])) + checkpoint.tensors["d2t"].astype(int)
    prompt = [int(t) for t in np.random.default_rng(seed).integers(3, 300, size=20)]
    embedding = reference.tensors["token_embd.weight"]
    all_states = hidden_states(reference, prompt[:-1])
    fused = np.concatenate([all_states[i] for i in STATES], axis=-1)
    fused = fused @ checkpoint.tensors["fc.weight"].T

    def children_of(path: list[int]) -> dict[int, float]:
        tokens, rows = prompt[1:], fused
        for token in path:
            _, hidden = heads_numpy.eagle3_pass(checkpoint, embedding, tokens, rows)
            tokens, rows = [*tokens, token], np.concatenate([rows, hidden[-1:]])
        logits, _ = heads_numpy.eagle3_pass(checkpoint, embedding, tokens, rows)
        scores = np.exp(log_softmax(logits[-1]))
        order = np.argsort(-scores, kind="stable")[:branches]
        return {int(ids[i]): float(scores[i]) for i in order}

    _, tokens, parents, prob_rows, confidences = first_proposal(
        drafter(head, "f32", max_draft=nodes, branches=branches), target, prompt
    )
    assert len(tokens) == nodes
    assert set(prob_rows) == {-1}
    paths: list[list[int]] = []
    weights: list[float] = []
    for token, parent, confidence in zip(tokens, parents, confidences, strict=True):
        above = paths[parent] if parent >= 0 else []
        expected = children_of(above)
        assert token in expected
        assert confidence == pytest.approx(expected[token], rel=1e-2, abs=1e-5)
        paths.append([*above, token])
        weights.append((weights[parent] if parent >= 0 else 1.0) * confidence)
    assert weights == sorted(weights, reverse=True)
    assert len({tuple(path) for path in paths}) == nodes
    assert max(len(path) for path in paths) > 2


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_plain_decoding(
    target: _core.Model, head: _core.EagleHead, mode: str
) -> None:
    rng = np.random.default_rng(5)
    accepted = rejected = 0
    for seed in range(sized(4, 1)):
        prompt = [int(t) for t in rng.integers(3, 300, size=rng.integers(1, sized(40, 9)))]
        fields = {**MODES[mode], "seed": seed, "max_tokens": sized(60, 12), "prefill_chunk": 16}
        plain = run(target, prompt, **fields)
        for shape in SHAPES[sized(0, 1) :: sized(1, 2)]:
            result = run(target, prompt, [drafter(head, **shape)], **fields)
            assert result.tokens == plain.tokens, shape
            accepted += result.stats["accepted"]
            rejected += result.stats["drafted"] - result.stats["accepted"]
    assert accepted > sized(100, 1)
    assert rejected > sized(100, 1)


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
def test_quantised_targets_and_heads(
    make_model: Callable[..., Path], tmp_path: Path, head_path: Path, dtype: str
) -> None:
    path = few_token_target(make_model(dtype=dtype, seed=4, tied=False), tmp_path / "few.gguf")
    model = load(path)
    head = _core.EagleHead.load(
        str(converted(head_path.with_suffix("").with_suffix(""), path, dtype)), model
    )
    plain = run(model, [7, 8, 9], kv_type="f16", max_tokens=80, **GREEDY)
    for shape in SHAPES[1:5:2]:
        result = run(model, [7, 8, 9], [drafter(head, **shape)], max_tokens=80, **GREEDY)
        assert result.tokens == plain.tokens
        assert result.stats["drafted"] > 0


@pytest.mark.parametrize("shape", SHAPES[1:4:2])
def test_proposals_do_not_depend_on_the_history_of_rounds(
    target: _core.Model, head: _core.EagleHead, shape: dict[str, Any]
) -> None:
    """Design, invariant 3: what was drafted is dropped, rows come from the target alone."""
    rng = np.random.default_rng(3)
    used = drafter(head, **shape)
    generator = _core.Generator(target, 512, "f16")
    text = [int(t) for t in rng.integers(3, 300, size=20)]
    proposed = 0
    for turn in range(16):
        recorder = _core.testing.ProposalRecorder(used)
        # Now and then another drafter's round, or none, in between.
        others = [[], [_core.NgramDrafter(3, 1, 3)]][turn % 2]
        fields = {"max_tokens": 12, **GREEDY}
        generator.begin([*others, recorder], text, request(**fields))
        result = finish(generator)
        whole = [*text, *result.tokens]
        for size, tokens, parents, _, confidences in recorder.proposals:
            fresh = _core.testing.ProposalRecorder(drafter(head, **shape))
            limit = len(text) + 12 - size
            run(target, whole[:size], [fresh], max_tokens=limit, **GREEDY)
            expected = fresh.proposals[0]
            assert (tokens, parents, confidences) == (expected[1], expected[2], expected[4])
            proposed += len(tokens)
        keep = int(rng.integers(1, len(whole) + 1))
        extra = rng.integers(3, 300, size=rng.integers(0, 4))
        text = [*whole[:keep], *(int(t) for t in extra)][:200]
    assert proposed > 100


def test_a_head_that_sat_out_catches_up(target: _core.Model, head: _core.EagleHead) -> None:
    """Rows that wait for the next proposal are run when they become many."""
    prompt = [int(t) for t in np.random.default_rng(8).integers(3, 300, size=300)]
    made = drafter(head, max_draft=4)
    generator = _core.Generator(target, 512, "f16")
    first = _core.DraftModelDrafter(target, 512, "f16", 7)  # always proposes
    generator.begin([first, made], prompt, request(max_tokens=150, prefill_chunk=37, **GREEDY))
    result = finish(generator)
    assert set(result.sources) == {"draft", "target"}
    text = [*prompt, *result.tokens]
    recorders = [_core.testing.ProposalRecorder(one) for one in (made, drafter(head, max_draft=4))]
    generator.begin([recorders[0]], text, request(max_tokens=30, **GREEDY))
    warm = finish(generator)
    cold = run(target, text, [recorders[1]], max_tokens=30, **GREEDY)
    assert warm.tokens == cold.tokens
    assert recorders[0].proposals == recorders[1].proposals
    assert warm.stats["reused_tokens"] == len(text) - 1


def test_the_same_text_again_after_it_was_cut(target: _core.Model, head: _core.EagleHead) -> None:
    """No new row arrives then; what the head knew belonged to a longer text."""
    made = drafter(head, max_draft=4)
    generator = _core.Generator(target, 256, "f16")
    generator.begin([made], [4, 5, 6, 7], request(max_tokens=40, **GREEDY))
    tokens: list[int] = []
    while len(tokens) < 20:
        tokens += generator.step().tokens
    generator.cut_output(6, "stop")
    text = [4, 5, 6, 7, *tokens[:6]]
    recorders = [_core.testing.ProposalRecorder(one) for one in (made, drafter(head, max_draft=4))]
    generator.begin([recorders[0]], text, request(max_tokens=20, **GREEDY))
    finish(generator)
    run(target, text, [recorders[1]], max_tokens=20, **GREEDY)
    assert recorders[0].proposals == recorders[1].proposals
    assert len(recorders[0].proposals[0][1]) == 4


def test_a_head_attached_later_has_the_prefix_computed_again(
    target: _core.Model, head: _core.EagleHead
) -> None:
    generator = _core.Generator(target, 256, "f16")
    prompt = [4, 5, 6, 7, 8, 9]
    generator.begin([], prompt, request(max_tokens=3, **GREEDY))
    finish(generator)
    recorder = _core.testing.ProposalRecorder(drafter(head, max_draft=3))
    generator.begin([recorder], prompt, request(max_tokens=30, **GREEDY))
    result = finish(generator)
    assert result.stats["reused_tokens"] == 0
    assert result.tokens == run(target, prompt, max_tokens=30, **GREEDY).tokens
    assert len(recorder.proposals[0][1]) == 3


def test_the_ends_of_contexts(target: _core.Model, head: _core.EagleHead) -> None:
    prompt = list(range(10, 38))
    plain = run(target, prompt, n_ctx=48, max_tokens=100, **GREEDY)
    assert plain.finish_reason == "context"
    for shape in SHAPES:
        for n_ctx in (2, 28, 30, 48):
            made = _core.EagleDrafter(head, n_ctx, "f16", **shape)
            result = run(target, prompt, [made], n_ctx=48, max_tokens=100, **GREEDY)
            assert (result.tokens, result.finish_reason) == (plain.tokens, "context")


def test_rejection_repeats_with_a_seed_and_accepts(
    target: _core.Model, head: _core.EagleHead
) -> None:
    """A chain is drawn from the distribution that it hands to the acceptance rule."""
    fields = {"temperature": 0.9, "acceptance": "rejection", "max_tokens": 100, "seed": 3}
    runs = [run(target, [7, 8], [drafter(head, max_draft=3)], **fields) for _ in range(2)]
    assert runs[0].tokens == runs[1].tokens
    assert 0 < runs[0].stats["accepted"] < runs[0].stats["drafted"]
    recorder = _core.testing.ProposalRecorder(drafter(head, max_draft=3))
    run(target, [7, 8], [recorder], **fields)
    assert list(recorder.proposals[0][3]) == [0, 1, 2]


def test_heads_of_another_target_are_refused(
    target: _core.Model,
    target_path: Path,
    make_model: Callable[..., Path],
    tmp_path: Path,
    head_path: Path,
) -> None:
    narrow = make_model(width=32)
    other = converted(make_eagle3(tmp_path / "a", width=32, ffn=64), narrow)
    with pytest.raises(sd.IncompatibleModelsError, match="width 32, but this one has 64"):
        _core.EagleHead.load(str(other), target)
    short = load(make_model(layers=2))
    with pytest.raises(sd.IncompatibleModelsError, match="before layer 3, but the target has 2"):
        _core.EagleHead.load(str(head_path), short)
    with pytest.raises(sd.IncompatibleModelsError, match="another vocabulary"):
        sd.Generator(make_model(vocab=310), draft=sd.EagleDraft(head_path), progress=False)
    with pytest.raises(sd.GgufError, match="says 'eagle3'"):
        _core.EagleHead.load(str(target_path), target)


def test_names_and_objects(target_path: Path, head_path: Path) -> None:
    with sd.Generator(target_path, draft=None, progress=False) as gen:
        plain = gen.generate("once upon", max_tokens=30, temperature=0)
    for draft in (
        f"eagle:{head_path}",
        sd.EagleDraft(head_path, max_draft=12, tree=4),
        sd.EagleDraft(head_path, tree=[[0], [1], [0, 0]]),
        [sd.NgramDraft(), sd.EagleDraft(head_path)],
    ):
        with sd.Generator(target_path, draft=draft, progress=False) as gen:
            result = gen.generate("once upon", max_tokens=30, temperature=0)
            assert result.tokens == plain.tokens
            assert result.stats.drafted > 0
            assert min(gen.memory()["draft_weights"], gen.memory()["draft_cache"]) > 0


CHAINS: dict[str, dict[str, Any]] = {
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "bias": {"temperature": 0.0, "logit_bias": [(154, -100.0), (70, -3.0), (113, 2.0)]},
    "mask": {"temperature": 0.9},
}


@pytest.mark.parametrize("chain", CHAINS)
def test_the_sampling_chain_acts_at_every_position(
    target: _core.Model, head: _core.EagleHead, chain: str
) -> None:
    """With drafts of the head, of layers, and of trees: the tokens are those of plain decoding."""
    fields = {**CHAINS[chain], "seed": 5, "max_tokens": 60}
    if chain == "mask":
        fields["mask"] = _core.testing.StepMask(60)
    plain = run(target, [7, 8, 9], **fields)
    for made in (
        *(drafter(head, **shape) for shape in SHAPES),
        _core.LayerSkipDrafter(target, [0, 1], 4),
        _core.DraftModelDrafter(target, 512, "f16", 12, branches=3),
    ):
        result = run(target, [7, 8, 9], [made], **fields)
        assert result.tokens == plain.tokens
        assert result.stats["drafted"] > 0
