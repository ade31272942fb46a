"""Builds of a CMake preset outside of pip, for tests: shared by the scripts that run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build_tools() -> Path:
    """An environment with cmake, ninja and pybind11 in build/tools, made where it is not there yet.

    Always the same folder: a compiler cache tells files by the paths of the headers they include.
    """
    folder = ROOT / "build" / "tools"
    python = folder / "bin" / "python"
    works = [python, "-c", "import cmake, ninja, pybind11"]
    found = python.exists() and subprocess.run(works, capture_output=True, check=False)
    if not found or found.returncode != 0:
        venv.create(folder, clear=True, with_pip=True)
        packages = ["cmake", "ninja", "pybind11>=2.13"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
    return folder


def configure_and_build(preset: str, log: Path | None = None) -> None:
    """Configures and builds a preset, with build tools from an environment of their own.

    Args:
        preset: A name in CMakePresets.json.
        log: Where the compilers' output goes too; the build starts from nothing then.
    """
    tools = build_tools()
    cmake_dir = subprocess.run(
        [tools / "bin" / "python", "-m", "pybind11", "--cmakedir"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    environment = {**os.environ, "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    configure = [
        tools / "bin" / "cmake",
        "--fresh",  # what the last run has found may be gone
        "--preset",
        preset,
        f"-Dpybind11_DIR={cmake_dir}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, cwd=ROOT, env=environment)
    build = [tools / "bin" / "cmake", "--build", ROOT / "build" / preset]
    if log is None:
        subprocess.run(build, check=True, env=environment)
        return
    result = subprocess.run(
        [*build, "--clean-first"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log.write_text(result.stdout)
    if result.returncode != 0:
        raise SystemExit(result.stdout[-20000:])


def make_site(build: Path, variant: str = "") -> Path:
    """A folder with the package and the extension of a build, to put before the installed one.

    Args:
        build: The build's folder.
        variant: A folder in it with another extension of the same name.
    """
    package = build / "site" / variant / "specdec_native"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "specdec_native", package)
    for module in (build / variant).glob("_core*.so"):
        shutil.copy2(module, package)
    return package.parent
