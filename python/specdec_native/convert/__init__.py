"""From public checkpoints to GGUF files: drafting heads (whole models come later).

A file is written tensor by tensor under a temporary name and appears when it is complete.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.eagle3 import is_eagle3, plan_eagle3
from specdec_native.convert.gguf_file import CONVERT_TYPES, write_file
from specdec_native.convert.medusa import is_medusa, plan_medusa
from specdec_native.convert.target import Target
from specdec_native.errors import ConvertError
from specdec_native.models import resolve_model
from specdec_native.progress import ProgressOption, open_progress

__all__ = ["CONVERT_TYPES", "ConvertResult", "convert"]


@dataclass(frozen=True)
class ConvertResult:
    """What `convert` wrote.

    Attributes:
        path: The file.
        kind: ``"medusa"`` or ``"eagle3"``.
        type: The type asked for.
        tensors: How many it has.
        bytes: Its size.
    """

    path: Path
    kind: str
    type: str
    tensors: int
    bytes: int


def convert(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str = "f16",
    *,
    target: str | os.PathLike[str] | None = None,
    progress: ProgressOption = None,
) -> ConvertResult:
    """Writes a checkpoint of drafting heads as a GGUF file.

    Reads a folder with ``config.json`` and safetensors files: Medusa heads (arXiv 2401.10774, the
    layout of FasterDecoding/Medusa) or an EAGLE-3 head (arXiv 2503.01840, the layouts of
    SafeAILab/EAGLE and of ``speculators``). EAGLE-3 files have the form that llama.cpp reads.
    Vectors stay float32. Needs the extra ``convert``.

    Args:
        checkpoint: The folder.
        out: The file to write; an older one is replaced when the new one is complete.
        type: Type of the weight matrices, one of `CONVERT_TYPES`; matrices whose rows are no
            multiple of 32 values are f16 where the type needs that.
        target: The target's GGUF file, or a name that was pulled. EAGLE-3 needs it; Medusa heads
            are checked against it.
        progress: None: a bar if stderr is a terminal; True; False; or a callback that gets the
            fraction done and a text.

    Returns:
        What was written.

    Raises:
        ConvertError: The checkpoint is incomplete, of another kind, or does not fit the target;
            the message names the file and the key or tensor.
        GgufError: The target's file is damaged.
        FileNotFoundError: There is no such folder or target.
        ValueError: An unknown type.
        ImportError: The extra is not installed; the message says what to install.
    """
    if type.lower() not in CONVERT_TYPES:
        raise ValueError(f"type is {type!r}; known are {', '.join(CONVERT_TYPES)}")
    source = Checkpoint.open(Path(os.fspath(checkpoint)).expanduser())
    model = None if target is None else Target.open(resolve_model(target))
    if is_medusa(source):
        kind, plan = "medusa", plan_medusa(source, model)
    elif is_eagle3(source):
        kind, plan = "eagle3", plan_eagle3(source, model)
    else:
        raise ConvertError(
            f"{source.folder}: config.json describes neither Medusa heads (medusa_num_heads) nor "
            "an EAGLE-3 head (draft_vocab_size); other checkpoints cannot be converted yet"
        )
    destination = Path(os.fspath(out)).expanduser()
    with open_progress(progress) as shown:
        size = write_file(
            destination,
            plan,
            type.lower(),
            lambda part: shown(part, f"converting {source.folder.name} to {type}"),
        )
    return ConvertResult(destination, kind, type.lower(), len(plan.tensors), size)
