"""Builds the `asan` preset and runs the C++-heavy tests on it (Linux, g++ or clang).

Run it with the Python of an environment that has the package's [test] extra and pybind11 at hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from preset_build import configure_and_build, make_site
from sanitizers import sanitizer_environment

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "asan"
TESTS = [
    "tests/unit/test_gguf_reader.py",
    "tests/unit/test_dequantize.py",
    "tests/unit/test_thread_pool.py",
    "tests/unit/test_byte_pairs.py",
    "tests/ops",
    "tests/e2e/test_decode_loop.py",
    "tests/e2e/test_exactness.py",
    "tests/e2e/test_compatibility.py",
    "tests/e2e/test_generator.py",
]


def main() -> int:
    """Builds, runs, and returns pytest's exit code."""
    configure_and_build("asan")
    environment = {
        **os.environ,
        **sanitizer_environment("asan"),
        "PYTHONPATH": str(make_site(BUILD)),
        "SPECDEC_SANITIZED": "1",
    }
    options = ["-q", "-p", "no:cacheprovider", "-n", "auto"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
