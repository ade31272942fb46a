"""Builds for the GPU at hand, tests on it and times passes; writes JSON. See gpu_check.sh.

Steps: build (native architecture, no network), an exact self-test of the instructions that the
kernels build on, the kernel and engine tests, compute-sanitizer on a few of them, and the times of
models that are filled in memory from the description of a shape. A step that fails or runs out of
time is reported as such, and the others still run. Exit code 1: a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu-check"
KERNEL_TESTS = [
    "tests/cuda_emu/test_dense_ops.py",
    "tests/cuda_emu/test_expert_ops.py",
    "tests/cuda_emu/test_cache_ops.py",
    "tests/cuda_emu/test_sampling_ops.py",
]
ENGINE_TESTS = [
    "tests/cuda_emu/test_engine.py",
    "tests/cuda_emu/test_heads.py",
    "tests/cuda_emu/test_recorded_passes.py",
    "tests/cuda_emu/test_architectures.py",
    "tests/cuda_emu/test_tokens_in_place.py",
]
# For compute-sanitizer, which makes a kernel some hundred times slower: every kernel once.
FEW = (
    "(37-256 and (Q4_K or Q6_K or F16)) or tree-64 or test_walks or all-True or gated_mlp"
    " or (several_types and 5-types)"
)
SHAPES = ["8b:q4_k_m", "1b:q4_k_m", "1b:q8_0", "1b:f16", "moe:q4_k"]
_SELF_TEST = "import json, sys; from specdec_native import _core; " + (
    "print(json.dumps(_core.testing.cuda_self_test(sys.argv[1])))"
)


class StepError(Exception):
    """A step found something wrong."""


class StepSkippedError(Exception):
    """A step does not make sense here."""


@dataclass
class Check:
    """What the steps share."""

    options: argparse.Namespace
    deadline: float
    site: Path
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(
        self,
        command: list[str | Path],
        limit: float,
        environment: dict[str, str] | None = None,
    ) -> str:
        """The output of a command that must succeed within `limit` seconds and what is left."""
        seconds = min(limit, self.deadline - time.monotonic())
        if seconds < 1:
            raise StepSkippedError("no time is left")
        try:
            result = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(self.site), **(environment or {})},
                timeout=seconds,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise StepError(f"stopped after {seconds:.0f} s: {Path(command[0]).name}") from error
        if result.returncode != 0:
            raise StepError((result.stdout + result.stderr)[-3000:])
        return result.stdout

    def pytest(self, tests: list[str], limit: float, prefix: tuple[str | Path, ...] = ()) -> str:
        """The last line of a test run on the device."""
        command = [*prefix, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        variables = {"SPECDEC_TEST_CUDA": self.options.device}
        return self.run(command, limit, variables).strip().splitlines()[-1]

    def step(self, name: str, work: Callable[[], Any]) -> None:
        """Runs a step and notes what came of it."""
        if self.options.only and name.split(" ")[0] not in self.options.only:
            return
        begin = time.monotonic()
        try:
            entry = {"status": "ok", "result": work()}
        except StepSkippedError as error:
            entry = {"status": "skipped", "result": str(error)}
        except StepError as error:
            entry = {"status": "failed", "result": str(error)}
        entry["seconds"] = round(time.monotonic() - begin, 1)
        self.steps[name] = entry
        print(f"{entry['status']:8} {entry['seconds']:6.1f} s  {name}", flush=True)
        if entry["status"] != "ok":
            print(f"         {entry['result']}", flush=True)


def build(check: Check) -> str:
    """Configures and builds for the device's own architecture, and makes the site folder."""
    if check.options.site is not None:
        raise StepSkippedError("a built package was given")
    pybind11 = check.run([sys.executable, "-m", "pybind11", "--cmakedir"], 30).strip()
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure: list[str | Path] = [
        *("cmake", "-S", ROOT, "-B", BUILD, *generator),
        "-DCMAKE_BUILD_TYPE=Release",
        "-DSPECDEC_CUDA=ON",
        "-DSPECDEC_CUDA_ARCHITECTURES=native",
        f"-Dpybind11_DIR={pybind11}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    check.run(configure, 60)
    check.run(["cmake", "--build", BUILD, "--parallel", str(os.cpu_count() or 1)], 240)
    package = check.site / "specdec_native"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "specdec_native", package)
    for module in BUILD.glob("_core*.so"):
        shutil.copy2(module, package)
    return "built"


def self_test(check: Check) -> list[str]:
    """Instructions that do something else than they are defined to do: none."""
    output = check.run([sys.executable, "-c", _SELF_TEST, check.options.device], 60)
    faults: list[str] = json.loads(output)
    if faults:
        raise StepError("; ".join(faults))
    return faults


def sanitizer(check: Check, tool: str) -> str:
    """compute-sanitizer's verdict on a few tests."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise StepSkippedError("compute-sanitizer is not installed")
    tool_command = [program, "--tool", tool]
    try:  # what it finds does not count yet: does it work at all?
        check.run([*tool_command, sys.executable, "-c", _SELF_TEST, check.options.device], 40)
    except StepError as error:
        raise StepSkippedError(f"compute-sanitizer does not work here: {error}") from error
    prefix = (*tool_command, "--error-exitcode", "9")
    return check.pytest([*KERNEL_TESTS, "-x", "-k", FEW], 60, prefix)


def times(check: Check, arguments: list[str], limit: float) -> dict[str, Any]:
    """The figures of one model."""
    options = check.options
    command: list[str | Path] = [sys.executable, ROOT / "tools" / "gpu_times.py", *arguments]
    command += ["--device", options.device, "--repeats", str(options.repeats)]
    command += ["--copy-bytes", str(options.copy_bytes), "--max-tokens", str(options.max_tokens)]
    command += ["--widths", *map(str, options.widths), "--depths", *map(str, options.depths)]
    if options.layers:
        command += ["--layers", str(options.layers)]
    figures: dict[str, Any] = json.loads(check.run(command, limit))
    for line in report(figures):
        print(f"    {line}", flush=True)
    return figures


def report(figures: dict[str, Any]) -> list[str]:
    """Lines for a reader."""
    lines = [f"{figures['model']}: a copy moves {figures['copy_gbps']:.0f} GB/s"]
    for one in figures["passes"]:
        lines.append(
            f"depth {one['depth']:5} width {one['width']:3}: {one['ms']:8.3f} ms, "
            f"{one['ratio']:5.2f} of one, {one['gbps']:6.0f} GB/s, "
            f"{100 * one['share_of_copy']:5.1f} % of a copy"
        )
    for one in figures["verify"]:
        lines.append(
            f"depth {one['depth']:5} verify and accept ({one['rule']}): {one['ms']:.3f} ms, "
            f"{100 * one['share']:.1f} % of a round"
        )
    drafted = figures.get("drafted")
    if drafted:
        for name, one in drafted["contenders"].items():
            lines.append(
                f"{name} at acceptance {drafted['acceptance']}: "
                f"{one['tokens_per_second']:.1f} tokens/s"
            )
    return lines


def model_file(given: Path | None) -> Path | None:
    """SmolLM2-135M, where its file is present."""
    named = given or os.environ.get("SPECDEC_TEST_MODEL")
    return Path(named) if named and Path(named).exists() else None


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--site", type=Path, help="a folder with a built package: do not build")
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--only", nargs="*", default=[], help="first words of the steps to run")
    parser.add_argument("--shapes", nargs="*", default=SHAPES)
    parser.add_argument("--layers", type=int, help="of the shapes, instead of their own number")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--depths", type=int, nargs="+", default=[64, 4096])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--copy-bytes", type=int, default=1 << 30)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--limit", type=float, default=470, help="seconds for everything")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs the steps, writes what came of them, returns 1 if one failed."""
    options = parsed(arguments)
    site = options.site.resolve() if options.site else BUILD / "site"
    check = Check(options, time.monotonic() + options.limit, site)
    check.step("build", lambda: build(check))
    if check.steps.get("build", {}).get("status") != "failed":
        check.step("self-test", lambda: self_test(check))
        check.step("kernels", lambda: check.pytest(KERNEL_TESTS, 120))
        check.step("engine", lambda: check.pytest(ENGINE_TESTS, 60))
        for shape in options.shapes:
            drafts = ["--draft-shape", "1b:q4_k_m"] if shape == "8b:q4_k_m" else []
            work = ["--shape", shape, *drafts]
            check.step(f"times of {shape}", lambda work=work: times(check, work, 150))
        model = model_file(options.model)
        if model is not None:
            work = ["--model", str(model), "--draft", "layerskip:8"]
            check.step("times of smollm2", lambda: times(check, work, 60))
        for tool in ("memcheck", "racecheck"):
            check.step(f"sanitizer {tool}", lambda tool=tool: sanitizer(check, tool))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"device": options.device, "steps": check.steps}, indent=2))
    print(f"written: {options.out}")
    return 1 if any(one["status"] == "failed" for one in check.steps.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
