"""The GGUF reader: good files, and files from strangers."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf import dequantize as gguf_dequantize

from gguf_edit import set_tensor_type
from specdec_native import _core
from specdec_native.errors import GgufError
from support.raw_gguf import (
    ARRAY,
    STRING,
    TOY_ENTRIES,
    U8,
    U32,
    U64,
    array,
    entry,
    gguf,
    string,
    tensor,
)

GgufFile = _core.GgufFile
Opener = Callable[[bytes], Any]

_VALUES = np.arange(64, dtype=np.float32)
_TOY_TENSORS = (
    tensor("vector", [8], 0, 0),
    tensor("matrix", [4, 2], 0, 32),
    tensor("cube", [4, 3, 2], 0, 64),
    tensor("scalar", [], 0, 160),
)
_TOY_DATA = _VALUES[:41].tobytes()


def toy(version: int = 3) -> bytes:
    return gguf(TOY_ENTRIES, _TOY_TENSORS, _TOY_DATA, version=version)


@pytest.fixture
def open_bytes(tmp_path: Path) -> Iterator[Opener]:
    # Thousands of files: in memory where the system offers that, since some disks need 4 ms a file.
    in_memory = Path("/dev/shm")
    base = in_memory if os.access(in_memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=base) as folder:
        path = Path(folder) / "file.gguf"

        def open_(data: bytes) -> Any:
            path.write_bytes(data)
            return GgufFile(path)

        yield open_


def read_everything(file: Any) -> None:
    """Touches every byte that the file hands out."""
    _ = file.metadata
    for info in file.tensors:
        if info.supported:
            file.tensor_bytes(info.name).sum()
        else:
            with pytest.raises(GgufError, match="type"):
                file.tensor_bytes(info.name)


@pytest.mark.parametrize("version", [2, 3])
def test_toy_file_reads_back(open_bytes: Opener, version: int) -> None:
    file = open_bytes(toy(version))
    assert file.version == version
    assert file.alignment == 32
    metadata = file.metadata
    assert metadata is file.metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["u8"] == 200
    assert metadata["i8"] == -100
    assert metadata["u16"] == 60000
    assert metadata["i16"] == -30000
    assert metadata["u32"] == 4_000_000_000
    assert metadata["i32"] == -2_000_000_000
    assert metadata["f32"] == 0.5
    assert metadata["bool"] is True
    assert metadata["u64"] == 2**64 - 1
    assert metadata["i64"] == -(2**63)
    assert metadata["f64"] == 0.1
    assert metadata["ints"].dtype == np.int16
    assert metadata["ints"].tolist() == [1, -2, 3]
    assert metadata["flags"].tolist() == [False, True, True]
    assert metadata["tokens"] == ["a", "\udcff\udcfe", "", "\u0120the"]
    assert metadata["empty"].size == 0
    assert [(t.name, t.dtype, t.shape) for t in file.tensors] == [
        ("vector", "F32", (8,)),
        ("matrix", "F32", (2, 4)),
        ("cube", "F32", (2, 3, 4)),
        ("scalar", "F32", ()),
    ]
    assert np.array_equal(file.dequantize("vector"), _VALUES[:8])
    assert np.array_equal(file.dequantize("matrix"), _VALUES[8:16].reshape(2, 4))
    assert np.array_equal(file.dequantize("cube"), _VALUES[16:40].reshape(2, 3, 4))
    assert file.dequantize("scalar") == _VALUES[40]
    assert file.tensor_bytes("cube").shape == (6, 16)


def test_invalid_utf8_tokens_stay_distinct_and_convert_back(open_bytes: Opener) -> None:
    tokens = [bytes([i]) for i in range(256)] + [b"\xc3\xa9"]
    found = open_bytes(gguf([array("t", STRING, tokens)])).metadata["t"]
    assert len(set(found)) == 257
    assert [text.encode("utf-8", "surrogateescape") for text in found] == tokens


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_alignment_moves_the_data(open_bytes: Opener, alignment: int) -> None:
    entries = [entry("general.alignment", U64, alignment)]
    file = open_bytes(
        gguf(entries, [tensor("x", [8], 0, 0)], _VALUES[:8].tobytes(), alignment=alignment)
    )
    assert file.alignment == alignment
    assert np.array_equal(file.dequantize("x"), _VALUES[:8])


def test_file_without_tensors(open_bytes: Opener) -> None:
    file = open_bytes(gguf([entry("a", U32, 1)])[:41])
    assert file.tensors == []
    assert file.metadata == {"a": 1}


# ---- what the path may be


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"none\.gguf.*[Nn]o such file"):
        GgufFile(tmp_path / "none.gguf")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="is a directory"):
        GgufFile(tmp_path)


def test_empty_file(open_bytes: Opener) -> None:
    with pytest.raises(GgufError, match="empty"):
        open_bytes(b"")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_fifo_fails_instead_of_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(GgufError, match="not a regular file"):
        GgufFile(tmp_path / "fifo")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes any bytes as a name")
def test_path_that_is_no_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.gguf"
    with pytest.raises(GgufError, match=r"\\xff\.gguf"):
        GgufFile(path)
    Path(os.fsdecode(path)).write_bytes(toy())
    assert os.fsencode(GgufFile(path).path) == path


# ---- malformed files: every message names the field and the byte offset

_HEAD = struct.Struct("<4sIQQ")
_BAD_FILES = {
    "short magic": (b"GG", "byte 0: magic"),
    "other magic": (b"PK\x03\x04" + bytes(60), r"byte 0: magic.*found 'PK\\x03\\x04'"),
    "old format": (b"tjgg" + bytes(60), "before GGUF"),
    "no version": (b"GGUF\x03", "byte 4: version"),
    "big endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
    "version 1": (_HEAD.pack(b"GGUF", 1, 0, 0), "byte 4: version.*version 1 is not supported"),
    "version 4": (_HEAD.pack(b"GGUF", 4, 0, 0), "version 4 is not supported"),
    "header only half": (toy()[:20], "byte 16: metadata count"),
    # R26
    "kv_count 2^32": (gguf(kv_count=2**32) + bytes(36), "byte 16: metadata count.*4294967296"),
    "kv_count 2^64-1": (gguf(kv_count=2**64 - 1), "byte 16: metadata count"),
    "tensor_count 2^32": (gguf(tensor_count=2**32) + bytes(36), "byte 8: tensor count"),
    "tensor_count 2^64-1": (gguf(tensor_count=2**64 - 1), "byte 8: tensor count"),
    "more entries than there are": (gguf([entry("a", U32, 1)] * 1, kv_count=2), "byte"),
    "key length 2^48": (
        gguf([struct.pack("<Q", 2**48) + b"key" + bytes(9)]),
        "byte 24: key of a metadata entry.*281474976710656",
    ),
    "key length wraps": (gguf([struct.pack("<Q", 2**64 - 8) + bytes(9)]), "byte 24: key"),
    "empty key": (gguf([entry("", U32, 1)]), "byte 24: metadata key"),
    "key too long": (gguf([entry("k" * 65536, U32, 1)]), "byte 24: metadata key"),
    "string length 2^48": (
        gguf([string("s") + struct.pack("<IQ", STRING, 2**48) + b"text"]),
        "byte 37: string value of metadata key 's'.*281474976710656",
    ),
    "array count 2^64-1": (
        gguf([array("a", U8, [1, 2], count=2**64 - 1)]),
        "byte 41: element count of metadata key 'a'.*18446744073709551615",
    ),
    "array bytes wrap": (gguf([array("a", U64, [1], count=2**61 + 1)]), "byte 41: element count"),
    "string array count": (gguf([array("a", STRING, ["x"], count=2**62)]), "element count"),
    "string in array": (
        gguf([array("a", STRING, ["x"], count=2) + struct.pack("<Q", 2**63)]),
        "byte 58: string value of metadata key 'a'",
    ),
    "nested array": (gguf([array("a", ARRAY, [], count=1)]), "byte 37: element type.*arrays of"),
    "value type 13": (gguf([string("a") + struct.pack("<IQ", 13, 0)]), "byte 33: type.*type 13"),
    "element type 77": (gguf([array("a", 77, [])]), "byte 37: element type.*type 77"),
    "value cut off": (gguf([entry("abcdef", U64, 1)])[:45], "byte 42: value of .* 'abcdef'"),
    "duplicate key": (gguf([entry("a", U32, 1), entry("a", U32, 2)]), "'a': it appears twice"),
    "alignment 0": (gguf([entry("general.alignment", U32, 0)]), "power of two"),
    "alignment 12": (gguf([entry("general.alignment", U32, 12)]), "power of two"),
    "alignment 2^63": (gguf([entry("general.alignment", U64, 2**63)]), "general.alignment"),
    "alignment text": (gguf([entry("general.alignment", STRING, "32")]), "general.alignment"),
    # The tensor directory.
    "n_dims 9": (
        gguf((), [tensor("t", [1], 0, 0, n_dims=9)], bytes(8)),
        "byte 33: number of dimensions of tensor 't'.*it is 9",
    ),
    "n_dims 2^32-1": (gguf((), [tensor("t", [1], 0, 0, n_dims=2**32 - 1)]), "number of dimensions"),
    "zero dimension": (gguf((), [tensor("t", [4, 0], 0, 0)]), "byte 45: dimension.*dimension 1"),
    "elements overflow": (gguf((), [tensor("t", [2**32, 2**32], 0, 0)]), "byte 45.*overflow"),
    "elements overflow by four": (gguf((), [tensor("t", [2**16] * 4, 0, 0)]), "overflow"),
    "bytes overflow": (gguf((), [tensor("t", [2**62], 0, 0)]), "size of tensor 't'.*overflow"),
    "row length": (gguf((), [tensor("t", [33], 2, 0)], bytes(64)), "rows of 33 .*Q4_0.* 32"),
    "K row length": (gguf((), [tensor("t", [32], 12, 0)], bytes(64)), "rows of 32 .*Q4_K.* 256"),
    "empty tensor name": (gguf((), [tensor("", [1], 0, 0)], bytes(4)), "name of tensor"),
    "duplicate tensor": (
        gguf((), [tensor("t", [1], 0, 0), tensor("t", [1], 0, 32)], bytes(64)),
        "tensor 't': it appears twice",
    ),
    # R28
    "offset = file size": (gguf((), [tensor("t", [8], 0, 96)], bytes(32)), "beyond the end"),
    "offset beyond": (gguf((), [tensor("t", [8], 0, 128)], bytes(32)), "only 96 bytes"),
    "one byte short": (gguf((), [tensor("t", [8], 0, 0)], bytes(31)), "beyond the end"),
    "wrapping offset": (gguf((), [tensor("t", [8], 0, 2**64 - 32)], bytes(64)), "data offset"),
    "offset beyond 2^63": (gguf((), [tensor("t", [8], 0, 2**63)], bytes(64)), "data offset"),
    "unaligned offset": (gguf((), [tensor("t", [1], 0, 4)], bytes(64)), "multiple of the align"),
    "overlap": (
        gguf((), [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], bytes(64)),
        "tensor 'b': it overlaps that of tensor 'a'",
    ),
    "unknown type beyond the end": (gguf((), [tensor("t", [8], 99, 96)], bytes(32)), "beyond"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "message"), _BAD_FILES.values(), ids=_BAD_FILES)
def test_bad_file_is_an_error_with_field_and_offset(
    open_bytes: Opener, data: bytes, message: str
) -> None:
    with pytest.raises(GgufError, match=message) as caught:
        open_bytes(data)
    assert "byte " in str(caught.value)
    assert "file.gguf" in str(caught.value)


def test_message_is_printable_whatever_the_file_says(open_bytes: Opener) -> None:
    evil = b"\x1b[2J\xff" + b"\r\n" + b"x" * 1000
    with pytest.raises(GgufError) as caught:
        open_bytes(gguf([entry(evil, U32, 1), entry(evil, U32, 1)]))
    message = str(caught.value)
    assert "\\x1b[2J\\xff\\x0d\\x0a" in message
    assert "\x1b" not in message
    assert len(message) < 1000


def test_every_cut_of_a_model_is_an_error(open_bytes: Opener) -> None:
    data = toy()
    for size in range(len(data)):
        with pytest.raises(GgufError):
            open_bytes(data[:size])
    read_everything(open_bytes(data))


def test_tiny_model_cut_every_64_bytes(
    tmp_path: Path, make_model: Callable[..., Path], open_bytes: Opener
) -> None:
    data = make_model(layers=1, dtype="q4_0").read_bytes()
    # The last tensor's padding carries nothing.
    last = max(
        int(t.data_offset) + int(t.n_bytes)
        for t in GGUFReader(make_model(layers=1, dtype="q4_0")).tensors
    )
    for size in range(0, last, 64):
        with pytest.raises(GgufError):
            open_bytes(data[:size])


@pytest.mark.parametrize("number", [36, 99, 34, 4, 2**32 - 1])
def test_unknown_tensor_type_leaves_the_rest_usable(
    tmp_path: Path, make_model: Callable[..., Path], number: int
) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(make_model(layers=1).read_bytes())
    set_tensor_type(path, "blk.0.attn_q.weight", number)
    file = GgufFile(path)
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 300
    (odd,) = [t for t in file.tensors if not t.supported]
    assert (odd.name, odd.type_number) == ("blk.0.attn_q.weight", number)
    with pytest.raises(GgufError, match=rf"byte \d+: tensor 'blk.0.attn_q.weight'.* {number} "):
        file.dequantize(odd.name)
    assert file.dequantize("blk.0.attn_k.weight").shape == (32, 64)


def test_missing_tensor_is_named(tiny_model: Path) -> None:
    with pytest.raises(GgufError, match="tensor 'nosuch' is missing"):
        GgufFile(tiny_model).tensor_bytes("nosuch")


# ---- random damage


def _damaged(data: bytes, end: int, rng: random.Random) -> bytes:
    """Flips, overwrites, removes or repeats bytes before `end`, and sometimes cuts the file."""
    result = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(min(end, len(result)))
        kind = rng.randrange(5)
        if kind == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            extreme = rng.choice([0, 1, 2**31, 2**32 - 1, 2**48, 2**63, 2**64 - 32, 2**64 - 1])
            result[at : at + 8] = struct.pack("<Q", extreme)
        elif kind == 2:
            del result[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            result[at:at] = result[at : at + rng.randrange(1, 9)]
        else:
            result[at] = rng.randrange(256)
    return bytes(result[: rng.randrange(1, len(result))] if rng.random() < 0.1 else result)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_never_crashes(
    open_bytes: Opener, make_model: Callable[..., Path], seed: int
) -> None:
    rng = random.Random(seed)
    model = make_model(layers=1, width=32, heads=2, kv_heads=1, ffn=32, dtype="q4_0").read_bytes()
    directory_end = model.index(b"output_norm.weight") + 40
    opened = 0
    for data, end, rounds in ((toy(), len(toy()) - 164, 1000), (model, directory_end, 150)):
        for _ in range(rounds):
            try:
                file = open_bytes(_damaged(data, end, rng))
            except GgufError:
                continue
            opened += 1
            read_everything(file)
    assert opened > 0  # some damage (a changed value) leaves a sound file


_MEMORY_SCRIPT = """
import resource, sys
from specdec_native._core import GgufFile, testing
from specdec_native.errors import GgufError
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 32 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for path in sys.argv[1:]:
    try:
        GgufFile(path).metadata
    except GgufError:
        pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="ASan reserves terabytes")
def test_hostile_counts_allocate_nothing(tmp_path: Path) -> None:
    paths = []
    for i, (data, _) in enumerate(_BAD_FILES.values()):
        path = tmp_path / f"{i}.gguf"
        path.write_bytes(data)
        paths.append(str(path))
    # MemoryError (or a crash) in the child is a failure; GgufError is what must come.
    subprocess.run([sys.executable, "-c", _MEMORY_SCRIPT, *paths], check=True, timeout=60)


# ---- against the gguf package


def _assert_same_as_gguf_package(path: Path) -> None:
    file, reference = GgufFile(path), GGUFReader(path)
    fields = {k: v for k, v in reference.fields.items() if not k.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for key, value in file.metadata.items():
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        assert plain == fields[key].contents(), key
    assert len(file.tensors) == len(reference.tensors)
    for info, expected in zip(file.tensors, reference.tensors, strict=True):
        assert info.name == expected.name
        assert info.dtype == expected.tensor_type.name
        assert info.shape == tuple(reversed(expected.shape.tolist()))
        assert info.bytes == expected.n_bytes
        stored = np.ascontiguousarray(expected.data).view(np.uint8)
        assert np.array_equal(file.tensor_bytes(info.name).ravel(), stored.ravel())


_TYPES = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0",
          "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4",
          "iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m"]  # fmt: skip


@pytest.mark.parametrize("dtype", _TYPES)
def test_tiny_models_equal_gguf_package(make_model: Callable[..., Path], dtype: str) -> None:
    path = make_model(layers=1, width=256, heads=4, head_dim=64, ffn=256, dtype=dtype)
    _assert_same_as_gguf_package(path)
    file = GgufFile(path)
    for expected in GGUFReader(path).tensors:
        values = gguf_dequantize(expected.data, expected.tensor_type).astype(np.float32)
        assert np.array_equal(file.dequantize(expected.name), values), expected.name


def test_real_model_equals_gguf_package(real_model: Path) -> None:
    _assert_same_as_gguf_package(real_model)


def test_large_vocabulary_opens_fast(open_bytes: Opener) -> None:
    tokens = [f"token{i}" for i in range(262_144)]
    data = gguf([array("tokenizer.ggml.tokens", STRING, tokens)])
    start = time.perf_counter()
    assert open_bytes(data).metadata["tokenizer.ggml.tokens"] == tokens
    assert time.perf_counter() - start < 2.0
