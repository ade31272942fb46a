"""What tests of the command line ask of a process that has ended."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[str]]


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object that is all of stdout."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    value = json.loads(done.stdout)
    assert isinstance(value, dict)
    return value


def assert_failed(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert re.search(message, " ".join(done.stderr.split())), done.stderr
    if code == 1:
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
