"""The backends that operation tests run on."""

from __future__ import annotations

from specdec_native import _core

BACKENDS = ["ref", "cpu"]


def make_backend(name: str, threads: int = 2) -> _core.testing.Backend:
    """Makes a backend with a workspace of its own."""
    return _core.testing.Backend(name, threads)
