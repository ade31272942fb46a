"""Models spread over devices: the text is that of the CPU, wherever things are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specdec_native as sd
from specdec_native import _core
from support.engine import FILTERED, GREEDY, load, run
from support.heads import converted, few_token_target, fitted_eagle3

MODES: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "coupled": FILTERED,
    "rejection": {**FILTERED, "acceptance": "rejection"},
    "penalties": {**FILTERED, "acceptance": "rejection", "presence_penalty": 0.4},
}
PROMPT = [5, 9, 17, 5, 9, 17, 5, 9, 31, 5, 9]


def split(path: Path, layers: int, first: str = "cuda_emu", rest: str = "cpu") -> _core.Model:
    backends = [_core.make_backend(name, 2) for name in (first, rest)]
    return _core.Model.load(str(path), backends[0], None, backends[1], layers)


# --- A draft model on another device --------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("target", "draft"),
    [("cuda_emu", "cpu"), ("cpu", "cuda_emu"), ("cuda_emu:0", "cuda_emu:1")],
)
def test_a_draft_on_another_device_drafts_the_same(
    make_model: Callable[..., Path], target: str, draft: str, mode: str
) -> None:
    path = make_model(dtype="q4_0", seed=3)
    fields = {**MODES[mode], "max_tokens": 20, "seed": 5}
    found = []
    for where in ((target, draft), ("cpu", "cpu")):
        drafter = _core.DraftModelDrafter(load(path, where[1]), 256, "f16", 3)
        found.append(run(load(path, where[0]), PROMPT, [drafter], **fields))
    assert found[0].tokens == found[1].tokens
    assert found[0].stats["drafted"] == found[1].stats["drafted"]
    assert found[0].stats["accepted"] == found[1].stats["accepted"] > 0


# --- Layers on two backends -----------------------------------------------------------------------


@pytest.mark.parametrize("layers", [0, 1, 2, 3, 4, -1])
@pytest.mark.parametrize("tied", [True, False])
def test_any_split_gives_the_same_logits(
    make_model: Callable[..., Path], layers: int, tied: bool
) -> None:
    path = make_model(dtype="q4_0", seed=3, layers=3, tied=tied)
    tokens = [3 + 7 * i % 290 for i in range(40)]
    model = split(path, layers)
    whole = layers in (-1, 0, 4)
    expected = "cpu" if layers == 0 else "cuda_emu"
    assert model.spans == (
        [(expected, 3)] if whole else [("cuda_emu", layers), ("cpu", 3 - layers)]
    )
    found = [_core.Generator(one, 128, "f16").logits(tokens, 0) for one in (model, load(path))]
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_a_split_target_with_trees_and_rollback(make_model: Callable[..., Path], mode: str) -> None:
    path = make_model(dtype="q4_0", seed=3, layers=3)
    fields = {**MODES[mode], "max_tokens": 24, "seed": 11}
    found = []
    for model in (split(path, 2), split(path, 1, "cuda_emu", "cuda_emu:1"), load(path)):
        drafter = _core.DraftModelDrafter(model, 256, "f16", 5, branches=2)
        found.append(run(model, PROMPT, [drafter], **fields))
    assert found[0].tokens == found[1].tokens == found[2].tokens
    assert found[0].stats["accepted"] == found[2].stats["accepted"] > 0


@pytest.mark.parametrize("family", ["gemma3", "mistral3", "qwen2moe", "smollm3"])
def test_other_families_in_two_parts(make_model: Callable[..., Path], family: str) -> None:
    """Windows, angles and scales by layer, experts: a layer keeps its number in the second part."""
    path = make_model(family=family, dtype="q8_0", layers=4)
    tokens = [3 + 7 * i % 290 for i in range(85)]
    models = (split(path, 1), split(path, 2), load(path))
    found = [_core.Generator(one, 128, "f16").logits(tokens, 80).tobytes() for one in models]
    assert found[0] == found[1] == found[2]


def test_layer_skip_on_a_split_target(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="q4_0", seed=3, layers=4)
    fields = {**FILTERED, "max_tokens": 20, "seed": 2}
    found = []
    for model in (split(path, 2), load(path)):
        drafter = _core.LayerSkipDrafter(model, [0, 1, 3], 3)
        found.append(run(model, PROMPT, [drafter], **fields))
    assert found[0].tokens == found[1].tokens
    assert found[0].stats["accepted"] == found[1].stats["accepted"] > 0


def test_an_eagle_head_reads_states_of_both_parts(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_model(dtype="f32", seed=4, tied=False)
    path = few_token_target(source, tmp_path / "few.gguf")
    model = load(path, "cpu")
    head = converted(fitted_eagle3(tmp_path / "eagle", path, model, [2, 3, 4]), path)
    fields = {**FILTERED, "seed": 2, "max_tokens": 16}
    found = []
    for target in (split(path, 3), model):
        drafter = _core.EagleDrafter(_core.EagleHead.load(str(head), target), 128, "f16", 3)
        found.append(run(target, PROMPT, [drafter], n_ctx=128, **fields))
    assert found[0].tokens == found[1].tokens
    assert found[0].stats["accepted"] == found[1].stats["accepted"] > 0


# --- The face -------------------------------------------------------------------------------------


def test_the_face_places_layers_and_drafts(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="q4_0", seed=3, layers=3)
    draft = sd.DraftModel(path, adaptive=False, device="cpu")
    fields: dict[str, Any] = {"max_tokens": 12, "temperature": 0.7, "seed": 4}
    found = []
    for extra in (
        {"device": "cuda_emu", "gpu_layers": 2},
        {"device": "cuda_emu", "gpu_layers": 0},
        {"device": "cuda_emu"},
        {"device": "cpu"},
    ):
        with sd.Generator(path, draft=draft, n_ctx=64, progress=False, **extra) as gen:
            found.append(gen.generate(PROMPT, **fields).tokens)
            everything = gen.memory()
            parts = [gen.memory(device=name) for name in ("cpu", "cuda_emu:0")]
            for name, count in everything.items():
                assert count == sum(part[name] for part in parts), name
            layers = extra.get("gpu_layers", 3 if "cuda" in extra["device"] else 0)
            assert parts[1]["target_cache"] * 3 == everything["target_cache"] * layers
            assert parts[1]["draft_weights"] == 0
    assert found[0] == found[1] == found[2] == found[3]


def test_an_estimate_of_what_a_device_will_hold(make_model: Callable[..., Path]) -> None:
    path = make_model(dtype="q8_0", seed=3, layers=3, tied=False)
    for layers in (0, 1, 3, -1):
        estimate = sd.estimate_memory(path, n_ctx=64, gpu_layers=layers)
        with sd.Generator(
            path, draft=None, device="cuda_emu", gpu_layers=layers, n_ctx=64, progress=False
        ) as gen:
            use = gen.memory(device="cuda_emu")
        assert estimate["target_cache"] == use["target_cache"]
        assert use["target_weights"] == pytest.approx(estimate["target_weights"], rel=0.02)


def test_what_does_not_fit_is_refused_with_figures_and_the_number_that_would(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(dtype="f32", width=256, heads=4, head_dim=64, ffn=512, layers=4)
    fields: dict[str, Any] = {"draft": None, "n_ctx": 128, "progress": False, "device": "cuda_emu"}
    needed = [
        sd.estimate_memory(path, n_ctx=128, gpu_layers=layers)["total"] for layers in (0, 2, 3)
    ]
    used = _core.make_backend("cuda_emu").free_bytes
    assert used is not None
    monkeypatch.setenv("SPECDEC_EMU_MEMORY", str((2 << 30) - used + needed[2] - 1))
    with pytest.raises(sd.OutOfMemoryError, match=r"MiB are free; gpu_layers=2 would fit"):
        sd.Generator(path, **fields)
    with pytest.raises(sd.OutOfMemoryError, match=r"gpu_layers=2 would fit \(of 4 layers"):
        sd.Generator(path, gpu_layers=3, **fields)
    with sd.Generator(path, gpu_layers=2, **fields) as gen:
        assert gen.generate([3, 4], max_tokens=2, temperature=0).tokens
    monkeypatch.setenv("SPECDEC_EMU_MEMORY", str((2 << 30) - used + 1000))
    with pytest.raises(sd.OutOfMemoryError, match="not even one layer fits: use device='cpu'"):
        sd.Generator(path, **fields)
    # What the estimate let through, the device refuses.
    with pytest.raises(sd.OutOfMemoryError, match=r"MiB more are needed, .* MiB are free"):
        load(path, "cuda_emu")


def test_wrong_places_say_what_is_known(make_model: Callable[..., Path]) -> None:
    path = make_model()
    for device in ("auto", "cpu", "ref"):
        with pytest.raises(ValueError, match=r"has no GPU; name one, such as device='cuda'"):
            sd.Generator(path, device=device, gpu_layers=2)
    with pytest.raises(ValueError, match="gpu_layers is -2"):
        sd.Generator(path, device="cuda_emu", gpu_layers=-2)
    with pytest.raises(ValueError, match="device is 'gpu'; known are"):
        sd.Generator(path, draft=sd.DraftModel(path, device="gpu"))
    with pytest.raises(sd.BackendUnavailableError, match="'cuda_emu:0' to 'cuda_emu:1'"):
        sd.Generator(path, device="cuda_emu:2")


def test_heads_stay_with_the_output_head(make_model: Callable[..., Path], tmp_path: Path) -> None:
    source = make_model(dtype="f32", seed=4, tied=False)
    path = few_token_target(source, tmp_path / "few.gguf")
    head = converted(fitted_eagle3(tmp_path / "eagle", path, load(path, "cpu"), [2, 3, 4]), path)
    where = sd.EagleDraft(head, device="cuda_emu")
    with sd.Generator(path, draft=where, device="cuda_emu:0", progress=False) as gen:
        assert gen.memory(device="cuda_emu")["draft_weights"] > 0
    with pytest.raises(ValueError, match=r"run on 'cuda_emu', .* its output head is, on 'cpu'"):
        sd.Generator(path, draft=where, device="cuda_emu", gpu_layers=1, progress=False)
