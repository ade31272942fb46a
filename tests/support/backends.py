"""The backends that operation tests run on."""

from __future__ import annotations

from specdec_native import _core

# Does this build run the CUDA kernels on the CPU (-DSPECDEC_CUDA_EMU=ON)?
EMULATED = _core.cuda_info().emulated
BACKENDS = ["ref", "cpu", *(["cuda_emu"] if EMULATED else [])]


def make_backend(name: str, threads: int = 2) -> _core.testing.Backend:
    """Makes a backend with a workspace of its own."""
    return _core.testing.Backend(name, threads)
