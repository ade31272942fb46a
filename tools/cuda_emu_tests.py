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
from pathlib import Path

from preset_build import configure_and_build, make_site

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda-emu"
# The operation tests take the emulated device as a further backend; the other order of lanes and a
# host that never waits by accident are worth a second run of the quick ones.
RUNS: list[tuple[list[str], dict[str, str]]] = [
    (
        [
            "tests/cuda_emu",
            "tests/ops/test_sampling.py",
            "tests/ops/test_sampling_chain.py",
            "tests/ops/test_verify.py",
        ],
        {},
    ),
    (
        ["tests/cuda_emu", "tests/ops/test_verify.py"],
        {"SPECDEC_EMU_ORDER": "reverse", "SPECDEC_EMU_DEFER": "1"},
    ),
]


def main() -> int:
    """Builds, runs, and returns pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        configure_and_build(Path(folder), "cuda-emu")
    site = make_site(BUILD)
    shutil.copy2(BUILD / "emulator_faults", site / "specdec_native")
    for tests, settings in RUNS:
        environment = {**os.environ, **settings, "PYTHONPATH": str(site)}
        command = [sys.executable, "-m", "pytest", "-q", *tests, *sys.argv[1:]]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
