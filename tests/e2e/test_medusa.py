"""Medusa heads: their forward pass, their trees, and that they change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_heads import make_medusa
from reference import heads_numpy
from reference.llama_numpy import load as load_reference
from reference.llama_numpy import log_softmax
from specdec_native import _core
from support.engine import FILTERED, GREEDY, finish, load, request, run, sized
from support.heads import converted, few_token_target, fitted_medusa

MODES = {"greedy": GREEDY, "coupled": FILTERED, "warm": {"temperature": 1.0}}


@pytest.fixture(scope="module")
def target_path(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = make_model(dtype="f32", seed=4, tied=False)
    return few_token_target(source, tmp_path_factory.mktemp("target") / "few.gguf")


@pytest.fixture(scope="module")
def target(target_path: Path) -> _core.Model:
    return load(target_path)


@pytest.fixture(scope="module")
def heads_path(
    target_path: Path, target: _core.Model, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = fitted_medusa(
        tmp_path_factory.mktemp("heads") / "medusa", target_path, load(target_path, "cpu")
    )
    return converted(folder, target_path)


@pytest.fixture(scope="module")
def heads(heads_path: Path, target: _core.Model) -> _core.MedusaHeads:
    return _core.MedusaHeads.load(str(heads_path), target)


def tree(nodes: int, branches: int = 64, depth: int = 3) -> list[list[int]]:
    return _core.heaviest_ranks(nodes, depth, branches)


def first_proposal(drafter: _core.Drafter, model: _core.Model, prompt: list[int], **fields):
    recorder = _core.testing.ProposalRecorder(drafter)
    run(model, prompt, [recorder], kv_type="f32", **{"max_tokens": 40, **fields})
    return recorder.proposals[0]


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_forward_pass_is_that_of_the_published_module(
    target_path: Path, target: _core.Model, tmp_path: Path, layers: int, shared: bool, dtype: str
) -> None:
    if shared and layers == 0:
        return
    folder = make_medusa(tmp_path / "heads", heads=4, layers=layers, shared=shared, dtype=dtype)
    made = _core.MedusaHeads.load(str(converted(folder, target_path)), target)
    reference, checkpoint = load_reference(target_path), heads_numpy.load(folder)
    paths = tree(40, depth=4)
    for prompt in ([5, 9, 200], list(range(20, 90))):
        expected = heads_numpy.medusa_logits(checkpoint, reference, prompt[:-1])
        size, tokens, parents, prob_rows, confidences = first_proposal(
            _core.MedusaDrafter(made, paths), target, prompt, max_tokens=64
        )
        assert size == len(prompt)
        assert set(prob_rows) == {-1}
        index = {tuple(path): i for i, path in enumerate(paths)}
        for i, path in enumerate(paths):
            scores = log_softmax(expected[len(path) - 1])
            ranked = np.argsort(-scores, kind="stable")
            assert tokens[i] == ranked[path[-1]]
            assert confidences[i] == pytest.approx(np.exp(scores[tokens[i]]), rel=2e-3)
            assert parents[i] == index.get(tuple(path[:-1]), -1)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_those_of_plain_decoding(
    target: _core.Model, heads: _core.MedusaHeads, mode: str
) -> None:
    rng = np.random.default_rng(5)
    accepted = rejected = 0
    for seed in range(sized(6, 1)):
        prompt = [int(t) for t in rng.integers(3, 300, size=rng.integers(1, sized(40, 9)))]
        fields = {**MODES[mode], "seed": seed, "max_tokens": sized(60, 12), "prefill_chunk": 16}
        plain = run(target, prompt, **fields)
        for paths in (tree(1), tree(3, branches=1), tree(7), tree(24), [[3], [1], [1, 2]]):
            result = run(target, prompt, [_core.MedusaDrafter(heads, paths)], **fields)
            assert result.tokens == plain.tokens
            accepted += result.stats["accepted"]
            rejected += result.stats["drafted"] - result.stats["accepted"]
    assert accepted > sized(100, 1)
    assert rejected > sized(100, 1)


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0"])
def test_quantised_targets_and_heads(
    make_model: Callable[..., Path], tmp_path: Path, dtype: str
) -> None:
    source = make_model(dtype=dtype, seed=4, tied=False)
    path = few_token_target(source, tmp_path / "few.gguf")
    model = load(path)
    folder = fitted_medusa(tmp_path / "medusa", path, model)
    made = _core.MedusaHeads.load(str(converted(folder, path, dtype)), model)
    plain = run(model, [7, 8, 9], max_tokens=80, **GREEDY)
    result = run(model, [7, 8, 9], [_core.MedusaDrafter(made, tree(12))], max_tokens=80, **GREEDY)
    assert result.tokens == plain.tokens
    assert result.stats["accepted"] > 5


def test_proposals_do_not_depend_on_the_history_of_rounds(
    target: _core.Model, heads: _core.MedusaHeads
) -> None:
    """Design, invariant 3: the round that follows any text proposes what a fresh drafter would."""
    rng = np.random.default_rng(3)
    used = _core.MedusaDrafter(heads, tree(12))
    generator = _core.Generator(target, 512, "f16")
    text = [int(t) for t in rng.integers(3, 300, size=20)]
    for _ in range(25):
        recorder = _core.testing.ProposalRecorder(used)
        generator.begin([recorder], text, request(max_tokens=9, **GREEDY))
        result = finish(generator)
        whole = [*text, *result.tokens]
        for proposal in recorder.proposals:
            if not proposal[1]:
                assert proposal[0] == len(text)  # a prefix was reused whole
                continue
            fresh = _core.testing.ProposalRecorder(_core.MedusaDrafter(heads, tree(12)))
            run(target, whole[: proposal[0]], [fresh], max_tokens=40, **GREEDY)
            expected = fresh.proposals[0]
            count = len(proposal[1])  # the end of the request may leave less room
            assert list(proposal[1]) == list(expected[1])[:count]
            assert list(proposal[4]) == list(expected[4])[:count]
        keep = int(rng.integers(1, len(whole) + 1))
        extra = rng.integers(3, 300, size=rng.integers(0, 5))
        text = [*whole[:keep], *(int(t) for t in extra)][:300]


def test_the_last_row_of_a_reused_prefix_is_computed_again(
    target: _core.Model, heads: _core.MedusaHeads
) -> None:
    generator = _core.Generator(target, 256, "f16")
    prompt = [4, 5, 6, 7, 8]
    generator.begin([], prompt, request(max_tokens=3, **GREEDY))
    finish(generator)
    recorder = _core.testing.ProposalRecorder(_core.MedusaDrafter(heads, tree(4)))
    generator.begin([recorder], prompt, request(max_tokens=30, **GREEDY))
    result = finish(generator)
    assert result.stats["reused_tokens"] == len(prompt) - 2  # for its hidden state
    assert result.tokens == run(target, prompt, max_tokens=30, **GREEDY).tokens
    sizes = [len(proposal[1]) for proposal in recorder.proposals]
    assert min(sizes[:-1]) > 0


def test_default_trees() -> None:
    assert tree(7) == [[0], [1], [0, 0], [2], [3], [0, 1], [1, 0]]
    assert tree(4, branches=1) == [[0], [0, 0], [0, 0, 0]]
    assert tree(4, depth=1) == [[0], [1], [2], [3]]
    big = tree(64, depth=5)
    assert len(big) == len({tuple(path) for path in big}) == 64
    costs = [np.prod([2 * (rank + 1) for rank in path]) for path in big]
    assert costs == sorted(costs)
    for i, path in enumerate(big):  # every prefix is a tree
        assert len(path) == 1 or path[:-1] in big[:i]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "a tree of 0 nodes"),
        ([[0]] * 65, "a tree of 65 nodes"),
        ([[]], "empty path"),
        ([[-1]], r"\(-1\); ranks"),
        ([[0], [0]], r"path \(0\) twice"),
        ([[0], [1, 0]], r"\(1, 0\) without its parent \(1\)"),
        ([[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]], "4 deep, but there are only 3 Medusa heads"),
    ],
)
def test_trees_are_checked(heads: _core.MedusaHeads, paths: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.MedusaDrafter(heads, paths)


def test_heads_of_another_target_are_refused(
    target: _core.Model, make_model: Callable[..., Path], tmp_path: Path, heads_path: Path
) -> None:
    narrow = converted(make_medusa(tmp_path / "a", width=32), make_model(width=32))
    with pytest.raises(sd.IncompatibleModelsError, match="width 32, but this one has 64"):
        _core.MedusaHeads.load(str(narrow), target)
    few = tmp_path / "few.gguf"
    sd.convert(make_medusa(tmp_path / "b", vocab=299), few, progress=False)
    with pytest.raises(sd.IncompatibleModelsError, match=r"score 299 tokens, but .* has 300"):
        _core.MedusaHeads.load(str(few), target)
    with pytest.raises(sd.IncompatibleModelsError, match="another vocabulary"):
        sd.Generator(make_model(vocab=310), draft=sd.MedusaDraft(heads_path), progress=False)
    with pytest.raises(sd.GgufError, match="'llama'; a file of Medusa heads says"):
        _core.MedusaHeads.load(str(make_model()), target)


def test_a_reused_prompt_is_drafted_from_at_once(target_path: Path, heads_path: Path) -> None:
    """The last row is computed again for its hidden state; so a seed of rejection repeats."""
    draft = sd.MedusaDraft(heads_path, adaptive=False)
    fields = {"seed": 11, "temperature": 1.0, "max_tokens": 20, "acceptance": "rejection"}
    with sd.Generator(target_path, draft=draft, progress=False) as gen:
        first, again = (gen.generate("once upon a time", **fields) for _ in range(2))
    assert again.tokens == first.tokens
    assert again.stats.draft_lengths == first.stats.draft_lengths
    assert again.stats.reused_tokens > 0


def test_names_and_objects(target_path: Path, heads_path: Path) -> None:
    with sd.Generator(target_path, draft=None, progress=False) as gen:
        plain = gen.generate("once upon", max_tokens=30, temperature=0)
    for draft in (
        f"medusa:{heads_path}",
        sd.MedusaDraft(heads_path, tree=1),
        sd.MedusaDraft(heads_path, max_draft=5, tree=[[0], [1], [0, 0]]),
    ):
        with sd.Generator(target_path, draft=draft, progress=False) as gen:
            result = gen.generate("once upon", max_tokens=30, temperature=0)
            assert result.tokens == plain.tokens
            assert result.stats.drafted > 0
            assert gen.memory()["draft_weights"] > 0
    for bad in (0, 65, "x", [], [[-1]]):
        with pytest.raises(ValueError, match="tree"):
            sd.MedusaDraft(heads_path, tree=bad)
