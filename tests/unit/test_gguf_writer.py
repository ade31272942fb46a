"""The one writer behind `convert` and `quantize`, and the places where it may not write."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

import specdec_native as sd
from specdec_native import _core
from support.checkpoints import checkpoint, metadata_of

VALUES: dict[str, tuple[Any, str]] = {
    "a.text": ("é\n", "STRING"),
    "a.flag": (True, "BOOL"),
    "a.int": (2**32 - 1, "UINT32"),
    "a.negative": (-1, "INT64"),
    "a.large": (2**40, "INT64"),
    "a.float": (0.5, "FLOAT32"),
    "a.i32": (np.int32(40), "INT32"),
    "a.u16": (np.uint16(7), "UINT16"),
    "a.f64": (np.float64(0.1), "FLOAT64"),
    "b.texts": (["", "x", "\u4f60"], "STRING"),
    "b.flags": ([True, False], "BOOL"),
    "b.ints": ([1, -2], "INT32"),
    "b.floats": ([0.25, 2], "FLOAT32"),
    "b.bytes": (np.arange(5, dtype=np.uint8), "UINT8"),
}


def test_metadata_of_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    metadata = {key: value for key, (value, _) in VALUES.items()}
    with _core.GgufWriter(path, metadata, [("x", "F32", [2, 3]), ("ids", "I64", [3])]) as writer:
        assert writer.paths == [str(path)]
        writer.write(np.arange(6, dtype="<f4").view(np.uint8))
        writer.write(np.arange(3, dtype="<i8").view(np.uint8))
        assert list(tmp_path.glob("m.gguf")) == []
        assert writer.finish() == path.stat().st_size
    fields = GGUFReader(path).fields
    for key, (value, kind) in VALUES.items():
        assert fields[key].types[-1].name == kind, key
        found = _core.GgufFile(path).metadata[key]
        assert np.array_equal(found, value), key
    assert [key for key in fields if not key.startswith("GGUF.")] == list(VALUES)
    tensors = {one.name: one for one in GGUFReader(path).tensors}
    assert tensors["x"].data.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["ids"].data.tolist() == [0, 1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for metadata, tensors, message in (
        ({}, [("x", "Q9", [32])], r"tensor 'x' of type 'Q9'"),
        ({}, [("x", "Q8_1", [32])], r"tensor 'x' of type 'Q8_1'"),
        ({}, [("x", "F32", [])], r"and 0 dimensions"),
        ({}, [("x", "Q4_K", [2, 255])], r"rows of 255 values, which are no whole blocks of Q4_K"),
        ({"a": None}, [], r"metadata key 'a' has no value"),
        ({"a": np.array(["x"])}, [], r"NumPy's kind"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.GgufWriter(path, metadata, tensors)
    writer = _core.GgufWriter(path, {}, [("x", "F32", [2])])
    assert len(list(tmp_path.iterdir())) == 1
    writer.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        writer.finish()


def test_an_unfinished_file_is_removed(tmp_path: Path) -> None:
    tensors = [("x", "F32", [64]), ("y", "F32", [64])]

    def stop() -> None:
        with _core.GgufWriter(tmp_path / "m.gguf", {}, tensors, max_bytes=600) as writer:
            writer.write(np.zeros(256, np.uint8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        stop()
    assert caught.traceback  # which keeps the writer alive
    assert list(tmp_path.iterdir()) == []


def test_split_names() -> None:
    names = [f"a/m-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    assert all(_core.split_names(one) == names for one in names)
    for name in ("m.gguf", "m-00004-of-00003.gguf", "m-00001-of-00003.bin", "m-1-of-3.gguf", ""):
        assert _core.split_names(name) == [name]


def convert_in(folder: Path) -> Callable[..., Any]:
    hf = checkpoint(folder / "hf")
    return lambda out, **more: sd.convert(hf, out, "f32", **more)


def quantize_in(folder: Path) -> Callable[..., Any]:
    sd.convert(checkpoint(folder / "hf"), folder / "in.gguf", "f32", progress=False)
    return lambda out, **more: sd.quantize(folder / "in.gguf", out, "f32", **more)


def test_both_commands_write_the_same_parts(tmp_path: Path) -> None:
    """R32: one rule where a part ends, one form of names and keys."""
    one = convert_in(tmp_path)(tmp_path / "a.gguf", split_size="60K", progress=False)
    whole = quantize_in(tmp_path)
    two = whole(tmp_path / "b.gguf", split_size="60K", progress=False)
    assert len(one.files) == len(two.paths) > 2
    for first, second in zip(one.files, two.paths, strict=True):
        assert first.name[1:] == second.name[1:]
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("make", [convert_in, quantize_in])
def test_places_that_cannot_be_written_are_told_before_the_work(
    tmp_path: Path, make: Callable[[Path], Callable[..., Any]]
) -> None:
    run, out = make(tmp_path), tmp_path / "out"
    out.mkdir()
    run(out / "m.gguf", split_size="60K", progress=False)
    last = max(one.name for one in out.iterdir())
    for one in out.iterdir():
        one.unlink()
    (out / "file").write_text("x")
    (out / last).mkdir()
    left = sorted(out.iterdir())
    done: list[float] = []
    for path, more, message in (
        (out, {}, r"cannot write .*out': it is a directory; give the path of a file"),
        (
            out / "none" / "m.gguf",
            {},
            r"cannot write .*m.gguf': there is no folder '.*none'; create",
        ),
        (out / "file" / "m.gguf", {}, r"m.gguf': '.*file' is a file, no folder"),
        (out / "m.gguf", {"split_size": "60K"}, rf"cannot write .*{last}': it is a directory"),
        ("/dev/null", {}, r"cannot write '/dev/null': it is not a regular file"),
    ):
        with pytest.raises(sd.OutputError, match=message):
            run(path, progress=lambda part, _: done.append(part), **more)
    assert done == []
    assert sorted(out.iterdir()) == left


def test_the_output_must_not_be_a_file_of_the_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf")
    before = {one.name: one.read_bytes() for one in folder.iterdir()}
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ValueError, match=rf"output '.*{name}' is an input file"):
            sd.convert(folder, folder / name, progress=False)
    (tmp_path / "link").symlink_to(folder / "config.json")
    with pytest.raises(ValueError, match=r"is an input file"):
        sd.convert(folder, tmp_path / "link", progress=False)
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == before
    for _ in range(2):  # an older output there may be replaced
        sd.convert(folder, folder / "m.gguf", progress=False)


def test_a_converters_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf")
    (tmp_path / "out").mkdir()
    code = (
        "import resource, sys, specdec_native as sd\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    sd.convert(sys.argv[1], sys.argv[2], 'f32')\n"
        "except sd.OutputError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder, tmp_path / "out" / "m.gguf"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "File too large; no partial file was left" in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The link stays; the file lies where it points to, also if nothing was there."""
    run = convert_in(tmp_path)
    (tmp_path / "disk").mkdir()
    (tmp_path / "m.gguf").symlink_to(Path("disk") / "x.gguf")
    (tmp_path / "n.gguf").symlink_to(tmp_path / "m.gguf")
    for _ in range(2):
        assert run(tmp_path / "n.gguf", progress=False).path == tmp_path / "n.gguf"
        assert (tmp_path / "n.gguf").is_symlink()
        assert (tmp_path / "m.gguf").is_symlink()
        assert [one.name for one in (tmp_path / "disk").iterdir()] == ["x.gguf"]
        assert len(_core.GgufFile(tmp_path / "n.gguf").tensors) == 21
    (tmp_path / "o.gguf").symlink_to(tmp_path / "gone" / "x.gguf")
    with pytest.raises(sd.OutputError, match=r"there is no folder '.*gone'; create it first"):
        run(tmp_path / "o.gguf", progress=False)
    (tmp_path / "p.gguf").symlink_to(tmp_path / "p.gguf")
    with pytest.raises(sd.OutputError, match=r"p.gguf': it is a link to itself"):
        run(tmp_path / "p.gguf", progress=False)


def test_names_of_any_script(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m\u00f6dell \u4f60\u597d \U0001f680")
    result = sd.convert(folder, folder / "\u00e9.gguf", split_size="60K", progress=False)
    assert result.path.name == f"\u00e9-00001-of-{len(result.files):05d}.gguf"
    assert metadata_of(result.path)["general.name"] == folder.name
    raw = os.fsencode(tmp_path) + b"/\xff.gguf"
    assert os.fsencode(sd.convert(folder, os.fsdecode(raw), progress=False).path) == raw
