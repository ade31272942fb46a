"""Importance weights: both forms of the files, the error they lower, and files that do not fit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support import raw_gguf
from support.quantize import golden_tensors
from support.weights import decode

WEIGHTED = [
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ4_NL", "IQ4_XS", "MXFP4"),
]
COLS = 512
Entries = dict[str, tuple[np.ndarray, np.ndarray]]  # sums [matrices, K], counts [matrices]


def column_weights(seed: int = 1) -> np.ndarray:
    """Very uneven ones, as activations are."""
    return np.exp(np.random.default_rng(seed).normal(0, 2, COLS)).astype(np.float32)


def weighted_error(dtype: str, raw: np.ndarray, values: np.ndarray, weights: np.ndarray) -> float:
    errors = (decode(dtype, raw).reshape(values.shape) - values).astype(np.float64)
    return float((errors**2 * weights).mean())


@pytest.mark.parametrize("dtype", WEIGHTED)
def test_weights_lower_the_error_they_weigh(dtype: str) -> None:
    values = golden_tensors()["blk.0.attn_q.weight"][:64]
    weights = column_weights()
    each = np.tile(weights, len(values))
    flat = values.reshape(-1)
    plain = _core.testing.quantize(dtype, flat)
    weighted = _core.testing.quantize(dtype, flat, each)
    before = weighted_error(dtype, plain, values, weights)
    after = weighted_error(dtype, weighted, values, weights)
    bound = 0.98 if dtype == "MXFP4" else 0.9  # whose scales are powers of two
    assert after < bound * before
    # Only what they are to each other counts, and equal ones change nothing.
    for factor in (2.0**-60, 2.0**60):
        scaled = (each * np.float32(factor)).astype(np.float32)
        assert np.array_equal(_core.testing.quantize(dtype, flat, scaled), weighted)
    equal = _core.testing.quantize(dtype, flat, np.full_like(each, 3))
    assert weighted_error(dtype, equal, values, np.ones(COLS)) < 1.0001 * weighted_error(
        dtype, plain, values, np.ones(COLS)
    )


@pytest.mark.parametrize("dtype", WEIGHTED)
def test_columns_that_were_never_used_are_not_lost(dtype: str) -> None:
    values = golden_tensors()["blk.0.attn_q.weight"][:16]
    flat = values.reshape(-1)
    none = _core.testing.quantize(dtype, flat, np.zeros_like(flat))
    plain = _core.testing.quantize(dtype, flat)
    ones = np.ones(COLS)
    limit = 1.0001 * weighted_error(dtype, plain, values, ones)
    assert weighted_error(dtype, none, values, ones) < limit
    half = np.tile(np.repeat([1.0, 0.0], COLS // 2).astype(np.float32), len(values))
    decoded = decode(dtype, _core.testing.quantize(dtype, flat, half)).reshape(values.shape)
    assert np.isfinite(decoded).all()
    lost = np.mean((decoded - values)[:, COLS // 2 :] ** 2)
    assert lost < 0.3 * np.mean(values[:, COLS // 2 :] ** 2)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0"])
def test_types_that_ignore_them(dtype: str) -> None:
    flat = golden_tensors()["blk.0.attn_q.weight"][0]
    with_weights = _core.testing.quantize(dtype, flat, column_weights())
    assert np.array_equal(with_weights, _core.testing.quantize(dtype, flat))


# --- Files ---


def gguf_form(path: Path, entries: Entries) -> Path:
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["some text.txt"])
    writer.add_uint32("imatrix.chunk_count", 7)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", sums)
        writer.add_tensor(f"{name}.counts", counts.reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def legacy_bytes(entries: Entries, tail: bool = True) -> bytes:
    out = struct.pack("<i", len(entries))
    for name, (sums, counts) in entries.items():
        data = np.ascontiguousarray(sums, "<f4").tobytes()
        out += struct.pack("<i", len(name)) + name.encode()
        out += struct.pack("<ii", int(counts[0]), sums.size) + data
    text = b"some text.txt"
    return out + (struct.pack("<ii", 7, len(text)) + text if tail else b"")


def legacy_form(path: Path, entries: Entries) -> Path:
    path.write_bytes(legacy_bytes(entries))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A matrix, two experts' matrices, and an output matrix."""
    shapes = {
        "blk.0.ffn_up.weight": (16, COLS),
        "blk.0.ffn_up_exps.weight": (2, 8, COLS),
        "output.weight": (16, COLS),
        "blk.0.attn_norm.weight": (COLS,),
    }
    directory, data = [], b""
    for i, (name, shape) in enumerate(shapes.items()):
        directory.append(raw_gguf.tensor(name, shape[::-1], 0, len(data)))
        values = np.random.default_rng(i).standard_t(5, shape).astype(np.float32)
        data += values.tobytes()
    path = tmp_path / "in.gguf"
    entries = (raw_gguf.entry("general.architecture", raw_gguf.STRING, "llama"),)
    path.write_bytes(raw_gguf.gguf(entries, directory, data))
    return path


ENTRIES: Entries = {
    "blk.0.ffn_up.weight": (column_weights(2)[None], np.array([4], np.float32)),
    "blk.0.ffn_up_exps.weight": (
        np.stack([column_weights(3), column_weights(4)]), np.array([2, 2], np.float32)
    ),
}  # fmt: skip


@pytest.mark.parametrize("write", [gguf_form, legacy_form])
def test_files_of_both_forms(
    model: Path, tmp_path: Path, write: Callable[[Path, Entries], Path]
) -> None:
    source = write(tmp_path / "weights.imatrix", ENTRIES)
    out = tmp_path / "out.gguf"
    result = sd.quantize(model, out, "q4_k_s", imatrix=source, pure=True)
    assert [one.name for one in result.unweighted] == ["output.weight"]
    file = _core.GgufFile(out)
    before = _core.GgufFile(model)
    for name, (sums, _) in ENTRIES.items():
        values = before.dequantize(name)
        rows = values.reshape(-1, COLS)
        each = np.repeat(sums, len(rows) // len(sums), axis=0)
        expected = _core.testing.quantize("Q4_K", rows.reshape(-1), each.reshape(-1))
        assert np.array_equal(file.tensor_bytes(name).reshape(-1), expected), name
    plain = _core.testing.quantize("Q4_K", before.dequantize("output.weight").reshape(-1))
    assert np.array_equal(file.tensor_bytes("output.weight").reshape(-1), plain)
    keys = {key: file.metadata[f"quantize.imatrix.{key}"] for key in ("file", "dataset")}
    assert keys == {"file": str(source), "dataset": "some text.txt"}
    assert file.metadata["quantize.imatrix.entries_count"] == 2
    assert file.metadata["quantize.imatrix.chunks_count"] == 7


def test_sums_are_divided_by_their_counts(model: Path, tmp_path: Path) -> None:
    """An expert without tokens counts all columns alike; the others their means."""
    sums = np.stack([column_weights(3), np.zeros(COLS, np.float32)])
    entries = {"blk.0.ffn_up_exps.weight": (sums, np.array([4, 0], np.float32))}
    out = tmp_path / "out.gguf"
    sd.quantize(model, out, "q4_0", imatrix=gguf_form(tmp_path / "i.gguf", entries), pure=True)
    rows = _core.GgufFile(model).dequantize("blk.0.ffn_up_exps.weight").reshape(-1, COLS)
    each = np.concatenate([np.tile(sums[0], 8), np.ones(8 * COLS, np.float32)])
    expected = _core.testing.quantize("Q4_0", rows.reshape(-1), each)
    found = _core.GgufFile(out).tensor_bytes("blk.0.ffn_up_exps.weight").reshape(-1)
    assert np.array_equal(found, expected)


def test_older_files_end_after_their_entries(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.imatrix"
    out = tmp_path / "out.gguf"
    for tail in (b"", struct.pack("<ii", 7, 0)):  # a text without a name
        path.write_bytes(legacy_bytes(ENTRIES, tail=False) + tail)
        sd.quantize(model, out, "q4_0", imatrix=path)
        assert "quantize.imatrix.dataset" not in _core.GgufFile(out).metadata


def test_threads_do_not_change_the_file(model: Path, tmp_path: Path) -> None:
    source = gguf_form(tmp_path / "i.gguf", ENTRIES)
    written = set()
    for threads in (1, 3):
        out = tmp_path / "out.gguf"
        sd.quantize(model, out, "q5_k_m", imatrix=source, threads=threads)
        written.add(out.read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize("write", [gguf_form, legacy_form])
def test_weights_of_another_model(
    model: Path, tmp_path: Path, write: Callable[[Path, Entries], Path]
) -> None:
    wide = {"blk.0.ffn_up.weight": (np.ones((1, 2 * COLS), np.float32), np.ones(1, np.float32))}
    source = write(tmp_path / "weights", wide)
    with pytest.raises(sd.GgufError, match=r"'blk.0.ffn_up.weight' has 1024 weights, .* 1 x 512"):
        sd.quantize(model, tmp_path / "out.gguf", "q4_0", imatrix=source)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("write", [gguf_form, legacy_form])
def test_sums_that_are_none(
    model: Path, tmp_path: Path, bad: float, write: Callable[[Path, Entries], Path]
) -> None:
    sums = np.ones((1, COLS), np.float32)
    sums[0, 9] = bad
    source = write(tmp_path / "weights", {"blk.0.ffn_up.weight": (sums, np.ones(1, np.float32))})
    with pytest.raises(sd.GgufError, match=r"'blk.0.ffn_up.weight': sum 9 is"):
        sd.quantize(model, tmp_path / "out.gguf", "q4_0", imatrix=source)


def test_damaged_files(model: Path, tmp_path: Path) -> None:
    whole = legacy_bytes(ENTRIES)
    path = tmp_path / "weights"

    def message(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(sd.GgufError) as caught:
            sd.quantize(model, tmp_path / "out.gguf", "q4_0", imatrix=path)
        return str(caught.value)

    for length in (1, 3, 6, 20, 40, 1000, len(whole) - 5):
        assert str(path) in message(whole[:length])
    assert "this is no file of llama-imatrix" in message(struct.pack("<i", 0) + bytes(64))
    assert "number of entries" in message(struct.pack("<i", 2**31 - 1) + bytes(64))
    assert "there are no importance weights" in message(raw_gguf.gguf(raw_gguf.TOY_ENTRIES))
    lonely = raw_gguf.gguf((), [raw_gguf.tensor("a.in_sum2", [8], 0, 0)], bytes(32))
    assert "'a.counts' is missing" in message(lonely)
    with pytest.raises(FileNotFoundError, match="no file"):
        sd.quantize(model, tmp_path / "out.gguf", "q4_0", imatrix=tmp_path / "none")
