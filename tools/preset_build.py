"""Builds of a CMake preset outside of pip, for tests: shared by the scripts that run them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def configure_and_build(tools: Path, preset: str, log: Path | None = None) -> None:
    """Configures and builds a preset, with build tools from an environment of their own.

    Args:
        tools: An empty folder for the environment with cmake, ninja and pybind11.
        preset: A name in CMakePresets.json.
        log: Where the compilers' output goes too; the build starts from nothing then.
    """
    venv.create(tools, with_pip=True)
    python = tools / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "cmake", "ninja", "pybind11>=2.13"], check=True
    )
    cmake_dir = subprocess.run(
        [python, "-m", "pybind11", "--cmakedir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    environment = {**os.environ, "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    configure = [
        tools / "bin" / "cmake",
        "--fresh",  # the tools of the last run are gone
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
