"""The search for layers to draft with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import specdec_native as sd
from specdec_native.layer_search import PassCosts, best_chain, choose_layers


def test_best_chain() -> None:
    """By hand: two drafted tokens of half a pass each, all accepted, in a pass of 1.2."""
    assert best_chain(1.0, 0.5, [1.0, 1.1, 1.2]) == (pytest.approx(3 / 2.2), 2)
    assert best_chain(0.5, 0.5, [1.0, 1.0, 1.0]) == (pytest.approx(1.0), 1)
    assert best_chain(0.0, 0.1, [2.0, 2.0]) == (pytest.approx(2 / 2.1), 1)
    flat = [1.0] * 9
    lengths = [best_chain(rate, 0.05, flat)[1] for rate in (0.1, 0.5, 0.8, 0.95)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_the_least_missed_layers_go_first() -> None:
    """A made-up target: each layer left out costs its own share of acceptance."""
    shares = [0.5, 0.01, 0.3, 0.0, 0.02, 0.4]
    asked: list[tuple[int, ...]] = []

    def acceptance(layers: Sequence[int]) -> float:
        asked.append(tuple(layers))
        return max(0.0, 0.98 - sum(shares[i] for i in range(6) if i not in layers))

    costs = PassCosts(passes=(6.0,) * 9, draft_base=0.1, draft_layer=1.0)
    found = choose_layers(6, acceptance, costs)
    assert found.draft.layers == (0, 2, 5)
    assert found.acceptance == pytest.approx(0.95)
    draft_ms = 0.1 + 3 * 1.0
    assert (found.speedup, found.draft.max_draft) == best_chain(0.95, draft_ms, (6.0,) * 9)
    assert found.tried == len(asked) == len(set(asked))
    assert found.speedup == max(
        best_chain(acceptance(subset), 0.1 + len(subset), (6.0,) * 9)[0] for subset in asked[5:]
    )


def test_a_target_that_needs_all_its_layers() -> None:
    """The search ends early, and says that nothing pays."""
    found = choose_layers(8, lambda layers: 0.0, PassCosts((1.0, 1.3), 0.01, 0.2))
    assert found.speedup < 1
    assert found.tried == 8


def test_a_search_on_a_model(tiny_model: Path, tmp_path: Path) -> None:
    found = sd.search_layers(tiny_model, texts=["once upon a time", "the"], tokens=12, threads=1)
    layers = found.draft.layers
    assert isinstance(layers, tuple)
    assert 0 < len(layers) < 4
    assert 0 in layers  # the first layer decides nearly everything in the tiny model
    assert 0.2 < found.acceptance <= 1
    path = tmp_path / "layers.json"
    found.draft.save(path)
    assert sd.LayerSkipDraft.load(path) == found.draft
    with sd.Generator(tiny_model, draft=f"layerskip:{path}", progress=False) as gen:
        result = gen.generate("once upon", max_tokens=20, temperature=0)
    assert result.stats.drafted > 0
    for text in ("{", "[1]", json.dumps({"layers": [0], "depth": 3}), json.dumps({"layers": []})):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"layers.json: no saved LayerSkipDraft"):
            sd.LayerSkipDraft.load(path)
    with pytest.raises(FileNotFoundError):
        sd.LayerSkipDraft.load(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match="tokens is 1"):
        sd.search_layers(tiny_model, tokens=1)
    with pytest.raises(ValueError, match="holds no text"):
        sd.search_layers(tiny_model, texts=[])
