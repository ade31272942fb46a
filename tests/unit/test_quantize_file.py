"""Quantising files: what is converted, what stays, and that a failure leaves nothing behind."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from specdec_native.quantization import QUANTIZE_TYPES
from support import raw_gguf
from support.weights import decode

REPLACED = {"general.file_type", "general.quantization_version"}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write({name: array or (type, raw rows)}, entries)`: a GGUF file with these tensors."""

    def make(tensors: dict, entries: tuple[bytes, ...] = raw_gguf.TOY_ENTRIES, **fields) -> Path:
        directory, data = [], b""
        for name, content in tensors.items():
            dtype, values = content if isinstance(content, tuple) else ("F32", content)
            kind = gguf.GGMLQuantizationType[dtype]
            dims = values.shape[::-1]
            if dtype != "F32":
                dims = gguf.quants.quant_shape_from_byte_shape(values.shape, kind)[::-1]
            directory.append(raw_gguf.tensor(name, dims, int(kind), len(data)))
            data += values.tobytes()
            data += bytes(-len(data) % fields.get("alignment", 32))
        path = tmp_path / "in.gguf"
        path.write_bytes(raw_gguf.gguf(entries, directory, data, **fields))
        return path

    return make


def matrix(rows: int, cols: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, (rows, cols)).astype(np.float32)


def entries_of(path: Path) -> dict[str, tuple[int, bytes]]:
    """Key -> (type, bytes of the value), as the ``gguf`` package finds them."""
    fields = gguf.GGUFReader(path).fields
    return {
        key: (int(field.types[0]), b"".join(part.tobytes() for part in field.parts))
        for key, field in fields.items()
        if not key.startswith("GGUF.")
    }


def decoded(path: Path) -> dict[str, np.ndarray]:
    """Name -> values, read and decoded by the ``gguf`` package."""
    return {
        tensor.name: decode(tensor.tensor_type.name, np.asarray(tensor.data)).reshape(
            tensor.shape[::-1]
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def expected_values(dtype: str, values: np.ndarray) -> np.ndarray:
    raw = _core.testing.quantize(dtype, values.reshape(-1))
    return decode(dtype, raw).reshape(values.shape)


BASES = {
    "q6_k": "Q6_K", "q5_k_m": "Q5_K", "q5_k_s": "Q5_K", "q4_k_m": "Q4_K", "q4_k_s": "Q4_K",
    "q3_k_l": "Q3_K", "q3_k_m": "Q3_K", "q3_k_s": "Q3_K", "q2_k": "Q2_K", "mxfp4_moe": "MXFP4",
}  # fmt: skip


@pytest.mark.parametrize("name", QUANTIZE_TYPES)
def test_matrices_are_converted_and_vectors_stay(write: Write, tmp_path: Path, name: str) -> None:
    tensors = {
        "token_embd.weight": matrix(40, 256, 1),
        "blk.0.attn_norm.weight": matrix(1, 256, 2)[0],
        "blk.0.ffn_up.weight": matrix(7, 512, 3),
        "blk.0.ffn_gate_inp.weight": matrix(4, 256, 4),
        "blk.0.ffn_down_exps.weight": matrix(6, 256, 5).reshape(3, 2, 256),
        "output.weight": matrix(40, 256, 6),
    }
    out = tmp_path / "out.gguf"
    result = sd.quantize(write(tensors), out, name, pure=True, threads=2)
    asked = BASES.get(name, name.upper())
    found = decoded(out)
    assert list(found) == list(tensors)
    for one in result.tensors:
        values = tensors[one.name]
        plain = values.ndim == 1 or "ffn_gate_inp" in one.name
        assert one.to_type == ("F32" if plain else asked)
        assert (one.from_type, one.fallback, one.elements) == ("F32", False, values.size)
        assert np.array_equal(found[one.name], expected_values(one.to_type, values))
    assert result.fallbacks == ()
    assert result.bytes_after == out.stat().st_size
    assert {one.name for one in tmp_path.iterdir()} == {"in.gguf", "out.gguf"}


def test_metadata_stays_byte_for_byte(write: Write, tmp_path: Path) -> None:
    entries = (
        *raw_gguf.TOY_ENTRIES,
        raw_gguf.entry("general.file_type", raw_gguf.U64, 7),
        raw_gguf.entry("last", raw_gguf.STRING, "ünï"),
    )
    path = write({"a.weight": matrix(2, 32)}, entries)
    out = tmp_path / "out.gguf"
    sd.quantize(path, out, "q4_0")
    before, after = entries_of(path), entries_of(out)
    assert set(after) == set(before) | REPLACED
    assert [key for key in after if key in before] == list(before)
    for key in set(before) - REPLACED:
        assert after[key] == before[key], key
    read = sd._core.GgufFile(out).metadata
    assert (read["general.file_type"], read["general.quantization_version"]) == (2, 2)
    assert read["tokens"][1] == "\udcff\udcfe"


@pytest.mark.parametrize("name", QUANTIZE_TYPES)
def test_file_types_are_those_of_the_format(write: Write, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out.gguf"
    sd.quantize(write({"a.weight": matrix(1, 256)}), out, name)
    found = sd._core.GgufFile(out).metadata["general.file_type"]
    names = {
        one.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        for one in gguf.LlamaFileType
        if one.value == found
    }
    assert names & {name.upper(), name.upper() + "_MOE"}


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_alignment_is_kept(write: Write, tmp_path: Path, alignment: int) -> None:
    entries = (raw_gguf.entry("general.alignment", raw_gguf.U32, alignment),)
    tensors = {f"{i}.weight": matrix(3, 32, i) for i in range(4)}
    path = write(tensors, entries, alignment=alignment)
    out = tmp_path / "out.gguf"
    sd.quantize(path, out, "q8_0")
    assert out.stat().st_size % alignment == 0
    found = decoded(out)
    for name, values in tensors.items():
        assert np.array_equal(found[name], expected_values("Q8_0", values))


FALLBACKS = {
    "q2_k": "Q4_0", "q3_k": "Q4_0", "q4_k": "Q5_0", "q5_k": "Q5_1", "q6_k": "Q8_0",
}  # fmt: skip


@pytest.mark.parametrize("name", FALLBACKS)
def test_rows_that_a_k_type_cannot_hold(write: Write, tmp_path: Path, name: str) -> None:
    tensors = {f"{cols}.weight": matrix(2, cols) for cols in (256, 96, 100)}
    result = sd.quantize(write(tensors), tmp_path / "out.gguf", name, pure=True)
    assert [one.to_type for one in result.tensors] == [name.upper(), FALLBACKS[name], "F16"]
    assert [one.fallback for one in result.tensors] == [False, True, True]
    assert [one.name for one in result.fallbacks] == ["96.weight", "100.weight"]
    found = decoded(tmp_path / "out.gguf")
    for one in result.tensors:
        assert np.array_equal(found[one.name], expected_values(one.to_type, tensors[one.name]))


def test_quantised_input_and_copies(write: Write, tmp_path: Path) -> None:
    raw = _core.testing.quantize("Q5_1", matrix(4, 64).reshape(-1)).reshape(4, -1)
    path = write({"a.weight": ("Q5_1", raw), "b.weight": matrix(4, 64), "n": matrix(1, 64)[0]})
    same = tmp_path / "same.gguf"
    sd.quantize(path, same, "q5_1")
    assert np.array_equal(sd._core.GgufFile(same).tensor_bytes("a.weight"), raw)
    other = tmp_path / "other.gguf"
    sd.quantize(path, other, "q4_0")
    values = decode("Q5_1", raw)
    assert np.array_equal(decoded(other)["a.weight"], expected_values("Q4_0", values))


def test_threads_do_not_change_the_file(write: Write, tmp_path: Path) -> None:
    path = write({"a.weight": matrix(300, 512)})
    written = []
    for threads in (1, 2, 5):
        out = tmp_path / f"{threads}.gguf"
        sd.quantize(path, out, "q4_k", threads=threads)
        written.append(out.read_bytes())
    assert len(set(written)) == 1


@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_bad_values_name_the_tensor(write: Write, tmp_path: Path, bad: float, shown: str) -> None:
    values = matrix(5, 64)
    values[3, 17] = bad
    path = write({"good.weight": matrix(2, 64), "bad.weight": values})
    with pytest.raises(sd.GgufError, match=f"'bad.weight': value 17 of row 3 is {shown}"):
        sd.quantize(path, tmp_path / "out.gguf", "q4_0")
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize("source", ["F32", "BF16"])
def test_values_beyond_f16_are_told_not_made_infinite(
    write: Write, tmp_path: Path, source: str
) -> None:
    """R49: 1e5 does not fit; nothing is written, and the message says what does."""
    values = matrix(5, 64)
    values[2, 9] = -1e5
    raw = _core.testing.quantize(source, values.reshape(-1)).reshape(5, -1)
    stored = values if source == "F32" else raw
    path = write({"good.weight": matrix(2, 64), "big.weight": (source, stored)})
    out = tmp_path / "out.gguf"
    with pytest.raises(
        sd.GgufError, match=r"'big.weight': value 9 of row 2 is -\S+, beyond .* F16 .*use bf16"
    ):
        sd.quantize(path, out, "f16")
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]
    for name in ("bf16", "f32", "q8_0", "q4_k_m"):
        sd.quantize(path, out, name)
        assert decoded(out)["big.weight"][2, 9] == pytest.approx(-1e5, rel=0.01)
    edge = np.full((2, 32), 65519, np.float32)  # the last that rounds down
    sd.quantize(write({"a.weight": edge}), out, "f16")
    assert (decoded(out)["a.weight"] == 65504).all()


def test_bf16_is_copied_bit_for_bit(write: Write, tmp_path: Path) -> None:
    raw = _core.testing.quantize("BF16", matrix(4, 64).reshape(-1)).reshape(4, -1)
    sd.quantize(write({"a.weight": ("BF16", raw)}), tmp_path / "out.gguf", "bf16")
    assert np.array_equal(sd._core.GgufFile(tmp_path / "out.gguf").tensor_bytes("a.weight"), raw)


def test_an_older_output_survives_a_failure(write: Write, tmp_path: Path) -> None:
    values = matrix(5, 64)
    values[0, 0] = np.nan
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with pytest.raises(sd.GgufError):
        sd.quantize(write({"a.weight": values}), out, "q4_0")
    assert out.read_text() == "precious"
    sd.quantize(write({"a.weight": matrix(5, 64)}), out, "q4_0")
    assert out.read_bytes()[:4] == b"GGUF"


def test_a_callback_sees_progress_and_may_end_the_work(write: Write, tmp_path: Path) -> None:
    path = write({f"{i}.weight": matrix(4, 64) for i in range(5)})
    seen: list[float] = []
    out = tmp_path / "out.gguf"
    sd.quantize(path, out, "q4_0", progress=lambda part, text: seen.append(part))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    out.unlink()

    def stop(part: float, text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sd.quantize(path, out, "q4_0", progress=stop)
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]


def test_wrong_requests(write: Write, tmp_path: Path) -> None:
    path = write({"a.weight": matrix(2, 32)})
    out = tmp_path / "out.gguf"
    with pytest.raises(ValueError, match=r"unknown type 'q9'; known are f32, f16, .*q6_k"):
        sd.quantize(path, out, "q9")
    with pytest.raises(ValueError, match="threads is 0"):
        sd.quantize(path, out, "q4_0", threads=0)
    with pytest.raises(ValueError, match="is the input file"):
        sd.quantize(path, path, "q4_0")
    with pytest.raises(FileNotFoundError):
        sd.quantize(tmp_path / "none.gguf", out, "q4_0")
    with pytest.raises(sd.OutputError, match="it is a directory"):
        sd.quantize(path, tmp_path, "q4_0")
    with pytest.raises(sd.OutputError, match="it is not a regular file"):
        sd.quantize(path, "/dev/null", "q4_0")
    with pytest.raises(OSError, match=r"there is no folder .*none'; create it first"):
        sd.quantize(path, tmp_path / "none" / "out.gguf", "q4_0")
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize(
    ("number", "dtype"), [(24, "i1"), (25, "i2"), (26, "i4"), (27, "i8"), (28, "f8")]
)
def test_numbers_that_are_no_weights_are_copied(tmp_path: Path, number: int, dtype: str) -> None:
    """Such as the id map of an EAGLE-3 head."""
    values = np.arange(-8, 8).astype(dtype)
    directory = [
        raw_gguf.tensor("d2t", [16], number, 0),
        raw_gguf.tensor("fc.weight", [32, 2], 0, 128),
    ]
    data = values.tobytes().ljust(128, b"\0") + matrix(2, 32).tobytes()
    path, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    path.write_bytes(raw_gguf.gguf((), directory, data))
    result = sd.quantize(path, out, "q8_0")
    assert result.tensors[0].from_type == result.tensors[0].to_type != "unknown"
    assert result.tensors[0].bytes_after == values.nbytes
    assert [one.to_type for one in result.tensors[1:]] == ["Q8_0"]
    read = gguf.GGUFReader(out).tensors[0]
    assert read.tensor_type == number
    assert bytes(read.data) == values.tobytes()


def test_unreadable_types(write: Write, tmp_path: Path) -> None:
    data = raw_gguf.gguf((), [raw_gguf.tensor("a.weight", [32], 34, 0)], bytes(128))
    path = tmp_path / "in.gguf"
    path.write_bytes(data)
    with pytest.raises(sd.GgufError, match=r"'a.weight' has type 34 \(TQ1_0\)"):
        sd.quantize(path, tmp_path / "out.gguf", "q4_0")


@pytest.mark.parametrize("limit", [100, 4096, 300_000])
def test_a_full_disk_is_told_and_leaves_nothing(write: Write, tmp_path: Path, limit: int) -> None:
    path = write({"a.weight": matrix(400, 512)})
    code = (
        "import resource, sys, specdec_native as sd\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "try:\n    sd.quantize(sys.argv[1], sys.argv[2], 'f16')\n"
        "except sd.OutputError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, tmp_path / "out.gguf"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large; no partial file was left" in done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]


def test_memory_stays_small(tmp_path: Path) -> None:
    """A tensor of 64 MB is neither held as floats nor as a whole output."""
    path, out = tmp_path / "in.gguf", tmp_path / "out.gguf"
    rows, cols = 16384, 1024
    head = raw_gguf.gguf((), [raw_gguf.tensor("a.weight", [cols, rows], 0, 0)])
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + rows * cols * 4)
    code = (
        "import sys, specdec_native as sd, re, pathlib\n"
        "status = lambda: int(re.search(r'RssAnon:\\s+(\\d+)',"
        " pathlib.Path('/proc/self/status').read_text())[1]) // 1024\n"
        "start, peak = status(), 0\n"
        "def watch(part, text):\n    global peak\n    peak = max(peak, status())\n"
        "sd.quantize(sys.argv[1], sys.argv[2], 'f16', progress=watch)\n"
        "print(peak - start)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, out], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 24
    with out.open("rb") as file:
        assert struct.unpack("<4sIQQ", file.read(24)) == (b"GGUF", 3, 1, 2)
