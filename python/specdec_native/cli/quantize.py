"""``specdec quantize``."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

import typer

from specdec_native import _core
from specdec_native.cli.common import note, print_json, readable_size, reported_errors, usage_errors
from specdec_native.cli.options import JsonOption, SplitSizeOption, ThreadsOption
from specdec_native.quantization import QUANTIZE_TYPES, QuantizeResult, parse_size
from specdec_native.quantization import quantize as quantize_file

__all__ = ["quantize"]

_KNOWN = ", ".join(QUANTIZE_TYPES)


def quantize(
    file: Annotated[str, typer.Argument(metavar="IN.gguf", help="A GGUF file, or a pulled name.")],
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type_name: Annotated[
        str, typer.Option("-t", "--type", metavar="TYPE", help=f"Type of the weights: {_KNOWN}.")
    ],
    pure: Annotated[
        bool, typer.Option("--pure", help="Give every matrix the same type; no mixture.")
    ] = False,
    imatrix: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Importance weights, as llama-imatrix writes them.",
            show_default=False,
        ),
    ] = None,
    split_size: SplitSizeOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Writes a GGUF file with its weight matrices in another type."""
    with usage_errors():
        _core.recipe_file_type(type_name)  # raises for an unknown one, naming the known
        parse_size(split_size)
    with reported_errors():
        result = quantize_file(
            file,
            out,
            type_name.lower(),
            pure=pure,
            imatrix=imatrix,
            split_size=split_size,
            threads=threads,
        )
        if as_json:
            print_json(_as_dict(result))
            return
        for line in _fallback_lines(result):
            note(line)
        if result.unweighted:
            some = f"{result.unweighted[0].name}{', ...' if len(result.unweighted) > 1 else ''}"
            note(f"{len(result.unweighted)} tensors have no weights in {imatrix}: {some}")
        before, after = readable_size(result.bytes_before), readable_size(result.bytes_after)
        more = f" and {len(result.paths) - 1} more" if len(result.paths) > 1 else ""
        print(f"{result.path}{more}: {before} -> {after}, {_types(result)}")


def _as_dict(result: QuantizeResult) -> dict[str, Any]:
    paths = [str(one) for one in result.paths]
    counted = {"path": paths[0], "paths": paths, "fallbacks": len(result.fallbacks)}
    return {**asdict(result), **counted}


def _types(result: QuantizeResult) -> str:
    counts = Counter(one.to_type for one in result.tensors)
    return ", ".join(f"{count} tensors {name}" for name, count in counts.most_common())


def _fallback_lines(result: QuantizeResult) -> list[str]:
    """One line for each type that stands in for the asked one."""
    groups: dict[str, list[str]] = {}
    for one in result.fallbacks:
        groups.setdefault(one.to_type, []).append(one.name)
    return [
        f"{len(names)} tensors are {name}, since their rows are no whole blocks of the type that "
        f"{result.type} means for them: {names[0]}{', ...' if len(names) > 1 else ''}"
        for name, names in groups.items()
    ]
