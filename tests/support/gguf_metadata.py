"""Reads the metadata of a GGUF file into plain Python values, with the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_metadata(path: Path) -> dict[str, Any]:
    """Returns every metadata key of the file with its value."""
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(str(path)).fields.items()}
