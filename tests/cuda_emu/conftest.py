"""The CUDA kernels: run on the CPU in builds with -DSPECDEC_CUDA_EMU=ON, or on a real device.

A device is tested where SPECDEC_TEST_CUDA names it, such as ``cuda``.
"""

from __future__ import annotations

from support.backends import CUDA_DEVICE, EMULATED

collect_ignore_glob = [] if CUDA_DEVICE else ["test_*.py"]
# What is about the emulated device itself: its two devices, its memory, its faults.
_OF_THE_EMULATOR = ["test_devices.py", "test_emulator.py", "test_gpu_check.py", "test_placement.py"]
collect_ignore = [] if EMULATED else _OF_THE_EMULATOR
