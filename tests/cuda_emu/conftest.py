"""The CUDA kernels, run on the CPU: only in builds with -DSPECDEC_CUDA_EMU=ON."""

from __future__ import annotations

from support.backends import EMULATED

collect_ignore_glob = [] if EMULATED else ["test_*.py"]
