"""``specdec convert``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specdec_native.cli.common import note, print_json, readable_size, reported_errors, usage_errors
from specdec_native.cli.options import JsonOption, SplitSizeOption, ThreadsOption
from specdec_native.convert import CONVERT_TYPES, ConvertResult
from specdec_native.convert import convert as convert_checkpoint
from specdec_native.quantization import parse_size

__all__ = ["convert"]

_KNOWN = ", ".join(CONVERT_TYPES)


def convert(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="HF_DIR",
            help="A checkpoint: a folder with config.json, safetensors and tokenizer files.",
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type_name: Annotated[
        str, typer.Option("-t", "--type", metavar="TYPE", help=f"Type of the weights: {_KNOWN}.")
    ] = "f16",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="For drafting heads: the target's GGUF file, a pulled name, or the target's own "
            "checkpoint. EAGLE-3 heads need it.",
            show_default=False,
        ),
    ] = None,
    split_size: SplitSizeOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Writes a Hugging Face checkpoint, of a model or of drafting heads, as a GGUF file."""
    with usage_errors():
        if type_name.lower() not in CONVERT_TYPES:
            raise ValueError(f"type is {type_name!r}; known are {_KNOWN}")
        parse_size(split_size)
    with reported_errors():
        result = convert_checkpoint(
            folder, out, type_name, target=target, split_size=split_size, threads=threads
        )
        if as_json:
            files = [str(path) for path in result.files]
            print_json({**asdict(result), "path": str(result.path), "files": files})
            return
        for line in (*result.notes, *_fallback_lines(result)):
            note(line)
        what = "heads" if result.kind in ("medusa", "eagle3") else "model"
        more = f" and {len(result.files) - 1} more files" if len(result.files) > 1 else ""
        print(
            f"{result.path}{more}: {result.kind} {what}, {result.tensors} tensors, "
            f"{readable_size(result.bytes)}"
        )


def _fallback_lines(result: ConvertResult) -> list[str]:
    """One line for each type that stands in for the one asked for."""
    groups: dict[str, list[str]] = {}
    for name, dtype in result.fallbacks.items():
        groups.setdefault(dtype, []).append(name)
    return [
        f"{len(names)} tensors are {dtype}, since their rows are no whole blocks of {result.type}: "
        f"{names[0]}{', ...' if len(names) > 1 else ''}"
        for dtype, names in groups.items()
    ]
