"""How large a model is, in the short form of file names: "135M", "8x7B"."""

from __future__ import annotations

import math
from collections.abc import Iterable

from specdec_native.convert.tensors import TensorPlan

__all__ = ["size_label"]

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def size_label(tensors: Iterable[TensorPlan]) -> str:
    """The label of a model, as gguf-py of ggml-org/llama.cpp counts.

    A mixture is named by its number of experts and the size of what one of them computes with.
    """
    shared = experts = count = 0
    for tensor in tensors:
        size = math.prod(tensor.shape)
        if "_exps." in tensor.name and len(tensor.shape) == 3:
            count = tensor.shape[0]
            experts += size // count
        else:
            shared += size
    label = _rounded(shared + experts)
    return f"{count}x{label}" if count else label


def _rounded(number: int) -> str:
    """Two digits at least."""
    unit, suffix = next((one for one in _UNITS if number > one[0]), _UNITS[-1])
    scaled = number / unit
    digits = max(0, 2 - len(str(round(scaled)).lstrip("0")))
    return f"{scaled:.{digits}f}{suffix}"
