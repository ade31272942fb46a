"""Drafted tokens that the host does not know before the verdict: it waits once in a round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gguf_edit import pad_layers
from specdec_native import _core
from support.backends import CUDA_DEVICE
from support.engine import FILTERED, GREEDY, finish, load, request
from support.heads import converted, few_token_target, fitted_eagle3, fitted_medusa

PROMPT = [5, 90, 17, 61, 8]
MODES = {
    "greedy": GREEDY,
    "coupled": FILTERED,
    "rejection": {**FILTERED, "acceptance": "rejection"},
}
TREE = [[0], [1], [0, 0], [0, 1], [2], [0, 0, 0]]


@pytest.fixture(scope="module")
def paths(
    make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A target, its Medusa heads, its EAGLE head."""
    folder = tmp_path_factory.mktemp("heads")
    target = few_token_target(make_model(dtype="f32", seed=4, tied=False), folder / "few.gguf")
    model = load(target, "cpu")
    heads = fitted_medusa(folder / "medusa", target, model)
    eagle = fitted_eagle3(folder / "eagle", target, model, [2, 3, 4])
    return {
        "target": target,
        "medusa": converted(heads, target),
        "eagle": converted(eagle, target),
    }


def make_drafter(kind: str, paths: dict[str, Path], model: _core.Model) -> _core.Drafter:
    if kind == "medusa":
        return _core.MedusaDrafter(_core.MedusaHeads.load(str(paths["medusa"]), model), TREE)
    if kind.startswith("eagle"):
        head = _core.EagleHead.load(str(paths["eagle"]), model)
        shape = {"branches": 0} if kind == "eagle chain" else {"branches": 3}
        return _core.EagleDrafter(head, 128, "f16", 4, **shape)
    if kind == "layer skip":
        return _core.LayerSkipDrafter(model, [0], 3)
    if kind == "draft tree":
        return _core.DraftModelDrafter(model, 128, "f16", 6, paths=TREE)
    branches = 2 if kind == "growing tree" else 0
    return _core.DraftModelDrafter(model, 128, "f16", 4, branches=branches)


def generate(
    kind: str, paths: dict[str, Path], device: str, **fields: Any
) -> tuple[list[int], dict[str, Any], int]:
    """(tokens, stats, waits of the host for the device while they were made)."""
    model = load(paths["target"], device)
    drafter = make_drafter(kind, paths, model)
    generator = _core.Generator(model, 128, "f16")
    before = _core.testing.device_waits(model)
    generator.begin([drafter], PROMPT, request(seed=2, max_tokens=20, **fields))
    done = finish(generator)
    return done.tokens, done.stats, _core.testing.device_waits(model) - before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "kind", ["draft chain", "draft tree", "layer skip", "medusa", "eagle chain"]
)
def test_the_host_waits_for_the_verdict_alone(paths: dict[str, Path], kind: str, mode: str) -> None:
    tokens, stats, waits = generate(kind, paths, CUDA_DEVICE, **MODES[mode])
    expected, on_cpu, none = generate(kind, paths, "cpu", **MODES[mode])
    assert tokens == expected
    for name in ("rounds", "drafted", "accepted", "draft_lengths", "drafted_at"):
        assert stats[name] == on_cpu[name], name
    assert stats["accepted"] > 0
    assert waits == stats["rounds"]
    assert none == 0


@pytest.mark.parametrize("family", ["qwen3moe", "mixtral", "gpt-oss"])
@pytest.mark.parametrize("kind", ["draft chain", "draft tree"])
def test_a_mixture_waits_no_more(make_model: Callable[..., Path], family: str, kind: str) -> None:
    """Which experts a row goes to stays on the device, in the prompt's passes too."""
    paths = {"target": make_model(family=family, dtype="q8_0", layers=2, seed=3)}
    tokens, stats, waits = generate(kind, paths, CUDA_DEVICE, **FILTERED)
    assert tokens == generate(kind, paths, "cpu", **FILTERED)[0]
    assert stats["accepted"] > 0
    assert waits == stats["rounds"]


def test_accepted_rows_stay_in_the_drafts_cache(paths: dict[str, Path]) -> None:
    """What the verdict tells of the tokens: without it their rows would be computed again."""
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        model = load(paths["target"], device)
        drafter = make_drafter("draft chain", paths, model)
        generator = _core.Generator(model, 128, "f16")
        generator.begin([drafter], PROMPT, request(seed=2, max_tokens=40, **GREEDY))
        rows = []
        while generator.step().finish_reason is None:
            rows.append(drafter.cached_rows)
        found.append(rows)
    assert found[0] == found[1]
    assert max(found[0]) > len(PROMPT) + 20


def test_time_is_told_apart_where_the_device_is_late(make_model: Callable[..., Path]) -> None:
    """A draft eight times as deep as its target takes most of a round, though it is only queued."""
    target, draft = (load(make_model(layers=n, seed=n), CUDA_DEVICE) for n in (1, 8))
    generator = _core.Generator(target, 128, "f16")
    drafter = _core.DraftModelDrafter(draft, 128, "f16", 4)
    generator.begin([drafter], PROMPT, request(max_tokens=20, **GREEDY))
    stats = finish(generator).stats
    assert stats["draft_ms"] > stats["verify_ms"] > 0
    assert stats["draft_ms"] + stats["verify_ms"] <= stats["decode_ms"] * 1.001


def test_the_controller_learns_what_a_late_draft_costs(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A draft that is always right, at eight times the cost of its target."""
    path = make_model(dtype="q4_0", layers=1, seed=3)
    target = load(path, CUDA_DEVICE)
    deep = pad_layers(path, tmp_path / "deep.gguf", 8)
    drafter = _core.DraftModelDrafter(load(deep, CUDA_DEVICE), 128, "f16", 4)
    drafter.adaptive = True
    generator = _core.Generator(target, 128, "f16")
    generator.begin([drafter], PROMPT, request(max_tokens=60, **GREEDY))
    stats = finish(generator).stats
    assert stats["accepted"] == stats["drafted"]
    assert sum(stats["draft_lengths"][1:]) < stats["rounds"] / 2


@pytest.mark.parametrize("kind", ["growing tree", "eagle tree"])
def test_a_tree_that_grows_by_confidence_is_looked_at(paths: dict[str, Path], kind: str) -> None:
    tokens, stats, waits = generate(kind, paths, CUDA_DEVICE, **FILTERED)
    assert tokens == generate(kind, paths, "cpu", **FILTERED)[0]
    assert waits > stats["rounds"]


@pytest.mark.parametrize("what", ["counts", "mask"])
def test_what_the_host_must_know(paths: dict[str, Path], what: str) -> None:
    """Penalties count the drafted tokens, and a grammar follows them."""
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        fields = (
            {"mask": _core.testing.StepMask(64)} if what == "mask" else {"presence_penalty": 0.4}
        )
        found.append(generate("draft chain", paths, device, **FILTERED, **fields))
    assert found[0][0] == found[1][0]
    assert found[0][2] > found[0][1]["rounds"]


def test_filters_that_leave_fewer_tokens_than_a_tree_has_ranks(paths: dict[str, Path]) -> None:
    for rule in ("coupled", "rejection"):
        fields = {**FILTERED, "acceptance": rule, "top_k": 2}
        tokens, stats, waits = generate("medusa", paths, CUDA_DEVICE, **fields)
        expected, on_cpu, _ = generate("medusa", paths, "cpu", **fields)
        assert tokens == expected
        assert stats["drafted"] == on_cpu["drafted"]
        assert waits == stats["rounds"]
