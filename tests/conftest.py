"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "tools"))

from make_tiny_model import make_tiny_model  # noqa: E402

ModelFactory = Callable[..., Path]

# A shell starts background commands with this signal ignored, and they would pass that on to the
# programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFactory:
    """`make_model(layers=2, dtype="q4_0", ...)`: a tiny model's path, made once a session.

    Do not change the file: other tests read it too.
    """
    folder = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def make(**fields: Any) -> Path:
        key = repr(sorted(fields.items()))
        if key not in made:
            made[key] = make_tiny_model(folder / f"tiny{len(made)}.gguf", **fields)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_model(make_model: ModelFactory) -> Path:
    """The default tiny model: 4 layers, F32, 300 tokens."""
    return make_model()


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The real model: SPECDEC_TEST_MODEL, or what ``specdec pull smollm2-135m`` fetched."""
    name = os.environ.get("SPECDEC_TEST_MODEL")
    if name:
        return Path(name)
    from specdec_native.models import resolve_model

    try:
        return resolve_model("smollm2-135m")
    except FileNotFoundError:
        pytest.skip("no real model: run `specdec pull smollm2-135m`, or set SPECDEC_TEST_MODEL")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of a process, with a folder of its own for pulled models."""
    return {**os.environ, "SPECDEC_CACHE": str(tmp_path / "cache"), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def run(
    environment: dict[str, str], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run("chat", "-m", model, stdin="...")`: the command line, as a process."""

    def start(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "specdec_native", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            env=environment,
            cwd=tmp_path,
            timeout=120,
            check=False,
        )

    return start
