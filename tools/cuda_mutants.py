"""Seeds faults into the CUDA kernels, one at a time, and shows that tests find each of them.

Needs the build of the `cuda-emu` preset (tools/cuda_emu_tests.py makes it) and nothing else: a
fault's file is compiled on its own, without optimisation, and linked with the other objects of that
build. Nothing in the source tree is touched.

    python tools/cuda_mutants.py [--build build/cuda-emu] [--only TEXT] [--jobs 2]

Exit code 1: a fault survived.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cuda_mutant_table import CUDA, MUTANTS, Mutant, mutated
from sanitizers import SETTINGS, sanitizer_environment

ROOT = Path(__file__).resolve().parent.parent
TIME_LIMIT = 600  # seconds of a test run: a fault may hang
REVERSE = {"SPECDEC_EMU_ORDER": "reverse", "SPECDEC_EMU_DEFER": "1"}
_PASSED, _FAILED, _BAD_ARGUMENTS = 0, 1, (2, 3, 4, 5)  # exit codes of pytest


class MutationError(Exception):
    """The faults cannot be tried as the table says."""


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: `found` with how, or not."""

    found: bool
    how: str


class EmulatorBuild:
    """A build of the `cuda-emu` preset, of which single objects can be replaced."""

    def __init__(self, folder: Path) -> None:
        """Reads the commands of the build."""
        if not (folder / "build.ninja").exists():
            raise MutationError(f"{folder} is no build; run tools/cuda_emu_tests.py first")
        self.folder = folder.resolve()
        self._commands = json.loads((folder / "compile_commands.json").read_text())
        self._sites: dict[str, Path] = {}

    def compile(self, source: Path, unit: Path, sanitizer: str, overlay: Path) -> tuple[str, Path]:
        """Compiles `source` as the build compiles `unit`; returns the build's object and the new.

        Args:
            source: The file, mutated or not.
            unit: The file of the tree that it stands for.
            sanitizer: Of which extension.
            overlay: An include folder to look into first.
        """
        target = f"kernels_{sanitizer}.dir" if sanitizer else "specdec_cuda.dir"
        for entry in self._commands:
            command = shlex.split(entry["command"])
            name = command[command.index("-o") + 1]
            if Path(entry["file"]).resolve() == unit and target in name:
                break
        else:
            raise MutationError(f"{unit} is not compiled for {target}")
        made = overlay / f"{unit.name}.o"
        command[command.index("-o") + 1] = str(made)
        command[command.index("-c") + 1] = str(source)
        command[1:1] = [f"-I{overlay}"]
        self._run([*command, "-O0"])
        return name, made

    def link(self, objects: Sequence[tuple[str, Path]], sanitizer: str, out: Path) -> None:
        """Links the extension with some objects replaced."""
        (module,) = (self.folder / sanitizer).glob("_core*.so")
        relative = str(module.relative_to(self.folder))
        listing = subprocess.run(
            ["ninja", "-C", self.folder, "-t", "commands", "-s", relative],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (step,) = (part for part in listing.split(" && ") if f" -o {relative} " in part)
        command = shlex.split(step)
        command[command.index("-o") + 1] = str(out / module.name)
        for name, made in objects:
            if name not in command:
                raise MutationError(f"{name} is not linked into {relative}")
            command[command.index(name)] = str(made)
        self._run(command)

    def site(self, sanitizer: str) -> Path:
        """A folder with the package and the extension as built."""
        if sanitizer not in self._sites:
            (module,) = (self.folder / sanitizer).glob("_core*.so")
            site = self.folder / "mutants" / (sanitizer or "plain")
            self._sites[sanitizer] = make_site(site, module)
        return self._sites[sanitizer]

    def _run(self, command: Sequence[str]) -> None:
        result = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise MutationError(f"{shlex.join(command)}\n{result.stderr[-3000:]}")


def make_site(folder: Path, module: Path) -> Path:
    """A fresh folder with the package and one extension."""
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "specdec_native"
    shutil.copytree(ROOT / "python" / "specdec_native", package)
    shutil.copy2(module, package)
    return folder


def run_tests(site: Path, tests: Sequence[str], under: str) -> int | None:
    """Pytest's exit code; None beyond the time limit."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    if under in SETTINGS:
        environment |= sanitizer_environment(under)
    elif under == "reverse":
        environment |= REVERSE
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            timeout=TIME_LIMIT,
            capture_output=True,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def sanitizer_of(mutant: Mutant) -> str:
    """Which extension shows it."""
    return mutant.under if mutant.under in SETTINGS else ""


def try_mutant(build: EmulatorBuild, mutant: Mutant) -> Outcome:
    """Compiles one fault, and runs the tests that should find it."""
    sanitizer = sanitizer_of(mutant)
    with tempfile.TemporaryDirectory() as name:
        overlay = Path(name)
        changed = overlay / "backend" / "cuda" / mutant.file
        changed.parent.mkdir(parents=True)
        changed.write_text(mutated(mutant))
        objects = [
            build.compile(
                changed if unit == mutant.file else CUDA / unit, CUDA / unit, sanitizer, overlay
            )
            for unit in mutant.units or (mutant.file,)
        ]
        build.link(objects, sanitizer, overlay)
        (module,) = overlay.glob("_core*.so")
        code = run_tests(make_site(overlay / "site", module), mutant.tests, mutant.under)
    if code is None:
        return Outcome(True, "does not end")
    if code in _BAD_ARGUMENTS:
        raise MutationError(f"mutant '{mutant.name}': pytest {shlex.join(mutant.tests)}: {code}")
    if code == _PASSED:
        return Outcome(False, "all tests pass")
    return Outcome(True, "tests fail" if code == _FAILED else "the process ends")


def check_baseline(build: EmulatorBuild, mutants: Sequence[Mutant]) -> None:
    """Without a fault, the tests that should find it pass."""
    for tests, under in sorted({(one.tests, one.under) for one in mutants}):
        sanitizer = under if under in SETTINGS else ""
        code = run_tests(build.site(sanitizer), tests, under)
        if code != _PASSED:
            raise MutationError(f"without a fault, pytest {shlex.join(tests)} gives {code}")


def main() -> int:
    """Tries the faults; returns 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cuda-emu")
    parser.add_argument("--only", default="", help="faults whose file or name holds this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    chosen = [one for one in MUTANTS if options.only in f"{one.file} {one.name}"]
    build = EmulatorBuild(options.build)
    check_baseline(build, chosen)
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(
            chosen, pool.map(lambda one: try_mutant(build, one), chosen), strict=True
        ):
            survivors += not outcome.found
            verdict = "found" if outcome.found else "SURVIVED"
            print(f"{verdict:8}  {mutant.file}: {mutant.name} ({outcome.how})", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} faults found")
    return 1 if survivors else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MutationError as error:
        sys.exit(str(error))
