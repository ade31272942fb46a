"""Trees of a draft model: their shape against a reference, and that they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_model import cut_layers
from reference.llama_numpy import forward, log_softmax
from reference.llama_numpy import load as load_reference
from specdec_native import _core
from support.chi_square import fit_p_value
from support.engine import FILTERED, GREEDY, finish, load, request, run, sized
from support.joint_distribution import joint_probabilities

MODES = {"greedy": GREEDY, "coupled": FILTERED, "warm": {"temperature": 1.3}}
FIXED = [[0], [1], [0, 0], [2], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1]]
SHAPES: list[dict[str, Any]] = [
    {"max_draft": 5, "branches": 1},
    {"max_draft": 10, "branches": 2},
    {"max_draft": 40, "branches": 6},
    {"max_draft": 64, "paths": FIXED},
    {"max_draft": 4, "paths": FIXED},
]


@pytest.fixture(scope="module")
def paths(make_model: Callable[..., Path], tmp_path_factory: Any) -> tuple[Path, Path]:
    target = make_model(dtype="f32", seed=3)
    return target, cut_layers(target, tmp_path_factory.mktemp("cut") / "cut.gguf", 2)


@pytest.fixture(scope="module")
def target(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[0])


@pytest.fixture(scope="module")
def draft(paths: tuple[Path, Path]) -> _core.Model:
    return load(paths[1])


def tree_drafter(draft: _core.Model, kv_type: str = "f16", **shape: Any) -> _core.Drafter:
    return _core.DraftModelDrafter(draft, 512, kv_type, **shape)


def grown(probabilities: Callable[[list[int]], np.ndarray], nodes: int, branches: int) -> set:
    """The heaviest `nodes` paths: best first over all, which growing step by step must find too."""
    open_paths = [((), 1.0)]
    found: dict[tuple[int, ...], float] = {}
    while open_paths:
        path, weight = open_paths.pop()
        scores = probabilities(list(path))
        for token in np.argsort(-scores, kind="stable")[:branches]:
            child = weight * scores[token]
            heaviest = sorted(found.values(), reverse=True)[:nodes]
            if len(heaviest) < nodes or child > heaviest[-1]:
                found[(*path, int(token))] = child
                open_paths.append(((*path, int(token)), child))
                open_paths.sort(key=lambda entry: entry[1])
    return set(sorted(found, key=lambda path: -found[path])[:nodes])


@pytest.mark.parametrize(("nodes", "branches"), [(6, 1), (8, 2), (12, 3), (16, 8)])
def test_a_grown_tree_holds_the_heaviest_paths(
    paths: tuple[Path, Path], target: _core.Model, draft: _core.Model, nodes: int, branches: int
) -> None:
    reference = load_reference(paths[1])
    for prompt in ([9, 30, 70], [40, 41, 42, 43, 44, 45]):
        recorder = _core.testing.ProposalRecorder(
            tree_drafter(draft, "f32", max_draft=nodes, branches=branches)
        )
        run(target, prompt, [recorder], kv_type="f32", max_tokens=64, **GREEDY)
        _, tokens, parents, prob_rows, confidences = recorder.proposals[0]
        assert set(prob_rows) == {-1}
        found: list[tuple[int, ...]] = []
        weights: list[float] = []
        for token, parent, confidence in zip(tokens, parents, confidences, strict=True):
            assert parent < len(found)
            found.append((*(found[parent] if parent >= 0 else ()), token))
            weights.append((weights[parent] if parent >= 0 else 1.0) * confidence)

        def probabilities(path: list[int], prompt: list[int] = prompt) -> np.ndarray:
            return np.exp(log_softmax(forward(reference, [*prompt, *path])[-1]))

        assert set(found) == grown(probabilities, nodes, branches)
        assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_plain_decoding(
    target: _core.Model, draft: _core.Model, mode: str
) -> None:
    rng = np.random.default_rng(5)
    accepted = rejected = 0
    for seed in range(sized(4, 1)):
        prompt = [int(t) for t in rng.integers(3, 300, size=rng.integers(1, sized(40, 9)))]
        fields = {**MODES[mode], "seed": seed, "max_tokens": sized(60, 12), "prefill_chunk": 16}
        plain = run(target, prompt, **fields)
        for shape in SHAPES[sized(0, 1) :: sized(1, 2)]:
            result = run(target, prompt, [tree_drafter(draft, **shape)], **fields)
            assert result.tokens == plain.tokens, shape
            assert (
                max(i for i, n in enumerate(result.stats["draft_lengths"]) if n)
                <= (shape["max_draft"])
            )
            accepted += result.stats["accepted"]
            rejected += result.stats["drafted"] - result.stats["accepted"]
    assert accepted > sized(200, 2)
    assert rejected > sized(200, 2)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_kept_path_leaves_the_cache_of_plain_decoding(
    make_model: Callable[..., Path], kv_type: str
) -> None:
    """The gather of an accepted path moves rows, and nothing else."""
    target = load(make_model(dtype="q4_0", seed=3, head_dim=32))
    fields = {"seed": 3, "max_tokens": sized(60, 24), **FILTERED}
    plain, drafting = (_core.Generator(target, 256, kv_type) for _ in range(2))
    plain.begin([], [7, 8, 9], request(**fields))
    shape = {"max_draft": 12, "branches": 3}
    drafting.begin([tree_drafter(target, kv_type, **shape)], [7, 8, 9], request(**fields))
    rounds = 0
    while drafting.step().finish_reason is None:
        if not (generated := drafting.stats()["generated"]):
            continue
        while plain.stats()["generated"] < generated:
            plain.step()
        assert _core.testing.cache_bytes(drafting) == _core.testing.cache_bytes(plain)
        rounds += 1
    assert rounds > sized(5, 2)


@pytest.mark.parametrize("shape", SHAPES[1:4:2])
def test_proposals_do_not_depend_on_the_history_of_rounds(
    target: _core.Model, draft: _core.Model, shape: dict[str, Any]
) -> None:
    rng = np.random.default_rng(3)
    used = tree_drafter(draft, **shape)
    generator = _core.Generator(target, 512, "f16")
    text = [int(t) for t in rng.integers(3, 300, size=20)]
    for _ in range(10):
        recorder = _core.testing.ProposalRecorder(used)
        generator.begin([recorder], text, request(max_tokens=12, **GREEDY))
        whole = [*text, *finish(generator).tokens]
        for size, *proposal in recorder.proposals:
            fresh = _core.testing.ProposalRecorder(tree_drafter(draft, **shape))
            run(target, whole[:size], [fresh], max_tokens=len(text) + 12 - size, **GREEDY)
            assert list(proposal) == list(fresh.proposals[0][1:])
        keep = int(rng.integers(1, len(whole) + 1))
        text = [*whole[:keep], *(int(t) for t in rng.integers(3, 300, size=rng.integers(0, 4)))]


def test_engine_runs_of_rejection_with_a_tree_fit_the_target(
    target: _core.Model, draft: _core.Model
) -> None:
    """The joint distribution of two consecutive tokens is the target's, siblings and all."""
    filters = {"temperature": 1.3, "top_k": 4}
    prompt = [12, 200, 77]
    exact = joint_probabilities(target, prompt, 1.3)
    generator = _core.Generator(target, 64, "f16")
    drafter = _core.DraftModelDrafter(draft, 64, "f16", 6, branches=3)
    counts, outcomes = dict.fromkeys(exact, 0), set()
    for seed in range(sized(20_000, 120)):
        fields = {"seed": seed, "max_tokens": 3, "acceptance": "rejection", **filters}
        generator.begin([drafter], prompt, request(**fields))
        result = finish(generator)
        counts[(result.tokens[0], result.tokens[1])] += 1
        outcomes.add(tuple(result.sources))
    assert len(outcomes) >= 3
    observed = np.array([counts[pair] for pair in exact])
    expected = np.array([exact[pair] for pair in exact])
    assert fit_p_value(observed, expected) > 1e-3


def test_the_end_of_the_drafts_context(target: _core.Model, draft: _core.Model) -> None:
    plain = run(target, [5, 6, 7], max_tokens=40, **GREEDY)
    for shape in SHAPES:
        for n_ctx in (4, 9, 20):
            made = _core.DraftModelDrafter(draft, n_ctx, "f16", **shape)
            assert run(target, [5, 6, 7], [made], max_tokens=40, **GREEDY).tokens == plain.tokens


def test_names_and_objects(paths: tuple[Path, Path]) -> None:
    for tree in (3, [[0], [1], [0, 0]]):
        draft = sd.DraftModel(paths[1], max_draft=6, tree=tree, adaptive=False)
        with sd.Generator(paths[0], draft=draft, progress=False) as gen:
            result = gen.generate("once upon", max_tokens=30, temperature=0)
            assert result.stats.accepted > 0
    with pytest.raises(ValueError, match="tree is 0"):
        sd.DraftModel(paths[1], tree=0)
