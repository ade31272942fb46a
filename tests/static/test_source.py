"""Rules about the source that a compiler does not check."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CSRC = ROOT / "csrc"
# A layer may include only itself and the layers named here (csrc/README.md).
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "gguf": {"core"},
    "text": {"core"},
    "backend": {"core"},
    "model": {"core", "gguf", "backend"},
    "spec": {"core", "gguf", "backend", "model"},
    "engine": {"core", "gguf", "backend", "model", "spec"},
    "bindings": {"core", "gguf", "text", "backend", "model", "spec", "engine"},
}
SUFFIXES = (".h", ".cpp", ".inl", ".cu", ".cuh")
SOURCES = sorted(path for path in CSRC.rglob("*") if path.suffix in SUFFIXES)
TEST_PROGRAMS = sorted((ROOT / "tests" / "cpp").glob("*.cpp"))


def layer_of(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def code_of(path: Path) -> str:
    """The source without comments and string literals."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)


def test_there_are_sources() -> None:
    assert len(SOURCES) > 40
    assert {layer_of(path) for path in SOURCES} == set(LAYERS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_includes_obey_the_layers(path: Path) -> None:
    layer = layer_of(path)
    for include in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
        assert (CSRC / include).exists(), f"{include}: write it from csrc/ on"
        other = include.split("/")[0]
        assert other == layer or other in LAYERS[layer], f"{layer} must not include {include}"
        inner = re.match(r"backend/(cpu|cuda|ref)/", include)
        if inner:
            assert layer == "backend", f"only backend/ may include {include}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_the_library_never_prints_or_ends_the_process(path: Path) -> None:
    found = re.findall(
        r"\b(?:std::cout|std::cerr|printf|puts|abort|_?exit|terminate|assert)\b\s*[(<;]?",
        re.sub(r"static_assert", "", code_of(path)),
    )
    assert not found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_operating_systems_are_named_in_core_only(path: Path) -> None:
    if layer_of(path) != "core":
        assert not re.findall(r"_WIN32|__linux__|__APPLE__|<unistd\.h>|<windows\.h>", code_of(path))
    assert not re.findall(r"(?:ifdef|defined\(?)\s*\w*CUDA(?!CC|_ARCH__)", code_of(path))


@pytest.mark.parametrize(
    "path",
    [
        *SOURCES,
        *TEST_PROGRAMS,
        *sorted((ROOT / "python").rglob("*.py")),
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "tools").rglob("*.py")),
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def run(*command: str) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ruff() -> None:
    run(sys.executable, "-m", "ruff", "check", "python", "tests", "tools")
    run(sys.executable, "-m", "ruff", "format", "--check", "python", "tests", "tools")


def test_mypy() -> None:
    run(sys.executable, "-m", "mypy")


def test_clang_format() -> None:
    tool = shutil.which("clang-format", path=str(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("clang-format is not installed in this environment")
    run(tool, "--dry-run", "-Werror", *(str(path) for path in [*SOURCES, *TEST_PROGRAMS]))


def test_stubs_are_current() -> None:
    run(sys.executable, "tools/gen_stubs.py", "--check")


def test_codebook_grids_are_current() -> None:
    run(sys.executable, "tools/gen_codebook_grids.py", "--check")


# --- What the build did; `pip install .` leaves its build folder in the source tree ---


def build_folders() -> list[Path]:
    return [path.parent for path in sorted((ROOT / "build").glob("*/compile_commands.json"))]


@pytest.mark.skipif(not build_folders(), reason="no build folder in the source tree")
def test_flags_keep_results_exact() -> None:
    for folder in build_folders():
        commands = json.loads((folder / "compile_commands.json").read_text())
        assert len(commands) > 20
        for entry in commands:
            command, name = entry["command"], Path(entry["file"]).name
            assert "fast-math" not in command, name
            assert "-Ofast" not in command, name
            assert "-ffp-contract=off" in command, name
            if not re.fullmatch(r"kernels_(?!scalar)\w+\.cpp", name):
                assert not re.findall(r" -m(?!acosx)\w+", command), name


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
@pytest.mark.skipif(not build_folders(), reason="no build folder in the source tree")
def test_no_weak_symbols_in_isa_objects() -> None:
    """A weak symbol there could be linked program-wide and run on a machine without that ISA."""
    objects = [
        path
        for folder in build_folders()
        if "asan" not in folder.name
        for path in folder.rglob("kernels_*.o")
    ]
    assert objects
    for path in objects:
        symbols = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
        weak = [line for line in symbols.splitlines() if re.search(r" [WwVvu] ", line)]
        assert not weak, path
