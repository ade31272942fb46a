"""Builds the `cuda` preset (needs nvcc) and checks what can be checked without a GPU.

The kernels compile for every architecture of the list, those that read the weights do so without
register spills, and the extension keeps its promises where there is no driver or device.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from preset_build import configure_and_build, make_site

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda"
HOT = ("multiply_few", "multiply_tensor", "multiply_float", "attend", "quantize", "rms_norm")
PROPERTIES = re.compile(r"Function properties for (\S+)\s+\d+ bytes stack frame, (\d+) bytes spill")


def spilling(log: str) -> list[str]:
    """The hot kernels in ptxas' report that spill registers."""
    found = PROPERTIES.findall(log)
    for name in HOT:
        if not any(name in kernel for kernel, _ in found):
            raise SystemExit(f"the compiler's report does not mention {name}: is it not built?")
    return [kernel for kernel, bytes_ in found if int(bytes_) > 0 and any(n in kernel for n in HOT)]


def main() -> int:
    """Builds, checks, and returns pytest's exit code."""
    os.environ["CUDAFLAGS"] = "-Xptxas=-v"
    log = BUILD / "compile.log"
    with tempfile.TemporaryDirectory() as folder:
        BUILD.mkdir(parents=True, exist_ok=True)
        configure_and_build(Path(folder), "cuda", log=log)
    spills = spilling(log.read_text())
    if spills:
        raise SystemExit("these kernels spill registers: " + ", ".join(spills))
    environment = {**os.environ, "PYTHONPATH": str(make_site(BUILD))}
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/test_cuda_build.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
