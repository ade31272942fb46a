"""Builds the `cuda` preset (needs nvcc) and checks what can be checked without a GPU.

The kernels compile for every architecture of the list, those that read the weights do so without
register spills and with the instructions they were written for, and the extension keeps its
promises where there is no driver or device.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
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


# Kernel -> what its machine code must have, by compute capability: reads of 16 bytes (through the
# registers, or by cp.async straight into shared memory), dots of four bytes, products of matrices.
# No kernel may use HMMA: the sums of a half-precision product of matrices are not the host's.
COPIES = r"LDGSTS\.E\.BYPASS\.128"
READS = r"LDG\.E\.128"
WANTED = {
    "sm_75": {
        "multiply_few": [READS, r"IDP\.4A\.S8\.S8"],
        "multiply_tensor": [READS, r"IMMA\.8816\.S8\.S8"],
        "multiply_float": [READS, r"FFMA"],
    },
    "sm_90": {
        "multiply_few": [COPIES, r"IDP\.4A\.S8\.S8"],
        "multiply_tensor": [COPIES, r"IMMA\.168(16|32)\.S8\.S8"],
        "multiply_float": [READS, r"FFMA"],
    },
}


def disassembler_path() -> str:
    """A PATH on which the disassembler may be: also as the packages that `.ci/run` installs."""
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    return os.pathsep.join([os.environ["PATH"], *(str(p) for p in packages.glob("*/bin"))])


def machine_code(build: Path, arch: str) -> dict[str, str]:
    """Kernel -> its machine code, of the files that multiply; empty where `arch` is not built."""
    code = {}
    environment = {**os.environ, "PATH": disassembler_path()}
    for path in sorted(build.rglob("matmul_*.cu.o")):
        command = [str(shutil.which("cuobjdump", path=disassembler_path())), "-sass"]
        command += ["-arch", arch, str(path)]
        listing = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout
        for part in re.split(r"^\s*Function : ", listing, flags=re.MULTILINE)[1:]:
            name, _, body = part.partition("\n")
            code[name.strip()] = body
    return code


def unwanted_code(build: Path) -> list[str]:
    """What the machine code lacks, or has and must not."""
    faults = []
    for arch, kernels in WANTED.items():
        code = machine_code(build, arch)
        for kernel, wanted in kernels.items():
            bodies = {name: body for name, body in code.items() if kernel in name}
            if code and not bodies:
                faults.append(f"{arch}: there is no {kernel}")
            faults += [
                f"{arch}: {name} has no {instruction}"
                for name, body in bodies.items()
                for instruction in wanted
                if not re.search(instruction, body)
            ]
        faults += [f"{arch}: {name} has HMMA" for name, body in code.items() if "HMMA" in body]
    return faults


def check_machine_code(build: Path) -> None:
    """Ends with what is wrong; says so where the tools to read the code are not there."""
    path = disassembler_path()
    missing = [t for t in ("cuobjdump", "nvdisasm") if shutil.which(t, path=path) is None]
    if missing:
        print(f"machine code not checked: there is no {' or '.join(missing)}")
        return
    faults = unwanted_code(build)
    if faults:
        raise SystemExit("\n".join(faults))


def main() -> int:
    """Builds, checks, and returns pytest's exit code."""
    os.environ["CUDAFLAGS"] = "-Xptxas=-v"
    log = BUILD / "compile.log"
    BUILD.mkdir(parents=True, exist_ok=True)
    configure_and_build("cuda", log=log)
    spills = spilling(log.read_text())
    if spills:
        raise SystemExit("these kernels spill registers: " + ", ".join(spills))
    check_machine_code(BUILD)
    environment = {**os.environ, "PYTHONPATH": str(make_site(BUILD))}
    command = [sys.executable, "-m", "pytest", "-q", "tests/unit/test_cuda_build.py"]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
