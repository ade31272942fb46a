"""The backends that operation tests run on."""

from __future__ import annotations

import os

from specdec_native import _core

# Does this build run the CUDA kernels on the CPU (-DSPECDEC_CUDA_EMU=ON)?
EMULATED = _core.cuda_info().emulated
# The CUDA device to test: the emulated one, or a real one that SPECDEC_TEST_CUDA names; "": none.
CUDA_DEVICE = "cuda_emu" if EMULATED else os.environ.get("SPECDEC_TEST_CUDA", "")
BACKENDS = ["ref", "cpu", *([CUDA_DEVICE] if CUDA_DEVICE else [])]


# Of host backends; 1 where a sanitizer sees the kernels only and would take the pool for a race.
THREADS = int(os.environ.get("SPECDEC_TEST_THREADS", "2"))


def make_backend(name: str, threads: int = THREADS) -> _core.testing.Backend:
    """Makes a backend with a workspace of its own."""
    return _core.testing.Backend(name, threads)
