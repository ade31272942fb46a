"""Builds the `cuda-emu` preset and runs the CUDA kernels' tests on it, without a GPU.

Run it with the Python of an environment that has the package's [test] extra; cmake, ninja and
pybind11 are installed into an environment of their own. Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from preset_build import configure_and_build, make_site
from sanitizers import sanitizer_environment

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda-emu"
OPERATIONS = [
    "tests/cuda_emu/test_cache_ops.py",
    "tests/cuda_emu/test_dense_ops.py",
    "tests/cuda_emu/test_sampling_ops.py",
]
WATCHED = [
    *OPERATIONS,
    "tests/cuda_emu/test_emulator.py::test_sanitizers_see_lanes_and_device_memory",
]
# Every kernel and every type, but not every size: ThreadSanitizer makes them slow.
SMALL = "not 37-256 and not 130-32 and not many_thread_blocks and not many_rows and not 190"
BACKWARDS = {"SPECDEC_EMU_ORDER": "reverse", "SPECDEC_EMU_DEFER": "1"}


@dataclass(frozen=True)
class TestRun:
    """One call of pytest.

    Attributes:
        name: What it shows.
        tests: Files and options.
        settings: Environment variables.
        sanitizer: Which extension: that of `asan` or `tsan`, or the plain one.
    """

    name: str
    tests: list[str]
    settings: dict[str, str] = field(default_factory=dict)
    sanitizer: str = ""


# The operation tests of all backends take the emulated device as a further one.
RUNS = [
    TestRun(
        "lanes ascending, work at once",
        [
            "tests/cuda_emu",
            "tests/ops/test_sampling.py",
            "tests/ops/test_sampling_chain.py",
            "tests/ops/test_verify.py",
        ],
    ),
    TestRun(
        "lanes descending, work deferred", ["tests/cuda_emu", "tests/ops/test_verify.py"], BACKWARDS
    ),
    TestRun(
        "kernels under AddressSanitizer and UndefinedBehaviorSanitizer",
        WATCHED,
        sanitizer="asan",
    ),
    TestRun(
        "kernels under ThreadSanitizer, a lane a thread",
        [*WATCHED, "-k", SMALL],
        sanitizer="tsan",
    ),
]


def run(one: TestRun, arguments: list[str]) -> int:
    """Runs pytest; returns its exit code."""
    site = make_site(BUILD, one.sanitizer)
    program = f"emulator_faults{one.sanitizer and '_' + one.sanitizer}"
    shutil.copy2(BUILD / program, site / "specdec_native" / "emulator_faults")
    environment = {**os.environ, **one.settings, "PYTHONPATH": str(site)}
    if one.sanitizer:
        environment |= sanitizer_environment(one.sanitizer)
        environment["SPECDEC_KERNELS_SANITIZED"] = one.sanitizer
    print(f"--- {one.name}", flush=True)
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *one.tests]
    code = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False).returncode
    print(f"--- {time.monotonic() - begin:.0f} s", flush=True)
    return code


def main() -> int:
    """Builds, runs, and returns pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        configure_and_build(Path(folder), "cuda-emu")
    return next((code for one in RUNS if (code := run(one, sys.argv[1:])) != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
