"""Builds the `cuda-emu` preset and runs the CUDA kernels' tests on it, without a GPU.

Run it with the Python of an environment that has the package's [test] extra; cmake, ninja and
pybind11 are installed into an environment of their own. Arguments are passed on to pytest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from preset_build import configure_and_build, make_site
from sanitizers import sanitizer_environment

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda-emu"
OPERATIONS = [
    "tests/cuda_emu/test_cache_ops.py",
    "tests/cuda_emu/test_dense_ops.py",
    "tests/cuda_emu/test_expert_ops.py",
    "tests/cuda_emu/test_sampling_ops.py",
]
WATCHED = [
    *OPERATIONS,
    "tests/cuda_emu/test_emulator.py::test_sanitizers_see_lanes_and_device_memory",
]
# Every kernel, and a type of each kind, but not every size: ThreadSanitizer makes them slow.
SMALL = (
    "not 37-256 and not 130-32 and not many_thread_blocks and not many_rows and not 190"
    " and (not test_products or Q4_0 or Q4_K or Q2_K or Q6_K or F16)"
    " and (not test_every_type or Q4_0 or Q2_K) and not (several_types and (types1 or 20-))"
    " and not (test_biases and (BF16 or 18-)) and not (test_choices and (F32 or 14- or 40-))"
    " and not as_many_experts and not a_row_does and not 1030"
)
# The engine's tests, each with less to do than on the host (support.engine.sized).
ENGINE = [
    "tests/e2e/test_exactness.py",
    "tests/e2e/test_draft_trees.py",
    "tests/e2e/test_medusa.py",
    "tests/e2e/test_eagle.py",
    "tests/e2e/test_layer_skip.py",
]
# What is exact: tokens, and the bytes of caches.
EXACT = (
    "(tokens_are_those or every_drafter or q8_0_cache or reused_prefix or see_what or all_layers"
    " or cache_of) and not (test_layer_skip and f32)"
)
STATISTICS = [
    "tests/statistics/test_acceptance.py",
    "tests/statistics/test_self_drafting.py",
    "tests/e2e/test_draft_trees.py",
]
FITS = "cuda_emu or joint_distribution or tree_fit_the_target"
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
            "tests/ops/test_attention_spans.py",
            "tests/ops/test_sampling.py",
            "tests/ops/test_sampling_chain.py",
            "tests/ops/test_verify.py",
        ],
    ),
    TestRun(
        "lanes descending, work deferred",
        ["tests/cuda_emu", "tests/ops/test_verify.py", "-k", "not golden_model"],
        BACKWARDS,
    ),
    TestRun("the engine", [*ENGINE, "-k", EXACT], {"SPECDEC_TEST_DEVICE": "cuda_emu"}),
    TestRun(
        "the engine's distributions",
        [*STATISTICS, "-k", FITS],
        {**BACKWARDS, "SPECDEC_TEST_DEVICE": "cuda_emu"},
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


def prepare(sanitizer: str) -> Path:
    """A folder with the package, an extension and its program of faults."""
    site = make_site(BUILD, sanitizer)
    program = f"emulator_faults{sanitizer and '_' + sanitizer}"
    shutil.copy2(BUILD / program, site / "specdec_native" / "emulator_faults")
    return site


def run(one: TestRun, site: Path, arguments: list[str]) -> int:
    """Runs pytest, prints what it says at its end, returns its exit code."""
    environment = {**os.environ, **one.settings, "PYTHONPATH": str(site)}
    if one.sanitizer:
        environment |= sanitizer_environment(one.sanitizer)
        environment["SPECDEC_KERNELS_SANITIZED"] = one.sanitizer
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *one.tests]
    result = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"--- {one.name}: {time.monotonic() - begin:.0f} s\n{result.stdout}", flush=True)
    return result.returncode


def main() -> int:
    """Builds, runs, and returns the first bad exit code of pytest."""
    configure_and_build("cuda-emu")
    sites = {name: prepare(name) for name in dict.fromkeys(one.sanitizer for one in RUNS)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        codes = list(pool.map(lambda one: run(one, sites[one.sanitizer], sys.argv[1:]), RUNS))
    return next((code for code in codes if code != 0), 0)


if __name__ == "__main__":
    sys.exit(main())
