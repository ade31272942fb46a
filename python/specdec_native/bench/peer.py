"""Running a given ``llama-bench`` and reading what it prints."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_native.errors import Error

__all__ = ["LlamaBench", "PeerError", "PeerTest", "find_llama_bench", "parse_output"]

_NAMES = ("llama-bench", "llama-bench.exe")
_FOLDERS = ("", "bin", "build/bin")
_TIMEOUT_SECONDS = 1800.0


class PeerError(Error, RuntimeError):
    """The other program is not there, failed, or printed what cannot be read."""


@dataclass(frozen=True)
class PeerTest:
    """What one run of ``llama-bench`` measures.

    Attributes:
        prompt: Tokens of a prompt that is evaluated, or 0.
        generate: Tokens that are generated one by one, or 0.
        ubatch: Most tokens of one pass.
    """

    prompt: int
    generate: int
    ubatch: int

    @property
    def passes(self) -> int:
        """What the time is divided by, so that it is that of one pass (or one whole prompt)."""
        return max(1, self.generate)

    def arguments(self) -> list[str]:
        """Options of ``llama-bench``."""
        batch = str(self.ubatch)
        return [
            *("-p", str(self.prompt), "-n", str(self.generate)),
            *("-b", batch, "-ub", batch),
        ]


def find_llama_bench(folder: str | os.PathLike[str]) -> Path:
    """The executable in a folder, or in the folders below it where builds put it.

    Raises:
        PeerError: There is none, or it may not be run.
    """
    root = Path(folder)
    if not root.is_dir():
        raise PeerError(f"{root} is no folder; give the folder that llama-bench lies in")
    for name in (Path(sub) / name for sub in _FOLDERS for name in _NAMES):
        path = root / name
        if path.is_file():
            if not os.access(path, os.X_OK):
                raise PeerError(f"{path} may not be run; make it executable (chmod +x)")
            return path.resolve()
    raise PeerError(f"there is no llama-bench in {root}; it comes with a build of llama.cpp")


class LlamaBench:
    """A ``llama-bench`` on one model."""

    def __init__(self, executable: Path, model: Path, threads: int) -> None:
        """Nothing is run yet."""
        self.executable, self.model, self.threads = executable, model, threads
        self.build = ""

    def run(self, test: PeerTest, repeats: int) -> list[float]:
        """Milliseconds of each repetition, per pass.

        Raises:
            PeerError: It failed; the message ends with what it said last.
        """
        command = [
            *(str(self.executable), "-m", str(self.model), "-t", str(self.threads)),
            *("-ngl", "0", "-r", str(repeats), "-o", "json"),
            *test.arguments(),
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"{self.executable} took over {_TIMEOUT_SECONDS:.0f} s") from None
        except OSError as error:
            raise PeerError(f"{self.executable} cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            said = _last_line(done.stderr) or _last_line(done.stdout) or "it said nothing"
            raise PeerError(f"{self.executable} failed with code {done.returncode}: {said}")
        times, self.build = parse_output(done.stdout, test)
        return times


def parse_output(text: str, test: PeerTest) -> tuple[list[float], str]:
    """Milliseconds per pass of each repetition, and the commit that llama-bench was built from.

    Args:
        text: The output of ``llama-bench -o json``.
        test: What was asked for; the entry of that shape is taken.

    Raises:
        PeerError: The output is no such JSON, or has no entry for this test.
    """
    try:
        entries = json.loads(text)
    except ValueError:
        raise PeerError(f"llama-bench printed no JSON but {_last_line(text)!r}") from None
    if not isinstance(entries, list):
        raise PeerError("llama-bench printed JSON, but not a list of results")
    for entry in entries:
        if isinstance(entry, dict) and _shape(entry) == (test.prompt, test.generate):
            return _times(entry, test), str(entry.get("build_commit", ""))
    raise PeerError(
        f"llama-bench printed no result for -p {test.prompt} -n {test.generate}; this version of "
        "it is not understood"
    )


def _shape(entry: dict[str, object]) -> tuple[object, object]:
    return entry.get("n_prompt"), entry.get("n_gen")


def _times(entry: dict[str, object], test: PeerTest) -> list[float]:
    samples = entry.get("samples_ns") or [entry.get("avg_ns")]
    if not isinstance(samples, Sequence) or isinstance(samples, str):
        samples = [None]
    times = [one for one in samples if isinstance(one, (int, float)) and one > 0]
    if len(times) != len(samples):
        raise PeerError("llama-bench printed a result without times (samples_ns, avg_ns)")
    return [one / 1e6 / test.passes for one in times]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
