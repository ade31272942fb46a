"""Builds the `asan` preset and runs the C++-heavy tests on it (Linux, g++ or clang).

Run it with the Python of an environment that has the package's [test] extra and pybind11 at hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "asan"
TESTS = [
    "tests/unit/test_gguf_reader.py",
    "tests/unit/test_dequantize.py",
    "tests/unit/test_thread_pool.py",
    "tests/ops",
    "tests/e2e/test_decode_loop.py",
    "tests/e2e/test_exactness.py",
    "tests/e2e/test_compatibility.py",
    "tests/e2e/test_generator.py",
]


def build(tools: Path) -> None:
    """Configures and builds with cmake, ninja and pybind11 from an environment of their own."""
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
        "--preset",
        "asan",
        f"-Dpybind11_DIR={cmake_dir}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, cwd=ROOT, env=environment)
    subprocess.run([tools / "bin" / "cmake", "--build", BUILD], check=True, env=environment)


def make_site() -> Path:
    """A folder with the package and the sanitized extension, to put before the installed one."""
    package = BUILD / "site" / "specdec_native"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "specdec_native", package)
    for module in BUILD.glob("_core*.so"):
        shutil.copy2(module, package)
    return package.parent


def main() -> int:
    """Builds, runs, and returns pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
    # libstdc++ too: the sanitizer looks up __cxa_throw at its start, before the module is there.
    compiler = os.environ.get("CXX", "g++")
    preloaded = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # the interpreter itself leaks
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONPATH": str(make_site()),
        "SPECDEC_SANITIZED": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
