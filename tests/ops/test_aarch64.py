"""The AArch64 levels, cross-built and run under qemu-user, give this machine's bits."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = ("cmake", "aarch64-linux-gnu-g++", "qemu-aarch64")
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

pytestmark = [
    pytest.mark.skipif("SPECDEC_SANITIZED" in os.environ, reason="builds its own programs"),
    *(
        pytest.mark.skipif(shutil.which(tool, path=TOOLS) is None, reason=f"needs {tool}")
        for tool in NEEDED
    ),
]


def build(folder: Path, *options: str) -> Path:
    """Builds the program tests/cpp/levels_digest.cpp as a release and returns its path."""
    cmake = str(shutil.which("cmake", path=TOOLS))
    generator = ("-G", "Ninja") if shutil.which("ninja", path=TOOLS) else ()
    settings = ("-DSPECDEC_PYTHON=OFF", "-DSPECDEC_CUDA=OFF", "-DSPECDEC_BUILD_TESTS=ON", *options)
    jobs = str(len(os.sched_getaffinity(0)))
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(folder), *generator, *settings],
        [cmake, "--build", str(folder), "--target", "levels_digest", "--parallel", jobs],
    ):
        environment = {**os.environ, "PATH": TOOLS}
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    return folder / "levels_digest"


def program(*options: str) -> Iterator[Path]:
    """Built beside the other builds, where a compiler cache sees the same relative paths."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build", prefix="levels-") as folder:
        yield build(Path(folder), *options)


@pytest.fixture(scope="module")
def native_program() -> Iterator[Path]:
    yield from program()


@pytest.fixture(scope="module")
def aarch64_program() -> Iterator[Path]:
    toolchain = ROOT / "cmake" / "aarch64-linux-gnu.cmake"
    yield from program(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")


def digests(*command: str | Path) -> dict[str, dict[str, str]]:
    """Level -> operation -> digest."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    found: dict[str, dict[str, str]] = {}
    for line in result.stdout.splitlines():
        level, operation, digest = line.split("\t")
        found.setdefault(level, {})[operation] = digest
    return found


@pytest.fixture(scope="module")
def expected(native_program: Path) -> dict[str, str]:
    """What the scalar level computes here; the machine's other levels agree."""
    found = digests(native_program)
    scalar = found["scalar"]
    assert len(scalar) > 80
    for level, operations in found.items():
        assert operations == scalar, level
    if platform.machine() == "x86_64":
        assert set(found) <= {"scalar", "avx2", "avxvnni", "avx512vnni"}
    return scalar


@pytest.mark.parametrize(
    ("processor", "levels"),
    [("cortex-a53", ["scalar", "neon"]), ("max", ["scalar", "neon", "neon_dotprod"])],
)
def test_aarch64_levels_agree_with_this_machine(
    expected: dict[str, str], aarch64_program: Path, processor: str, levels: Iterable[str]
) -> None:
    found = digests("qemu-aarch64", "-cpu", processor, aarch64_program)
    assert list(found) == levels
    for level, operations in found.items():
        assert operations == expected, level


def test_aarch64_objects_hold_nothing_that_other_machines_could_run(aarch64_program: Path) -> None:
    """A weak symbol of a file with machine flags could be linked program-wide."""
    objects = sorted(aarch64_program.parent.rglob("kernels_*.o"))
    assert [path.name for path in objects if "neon" in path.name]
    for path in objects:
        nm = ["aarch64-linux-gnu-nm", path]
        symbols = subprocess.run(nm, capture_output=True, text=True, check=True).stdout
        assert not re.findall(r".* [WwVvu] .*", symbols), path.name
