"""The build backend: scikit-build-core, and a newer CMake where CUDA needs one.

CMake before 3.26 does not know C++20 of nvcc, so the CUDA backend would be left out. Where there is
an nvcc and only such a CMake, pip is asked to get another for the build; without nvcc, nothing is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scikit_build_core import build as _base
from scikit_build_core.build import (
    build_editable,
    build_sdist,
    build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_KNOWS_CUDA = (3, 26)

Settings = Mapping[str, str | list[str]]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    """What pip installs before it builds a wheel."""
    return _base.get_requires_for_build_wheel(config_settings) + _newer_cmake(config_settings)


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    """What pip installs before an editable install."""
    return _base.get_requires_for_build_editable(config_settings) + _newer_cmake(config_settings)


def get_requires_for_build_sdist(config_settings: Settings | None = None) -> list[str]:
    """What is needed for a source distribution: nothing is compiled."""
    return _base.get_requires_for_build_sdist(config_settings)


def _newer_cmake(config_settings: Settings | None) -> list[str]:
    if str((config_settings or {}).get("cmake.define.SPECDEC_CUDA", "AUTO")).upper() == "OFF":
        return []
    if not _has_nvcc():
        return []
    version = _cmake_version()
    if version is None or version >= _KNOWS_CUDA:
        return []  # without any, scikit-build-core asks for the newest
    return [f"cmake>={'.'.join(map(str, _KNOWS_CUDA))}"]


def _has_nvcc() -> bool:
    """Where CMake looks for it."""
    found = os.environ.get("CUDACXX") or shutil.which("nvcc")
    return found is not None or Path("/usr/local/cuda/bin/nvcc").exists()


def _cmake_version() -> tuple[int, int] | None:
    program = shutil.which("cmake")
    if program is None:
        return None
    text = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False
    ).stdout
    match = re.search(r"version (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
