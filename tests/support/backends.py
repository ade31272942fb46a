"""The backends that operation tests run on."""

from __future__ import annotations

import os

from specdec_native import _core

# Does this build run the CUDA kernels on the CPU (-DSPECDEC_CUDA_EMU=ON)?
EMULATED = _core.cuda_info().emulated
BACKENDS = ["ref", "cpu", *(["cuda_emu"] if EMULATED else [])]


# Of host backends; 1 where a sanitizer sees the kernels only and would take the pool for a race.
THREADS = int(os.environ.get("SPECDEC_TEST_THREADS", "2"))


def make_backend(name: str, threads: int = THREADS) -> _core.testing.Backend:
    """Makes a backend with a workspace of its own."""
    return _core.testing.Backend(name, threads)
