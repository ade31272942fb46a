"""Every architecture: exact under drafting, the same row at any width, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec_native as sd
from make_tiny_heads import make_eagle3, make_medusa
from make_tiny_model import cut_layers
from model_families import FAMILIES, architecture_name
from specdec_native import _core
from support.engine import FILTERED, GREEDY, load, run

MODES = {"greedy": GREEDY, "coupled": FILTERED}
ModelFactory = Callable[..., Path]


def tiny(make_model: ModelFactory, family: str, **fields: Any) -> Path:
    """A model of the family with windows shorter than the texts of these tests."""
    return make_model(family=family, dtype="q8_0", seed=3, layers=4, **fields)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(7)
    random = [int(t) for t in rng.integers(3, 300, size=70)]
    return [random, [int(t) for t in np.tile(rng.integers(3, 300, size=9), 5)], [5]]


@pytest.mark.parametrize("family", FAMILIES)
def test_drafting_changes_no_token(make_model: ModelFactory, tmp_path: Path, family: str) -> None:
    path = tiny(make_model, family)
    target, draft = load(path), load(cut_layers(path, tmp_path / "cut.gguf", 2))
    other = load(make_model(dtype="q4_0", seed=3))  # a draft of another architecture
    accepted = rejected = 0
    for mode, base in MODES.items():
        for index, prompt in enumerate(prompts()):
            fields = {**base, "seed": index, "max_tokens": 48}
            plain = run(target, prompt, **fields)
            drafters = {
                "ngram": _core.NgramDrafter(8, 1, 4),
                "suffix": _core.SuffixDrafter(6, 1, 8, 3, 0.01),
                "draft": _core.DraftModelDrafter(draft, 512, "f16", 4),
                "other": _core.DraftModelDrafter(other, 512, "f16", 3),
                "skip": _core.LayerSkipDrafter(target, [0, 3], 4),
            }
            for name, drafter in drafters.items():
                drafted = run(target, prompt, [drafter], **fields)
                assert drafted.tokens == plain.tokens, (name, mode, index)
                accepted += drafted.stats["accepted"]
                rejected += drafted.stats["drafted"] - drafted.stats["accepted"]
    assert accepted > 50
    assert rejected > 50


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_same_at_any_width(make_model: ModelFactory, family: str) -> None:
    model = load(tiny(make_model, family))
    tokens = [int(t) for t in np.random.default_rng(11).integers(3, 300, size=96)]
    serial = _core.Generator(model, 128, "f16")
    expected = np.concatenate([serial.logits(tokens[: i + 1], i) for i in range(len(tokens))])
    for width in (2, 5, 16, 96):
        wide = _core.Generator(model, 128, "f16")
        rows = [wide.logits(tokens[: i + width], i) for i in range(0, len(tokens), width)]
        assert np.concatenate(rows)[: len(tokens)].tobytes() == expected.tobytes(), width


@pytest.mark.parametrize("family", ["gemma2", "gpt-oss", "phi3"])
def test_windows_hide_what_lies_behind(make_model: ModelFactory, family: str) -> None:
    """With all layers local, a token further back than layers * window changes nothing."""
    name = architecture_name(family)
    size = 8
    keys: dict[str, Any] = {f"{name}.attention.sliding_window": size}
    if family != "phi3":
        keys[f"{name}.attention.sliding_window_pattern"] = [True, True]
    path = make_model(family=family, dtype="f32", layers=2, metadata=keys)
    model = load(path)
    tokens = [int(t) for t in np.random.default_rng(3).integers(3, 300, size=80)]
    last = _core.Generator(model, 128, "f32").logits(tokens, len(tokens) - 1)
    reach = 2 * (size - 1)  # the first position that the last row sees, through both layers
    for back, same in ((reach + 1, True), (reach, False)):
        changed = list(tokens)
        changed[-1 - back] = changed[-1 - back] % 290 + 5
        logits = _core.Generator(model, 128, "f32").logits(changed, len(tokens) - 1)
        assert np.array_equal(logits, last) == same, back


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        (
            "llama",
            {"general.architecture": "mamba"},
            "supported architectures: llama, qwen2, .*gpt-oss",
        ),
        ("llama", {"general.architecture": "falcon-h1"}, "'falcon-h1'; supported"),
        ("qwen3moe", {"qwen3moe.expert_gating_func": 2}, "expert_gating_func is 2; supported: 1"),
        ("qwen3moe", {"qwen3moe.expert_used_count": 9}, "expert_used_count is 9 of 8 experts"),
        ("qwen3moe", {"qwen3moe.expert_count": None}, "expert_count"),
        ("qwen2", {"qwen2.rope.scaling.type": "dynamic"}, "'dynamic'; supported: none, linear"),
        ("phi3", {"phi3.rope.scaling.type": "longrope"}, "'rope_factors_long.weight' is missing"),
        ("qwen3", {"qwen3.expert_count": 4}, "mixtures of experts of the architecture qwen3"),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": [True]}, "1 elements for 4 layers"),
        ("gpt-oss", {"gpt-oss.attention.sliding_window": None}, "sliding_window is missing or 0"),
        ("qwen2", {"qwen2.attention.causal": False}, "attention.causal is false"),
    ],
)
def test_what_is_not_supported_is_refused(
    make_model: ModelFactory, family: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(sd.GgufError, match=message):
        load(make_model(family=family, metadata=keys))


@pytest.mark.parametrize(
    ("family", "tensor"),
    [("qwen2", r"blk\.0\.attn_k\.bias"), ("gpt-oss", r"blk\.1\.attn_sinks"), ("qwen3", r"q_norm")],
)
def test_a_missing_tensor_is_named(make_model: ModelFactory, family: str, tensor: str) -> None:
    with pytest.raises(sd.GgufError, match=r"tensor 'blk\.\d\..*' is missing"):
        load(make_model(family=family, omit_tensors=tensor))


@pytest.mark.parametrize("family", ["gemma2", "starcoder2", "olmo2", "gpt-oss"])
def test_heads_draft_for_any_architecture(
    make_model: ModelFactory, tmp_path: Path, family: str
) -> None:
    """Layer norms, caps and post norms in the target; random heads guess badly but harm nothing."""
    path = make_model(family=family, dtype="q8_0", seed=3, layers=4, tied=False)
    target = load(path)
    medusa = make_medusa(tmp_path / "medusa", heads=3, shared=True)
    eagle = make_eagle3(tmp_path / "eagle")
    files = [tmp_path / "medusa.gguf", tmp_path / "eagle.gguf"]
    for folder, out in zip((medusa, eagle), files, strict=True):
        sd.convert(folder, out, "f32", target=path, progress=False)
    heads = _core.MedusaHeads.load(str(files[0]), target)
    head = _core.EagleHead.load(str(files[1]), target)
    for mode in MODES.values():
        fields = {**mode, "max_tokens": 32}
        plain = run(target, prompts()[1], **fields)
        for drafter in (
            _core.MedusaDrafter(heads, [[0], [0, 0], [1]]),
            _core.EagleDrafter(head, 512, "f16", 3),
        ):
            drafted = run(target, prompts()[1], [drafter], **fields)
            assert drafted.tokens == plain.tokens
            assert drafted.stats["drafted"] > 0


def test_build_info_lists_the_architectures() -> None:
    assert set(sd.build_info().architectures) == {architecture_name(name) for name in FAMILIES}
