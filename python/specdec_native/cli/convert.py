"""``specdec convert``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from specdec_native.cli.common import print_json, readable_size, reported_errors, usage_errors
from specdec_native.cli.options import JsonOption
from specdec_native.convert import CONVERT_TYPES
from specdec_native.convert import convert as convert_checkpoint

__all__ = ["convert"]

_KNOWN = ", ".join(CONVERT_TYPES)


def convert(
    folder: Annotated[
        str, typer.Argument(metavar="DIR", help="A folder with config.json and safetensors files.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type_name: Annotated[
        str, typer.Option("-t", "--type", metavar="TYPE", help=f"Type of the weights: {_KNOWN}.")
    ] = "f16",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The target's GGUF file, or a pulled name. EAGLE-3 heads need it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Writes drafting heads (Medusa, EAGLE-3) from their public checkpoints as a GGUF file."""
    with usage_errors():
        if type_name.lower() not in CONVERT_TYPES:
            raise ValueError(f"type is {type_name!r}; known are {_KNOWN}")
    with reported_errors():
        result = convert_checkpoint(folder, out, type_name, target=target)
        if as_json:
            print_json({**asdict(result), "path": str(result.path)})
            return
        size = readable_size(result.bytes)
        print(f"{result.path}: {result.kind} heads, {result.tensors} tensors, {size}")
