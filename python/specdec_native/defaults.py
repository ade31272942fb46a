"""Figures that loading and the estimate of its memory share."""

from __future__ import annotations

__all__ = ["MAX_DEFAULT_CONTEXT", "PREFILL_CHUNK"]

MAX_DEFAULT_CONTEXT = 8192  # positions, where neither the user nor the file asks for fewer
PREFILL_CHUNK = 512  # tokens of a prefill pass: bounds the activations' memory
