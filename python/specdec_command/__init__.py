"""The command ``specdec``: minds Ctrl-C while the package, which takes a moment, is loaded.

It is no part of the package, which would be loaded before it.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["main"]

_INTERRUPTED = 130  # 128 + SIGINT, as shells expect


def main() -> None:
    """Runs the command line and leaves with its exit code."""
    usual = signal.signal(signal.SIGINT, _leave)
    from specdec_native.cli import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process; there is nothing yet that would have to be put away."""
    os.write(2, b"\ninterrupted\n")
    os._exit(_INTERRUPTED)
