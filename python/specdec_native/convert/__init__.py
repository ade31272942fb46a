"""From Hugging Face checkpoints to GGUF files: whole models and drafting heads.

A file is written a few rows at a time under a temporary name and appears when it is complete.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specdec_native.convert.checkpoint import Checkpoint
from specdec_native.convert.eagle3 import is_eagle3, plan_eagle3
from specdec_native.convert.families import FAMILIES
from specdec_native.convert.gguf_file import CONVERT_TYPES, FilePlan, write_files
from specdec_native.convert.medusa import is_medusa, plan_medusa
from specdec_native.convert.model import plan_model
from specdec_native.convert.target import Target
from specdec_native.models import resolve_model
from specdec_native.progress import ProgressOption, open_progress
from specdec_native.quantization import parse_size

__all__ = ["CONVERT_TYPES", "FAMILIES", "ConvertResult", "convert"]


@dataclass(frozen=True)
class ConvertResult:
    """What `convert` wrote.

    Attributes:
        path: The file; of a split model the first one, which is the one to load.
        kind: The model's architecture, or ``"medusa"`` or ``"eagle3"``.
        type: The type asked for.
        tensors: How many it has.
        bytes: Its size, of all files together.
        files: All files.
        fallbacks: Name of tensor -> the simpler type that it has, since its rows are no whole
            blocks of the type meant for it.
        notes: What of the checkpoint was left out, such as a token id beyond the vocabulary, or
            taken for granted.
    """

    path: Path
    kind: str
    type: str
    tensors: int
    bytes: int
    files: tuple[Path, ...]
    fallbacks: dict[str, str]
    notes: tuple[str, ...] = ()


def convert(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str = "f16",
    *,
    target: str | os.PathLike[str] | None = None,
    split_size: int | str | None = None,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> ConvertResult:
    """Writes a Hugging Face checkpoint as a GGUF file.

    Reads a folder with ``config.json``, safetensors files (with their index, if there are several)
    and the tokenizer's files. What is in the file, names of tensors and keys, is what llama.cpp's
    converter writes, so that it loads there too. Of a checkpoint for text and images the text model
    is converted. MXFP4 experts (gpt-oss) keep their blocks, except in f32.

    Drafting heads are converted too: Medusa heads (arXiv 2401.10774, the layout of
    FasterDecoding/Medusa) and EAGLE-3 heads (arXiv 2503.01840, the layouts of SafeAILab/EAGLE and
    of ``speculators``), whose files have the form that llama.cpp reads.

    Args:
        checkpoint: The folder.
        out: The file to write; an older one is replaced when the new one is complete.
        type: Type of the weight matrices, one of `CONVERT_TYPES`, as in `quantize`. Vectors, norms
            and routers stay float32. Rows that are no whole blocks get a simpler type, which the
            result names.
        target: For heads: the target's GGUF file, a name that was pulled, or the target's own
            checkpoint. EAGLE-3 needs it; Medusa heads are checked against it.
        split_size: Largest size of a file, in bytes or as in ``"2G"`` (10^9 bytes) and ``"500M"``.
            A larger model becomes ``OUT-00001-of-00003.gguf`` and so on; a tensor is never split.
        threads: None: one per physical core.
        progress: None: a bar if stderr is a terminal; True; False; or a callback that gets the
            fraction done and a text.

    Returns:
        What was written.

    Raises:
        ConvertError: The checkpoint is incomplete, contradicts itself, is of an unknown kind, does
            not fit the target, or holds what the type cannot; the message names the file and the
            key or tensor. Nothing is left of the output.
        OutputError: The file cannot be written.
        GgufError: The target's file is damaged.
        FileNotFoundError: There is no such folder or target.
        NotADirectoryError: The checkpoint is a file.
        ValueError: An unknown type or size, or the output is one of the files that are read.
    """
    name = type.lower()
    if name not in CONVERT_TYPES:
        raise ValueError(f"type is {type!r}; known are {', '.join(CONVERT_TYPES)}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}, expected at least 1")
    most = parse_size(split_size)
    model = None if target is None else _target(target)
    destination = Path(os.fspath(out)).expanduser()
    with Checkpoint.open(Path(os.fspath(checkpoint)).expanduser()) as source:
        kind, plan = _plan(source, model, name)
        with open_progress(progress) as shown:
            written = write_files(
                destination,
                plan,
                name,
                lambda part: shown(part, f"converting {source.folder.resolve().name} to {type}"),
                inputs=source.paths + ([] if model is None else [model.path]),
                split_bytes=most,
                threads=threads or 0,
            )
    return ConvertResult(
        written.paths[0],
        kind,
        name,
        len(plan.tensors),
        written.bytes,
        written.paths,
        written.fallbacks,
        tuple(plan.notes),
    )


def _plan(source: Checkpoint, target: Target | None, type_name: str) -> tuple[str, FilePlan]:
    if is_medusa(source):
        kind, plan = "medusa", plan_medusa(source, target)
    elif is_eagle3(source):
        kind, plan = "eagle3", plan_eagle3(source, target)
    else:
        return plan_model(source, type_name)
    plan.notes += [] if target is None else target.notes
    return kind, plan


def _target(target: str | os.PathLike[str]) -> Target:
    folder = Path(os.fspath(target)).expanduser()
    return Target.open(folder if folder.is_dir() else resolve_model(target))
