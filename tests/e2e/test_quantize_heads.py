"""Files of drafting heads are quantised like models, and draft as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import specdec_native as sd
from specdec_native import _core
from support.engine import load
from support.heads import converted, few_token_target, fitted_eagle3, fitted_medusa


@pytest.fixture(scope="module")
def target(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = make_model(dtype="f32", seed=4, tied=False)
    return few_token_target(source, tmp_path_factory.mktemp("target") / "few.gguf")


@pytest.fixture(scope="module", params=["eagle", "medusa"])
def head(
    request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("heads") / request.param
    if request.param == "eagle":
        return converted(fitted_eagle3(folder, target, load(target), [2, 3, 4]), target)
    return converted(fitted_medusa(folder, target, load(target)), target)


@pytest.mark.parametrize("name", ["q8_0", "q4_k_m"])
def test_heads(head: Path, target: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.gguf"
    result = sd.quantize(head, out, name)
    expected = "Q8_0" if name == "q8_0" else "Q5_0"  # rows of 64 are no whole blocks of Q4_K
    assert expected in {one.to_type for one in result.tensors}
    kind = "eagle" if "eagle" in str(head) else "medusa"
    if kind == "eagle":
        before, after = (_core.GgufFile(one) for one in (head, out))
        assert {one.name: one.dtype for one in after.tensors}["d2t"] == "I64"
        assert [one.shape for one in after.tensors] == [one.shape for one in before.tensors]
    with sd.Generator(target, draft=None, progress=False) as generator:
        plain = generator.generate("the cat", max_tokens=40, temperature=0).tokens
    draft: sd.Drafter
    if kind == "eagle":
        draft = sd.EagleDraft(out, adaptive=False)
    else:
        draft = sd.MedusaDraft(out, adaptive=False)
    with sd.Generator(target, draft=draft, progress=False) as generator:
        done = generator.generate("the cat", max_tokens=40, temperature=0)
    assert done.tokens == plain
    assert done.stats.accepted > 0
