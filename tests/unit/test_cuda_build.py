"""What the CUDA part of a build promises where there is no toolkit, no driver or no device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import specdec_native as sd
from specdec_native import _core

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
CMAKE = shutil.which("cmake", path=TOOLS)
# An nvcc that does not work, as one that dislikes the host compiler or is not there at all.
BROKEN = {**os.environ, "PATH": TOOLS, "CUDACXX": "/nowhere/nvcc"}


def configure(folder: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [str(CMAKE), "-S", str(ROOT), "-B", str(folder), "-DSPECDEC_PYTHON=OFF", *settings]
    return subprocess.run(command, env=BROKEN, capture_output=True, text=True, check=False)


@pytest.mark.skipif(CMAKE is None, reason="needs cmake")
@pytest.mark.skipif(sys.platform == "win32", reason="needs a compiler on PATH")
class TestConfigure:
    """R53."""

    def test_on_without_nvcc_fails_early_and_says_what_to_do(self, tmp_path: Path) -> None:
        result = configure(tmp_path, "-DSPECDEC_CUDA=ON")
        assert result.returncode != 0
        message = " ".join(result.stderr.split())
        assert "SPECDEC_CUDA=ON: no working nvcc was found" in message
        assert "-DSPECDEC_CUDA=OFF" in message

    def test_auto_without_nvcc_builds_for_the_cpu_and_says_why(self, tmp_path: Path) -> None:
        result = configure(tmp_path)
        assert result.returncode == 0, result.stderr
        assert "CUDA backend: not built (no working nvcc was found" in result.stdout

    def test_off_asks_for_nothing(self, tmp_path: Path) -> None:
        result = configure(tmp_path, "-DSPECDEC_CUDA=OFF")
        assert result.returncode == 0, result.stderr
        assert "-DSPECDEC_CUDA=OFF" in result.stdout
        assert "Looking for a CUDA compiler" not in result.stdout

    def test_an_unknown_choice_lists_the_known_ones(self, tmp_path: Path) -> None:
        result = configure(tmp_path, "-DSPECDEC_CUDA=yes")
        assert result.returncode != 0
        assert "choose ON, OFF or AUTO" in " ".join(result.stderr.split())


def test_build_info_says_what_was_built_or_why_not() -> None:
    info = sd.build_info()
    assert info.cuda == (not info.cuda_reason)
    assert info.cuda == bool(info.cuda_architectures)
    assert info.cuda == bool(info.cuda_toolkit)


def test_importing_needs_no_cuda_library() -> None:
    """R55."""
    if not sys.platform.startswith("linux") or shutil.which("readelf") is None:
        pytest.skip("needs readelf")
    listing = subprocess.run(
        ["readelf", "-d", _core.__file__], capture_output=True, text=True, check=True
    ).stdout
    assert "NEEDED" in listing
    assert "libcuda" not in listing


# Runs where no device is visible: prints what each device name gives.
SCRIPT = """
import sys
import specdec_native as sd
for device in ("auto", "cpu", "cuda", "cuda:7"):
    try:
        with sd.Generator(sys.argv[1], device=device, draft=None, progress=False) as gen:
            print(device, "ok", len(gen.generate([3, 4, 5], max_tokens=2).tokens))
    except sd.BackendUnavailableError as error:
        print(device, "unavailable", error)
"""


def test_without_a_device_auto_takes_the_cpu_and_cuda_says_why(tiny_model: Path) -> None:
    """R56."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_model)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[:2] == ["auto ok 2", "cpu ok 2"]
    for line, device in zip(lines[2:], ("cuda", "cuda:7"), strict=True):
        assert line.startswith(f"{device} unavailable device '{device}' is not to be had: ")
        assert "device='cpu'" in line
