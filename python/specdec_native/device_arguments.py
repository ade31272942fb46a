"""What arguments about devices may be."""

from __future__ import annotations

import operator
import re

__all__ = ["CUDA_NAME", "DEVICE_NUMBER", "checked_gpu_layers"]

DEVICE_NUMBER = r"(:(0|[1-9][0-9]{0,3}))?"
CUDA_NAME = re.compile(r"cuda(_emu)?" + DEVICE_NUMBER)  # cuda_emu: in test builds only


def checked_gpu_layers(gpu_layers: int | None) -> int | None:
    """The argument, as an int.

    Raises:
        ValueError: It is no number of layers.
    """
    if gpu_layers is None:
        return None
    try:
        count = operator.index(gpu_layers)
    except TypeError:
        count = -2
    if isinstance(gpu_layers, bool) or count < -1:
        raise ValueError(
            f"gpu_layers is {gpu_layers!r}; it must be a number of layers, or -1 for all"
        )
    return count
