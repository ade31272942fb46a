"""Trees of drafting heads on the emulated device: the tokens and the counts of the cpu backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_native import _core
from support.backends import CUDA_DEVICE
from support.engine import FILTERED, GREEDY, load, run
from support.heads import converted, few_token_target, fitted_eagle3, fitted_medusa

MODES = {
    "greedy": GREEDY,
    "coupled": FILTERED,
    "rejection": {**FILTERED, "acceptance": "rejection"},
}
PROMPT = [5, 90, 17, 61, 8]


@pytest.fixture(scope="module")
def paths(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A target, its Medusa heads, its EAGLE head."""
    folder = tmp_path_factory.mktemp("heads")
    source = make_model(dtype="f32", seed=4, tied=False)
    target = few_token_target(source, folder / "few.gguf")
    model = load(target, "cpu")
    medusa = fitted_medusa(folder / "medusa", target, model)
    eagle = fitted_eagle3(folder / "eagle", target, model, [2, 3, 4])
    return [target, converted(medusa, target), converted(eagle, target)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_heads_draft_the_same_and_change_nothing(paths: list[Path], kind: str, mode: str) -> None:
    fields = {**MODES[mode], "seed": 2, "max_tokens": 16}
    found = []
    for device in (CUDA_DEVICE, "cpu"):
        model = load(paths[0], device)
        if kind == "medusa":
            heads = _core.MedusaHeads.load(str(paths[1]), model)
            drafter = _core.MedusaDrafter(heads, _core.heaviest_ranks(7, 3, 64))
        else:
            drafter = _core.EagleDrafter(_core.EagleHead.load(str(paths[2]), model), 128, "f16", 6)
        found.append(run(model, PROMPT, [drafter], n_ctx=128, **fields))
        if kind == "medusa" and device == CUDA_DEVICE:
            recorded, repeated = _core.testing.recordings(drafter)
            assert recorded > 0
            assert repeated > 0
    assert found[0].tokens == found[1].tokens
    assert found[0].stats["drafted"] == found[1].stats["drafted"] > 0
    assert found[0].stats["accepted"] == found[1].stats["accepted"] > 0
    if mode != "rejection":
        plain = run(load(paths[0], "cpu"), PROMPT, n_ctx=128, **fields)
        assert found[0].tokens == plain.tokens
