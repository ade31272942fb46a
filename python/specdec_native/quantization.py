"""Turning the weights of a GGUF file into another type."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from specdec_native import _core
from specdec_native.models import resolve_model
from specdec_native.progress import ProgressOption, open_progress

__all__ = ["QUANTIZE_TYPES", "QuantizeResult", "QuantizedTensor", "parse_size", "quantize"]

QUANTIZE_TYPES: tuple[str, ...] = tuple(_core.recipe_names())
"""The types that `quantize` writes, best first; most are mixtures that users of GGUF know."""


_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class QuantizedTensor:
    """What became of one tensor.

    Attributes:
        name: Its name.
        from_type: Its type in the input.
        to_type: Its type in the output.
        fallback: Whether it has a simpler type than the recipe says, whose blocks its rows do
            not fill.
        unweighted: Whether importance weights were given, but none for it.
        elements: Its number of values.
        bytes_before: Its size in the input.
        bytes_after: Its size in the output.
    """

    name: str
    from_type: str
    to_type: str
    fallback: bool
    unweighted: bool
    elements: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class QuantizeResult:
    """What `quantize` did.

    Attributes:
        path: The file written; of several the first.
        paths: All files written.
        type: The type asked for.
        tensors: All tensors, in file order.
        bytes_before: Size of the input file.
        bytes_after: Size of the output file.
    """

    path: Path
    paths: tuple[Path, ...]
    type: str
    tensors: tuple[QuantizedTensor, ...]
    bytes_before: int
    bytes_after: int

    @property
    def fallbacks(self) -> tuple[QuantizedTensor, ...]:
        """The tensors that have a simpler type than the recipe says."""
        return tuple(one for one in self.tensors if one.fallback)

    @property
    def unweighted(self) -> tuple[QuantizedTensor, ...]:
        """The tensors that the importance file has no weights for."""
        return tuple(one for one in self.tensors if one.unweighted)


def quantize(
    in_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    type: str,
    *,
    pure: bool = False,
    imatrix: str | os.PathLike[str] | None = None,
    split_size: int | str | None = None,
    threads: int | None = None,
    progress: ProgressOption = None,
) -> QuantizeResult:
    """Writes a GGUF file with the weights of another one in the given type.

    The K types and the 4- and 5-bit ones are recipes: the output matrix (and an embedding that
    serves as one) gets Q6_K, and in those that end in ``_m`` what the model is most sensitive to,
    values and down projections of some layers, gets a type or two more. The choices are those of
    llama.cpp. Vectors, norms, and the router of a mixture of experts become float32. Rows that are
    no whole blocks get the nearest simple type instead (Q2_K, Q3_K: Q4_0; Q4_K: Q5_0; Q5_K: Q5_1;
    Q6_K: Q8_0; IQ4_XS: IQ4_NL), or F16. A tensor that already has its type, or holds whole numbers,
    is copied bit by bit. The metadata stays, but for the two keys that name the type. The file
    appears when it is complete, replacing an older one.

    Args:
        in_path: The file to read (of a split model any part), or a name that was pulled; of any
            type that can be run.
        out_path: The file to write.
        type: One of `QUANTIZE_TYPES`; ``q3_k``, ``q4_k`` and ``q5_k`` are short for those with
            ``_m``.
        pure: Give every matrix the type that the recipe starts from.
        imatrix: A file of importance weights as llama.cpp's ``llama-imatrix`` writes it, in either
            of its forms: the error of a column counts in proportion to them. Tensors without an
            entry are quantised with equal weights, see `QuantizeResult.unweighted`.
        split_size: Largest size of a file, in bytes or as in ``"2G"`` (10^9 bytes) and ``"500M"``.
            A larger model becomes ``OUT-00001-of-00003.gguf`` and so on; a tensor is never split.
        threads: None: one per physical core.
        progress: None: a bar if stderr is a terminal; True; False; or a callback that gets the
            fraction done and a text.

    Returns:
        What became of each tensor, and the sizes.

    Raises:
        GgufError: The input is damaged, holds a NaN, an infinity or, where F16 is asked, a value
            beyond it, or has a type that cannot be read; or the importance weights are damaged or
            of another model.
        OutputError: The output cannot be written; nothing is left of it.
        ValueError: An unknown type, or the output is the input.
        FileNotFoundError: There is no input, or no file of importance weights.
    """
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads}, expected at least 1")
    max_bytes = parse_size(split_size)
    if imatrix is not None and not Path(imatrix).expanduser().exists():
        raise FileNotFoundError(f"there is no file {os.fspath(imatrix)!r}")
    source = resolve_model(in_path)
    target = Path(os.fspath(out_path)).expanduser()
    with open_progress(progress) as shown:
        done = _core.quantize_file(
            os.fsencode(source),
            os.fsencode(target),
            type,
            pure=pure,
            threads=threads or 0,
            importance=b"" if imatrix is None else os.fsencode(Path(imatrix).expanduser()),
            max_bytes=max_bytes,
            progress=lambda part: shown(part, f"quantising {source.name} to {type}"),
        )
    tensors = tuple(
        QuantizedTensor(
            one.name,
            one.from_type,
            one.to_type,
            one.fallback,
            one.unweighted,
            one.elements,
            one.bytes_before,
            one.bytes_after,
        )
        for one in done.tensors
    )
    paths = tuple(Path(os.fsdecode(one)) for one in done.paths)
    return QuantizeResult(
        paths[0], paths, type.lower(), tensors, done.bytes_before, done.bytes_after
    )


def parse_size(size: int | str | None) -> int:
    """Bytes of a size such as ``"2G"``; 0 for None.

    Raises:
        ValueError: It is no such size, or not positive.
    """
    if size is None:
        return 0
    text = str(size).strip().upper().removesuffix("B")
    unit = _UNITS.get(text[-1:], 0)
    digits = text[:-1] if unit else text
    if not digits.isdecimal() or int(digits) == 0:
        raise ValueError(
            f"split size is {size!r}, expected a number of bytes, or 500M, 2G and such"
        )
    return min(int(digits) * (unit or 1), 2**63)
