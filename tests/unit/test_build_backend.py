"""Which CMake the build asks pip for."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "cmake" / "build_backend" / "specdec_build.py"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs here are shell scripts")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build backend on top of one that asks for nothing."""
    base = ModuleType("scikit_build_core.build")
    for hook in ("wheel", "editable", "sdist"):
        setattr(base, f"build_{hook}", None)
        setattr(base, f"prepare_metadata_for_build_{hook}", None)
        setattr(base, f"get_requires_for_build_{hook}", lambda settings=None: ["base"])
    package = ModuleType("scikit_build_core")
    package.build = base  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scikit_build_core", package)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", base)
    spec = importlib.util.spec_from_file_location("specdec_build", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_metadata_needs_no_build(backend: ModuleType) -> None:
    # Without these hooks pip compiles everything to learn the package's name.
    for hook in ("wheel", "editable"):
        assert f"prepare_metadata_for_build_{hook}" in backend.__all__


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **made: str) -> None:
    """A PATH with nothing but programs that print a line each."""
    for name, text in made.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.fspath(folder))
    monkeypatch.delenv("CUDACXX", raising=False)
    exists = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path: not str(path).startswith("/usr/local/cuda") and exists(path)
    )


def test_an_old_cmake_beside_an_nvcc_is_replaced(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, cmake="cmake version 3.25.1", nvcc="")
    assert backend.get_requires_for_build_wheel() == ["base", "cmake>=3.26"]
    assert backend.get_requires_for_build_editable(None) == ["base", "cmake>=3.26"]
    assert backend.get_requires_for_build_sdist() == ["base"]
    off = {"cmake.define.SPECDEC_CUDA": "OFF"}
    assert backend.get_requires_for_build_wheel(off) == ["base"]


@pytest.mark.parametrize("version", ["3.26.0", "3.31.4", "4.1.0"])
def test_a_newer_cmake_stays(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    programs(tmp_path, monkeypatch, cmake=f"cmake version {version}", nvcc="")
    assert backend.get_requires_for_build_wheel() == ["base"]


def test_without_an_nvcc_any_cmake_does(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, cmake="cmake version 3.22.0")
    assert backend.get_requires_for_build_wheel() == ["base"]
    monkeypatch.setenv("CUDACXX", "/opt/cuda/bin/nvcc")
    assert backend.get_requires_for_build_wheel() == ["base", "cmake>=3.26"]


def test_without_a_cmake_the_base_decides(
    backend: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, nvcc="")
    assert backend.get_requires_for_build_wheel() == ["base"]
