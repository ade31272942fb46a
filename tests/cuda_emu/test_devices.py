"""Devices that are absent, too old, full, or given back: what is said, and what is left."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

import specdec_native as sd
from specdec_native import _core
from support.engine import load


def free_bytes(device: str = "cuda_emu") -> int:
    gc.collect()
    free = _core.make_backend(device).free_bytes
    assert free is not None
    return free


def test_a_device_older_than_the_build_is_named_beside_what_was_built(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    """R54."""
    monkeypatch.setenv("SPECDEC_EMU_CAPABILITY", "61")
    with pytest.raises(sd.BackendUnavailableError) as caught:
        sd.Generator(tiny_model, device="cuda_emu", draft=None, progress=False)
    message = str(caught.value)
    assert "emulated device, compute capability 6.1" in message
    assert f"kernels, made for {' '.join(sd.build_info().cuda_architectures)}: " in message
    assert "no kernel image" in message
    assert "-DSPECDEC_CUDA_ARCHITECTURES=61" in message
    assert "device='cpu'" in message
    monkeypatch.setenv("SPECDEC_EMU_CAPABILITY", "103")
    assert _core.make_backend("cuda_emu").device == 0


def test_no_device_is_an_error_and_the_cpu_still_works(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    """R56."""
    monkeypatch.setenv("SPECDEC_EMU_DEVICES", "0")
    with pytest.raises(sd.BackendUnavailableError, match=r"no CUDA device is visible; check"):
        sd.Generator(tiny_model, device="cuda_emu", progress=False)
    with sd.Generator(tiny_model, device="auto", progress=False) as gen:
        assert gen.generate([3, 4], max_tokens=2).tokens


@pytest.mark.parametrize("name", ["cuda_emu:2", "cuda_emu:x", "cuda_emu:", "cuda_emu:-1"])
def test_numbers_of_devices_that_are_not_there(name: str) -> None:
    with pytest.raises(sd.BackendUnavailableError, match="there are 2 CUDA devices"):
        _core.make_backend(name)


def test_memory_goes_back_to_where_it_was(make_model: Callable[..., Path]) -> None:
    """R40: load, generate, delete, twenty times."""
    path = make_model(dtype="q4_0", seed=3, layers=2)
    draft = [sd.DraftModel(path, max_draft=3, adaptive=False), "ngram"]
    before = free_bytes()
    during = set()
    for turn in range(20):
        gen = sd.Generator(path, draft=draft, device="cuda_emu", n_ctx=64, progress=False)
        assert len(gen.generate([5, 9, 17, 5, 9], max_tokens=6, temperature=0).tokens) == 6
        during.add(free_bytes())
        if turn % 2:
            gen.close()
            assert free_bytes() == before  # though `gen` is still there
        del gen
        assert free_bytes() == before
    assert len(during) == 1
    assert during.pop() < before


def test_a_load_that_fails_gives_its_memory_back(
    make_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_model(dtype="f32", width=256, heads=4, head_dim=64, ffn=512, layers=4)
    before = free_bytes()
    monkeypatch.setenv("SPECDEC_EMU_MEMORY", str((2 << 30) - before + (4 << 20)))
    with pytest.raises(sd.OutOfMemoryError, match="MiB more are needed"):
        load(path, "cuda_emu")
    monkeypatch.delenv("SPECDEC_EMU_MEMORY")
    assert free_bytes() == before
