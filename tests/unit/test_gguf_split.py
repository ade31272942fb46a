"""R32: models split into several files: any part opens the set, and what is wrong is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import specdec_native as sd
from specdec_native import _core
from support import raw_gguf

VALUES = np.arange(96, dtype=np.float32)
Parts = Callable[..., list[Path]]


def part(
    number: int, count: int, names: str, total: int = 3, extra: tuple[bytes, ...] = ()
) -> bytes:
    """Part `number` (from 0): a tensor of 8 values for each letter of `names`."""
    entries = (
        *extra,
        raw_gguf.entry("split.no", raw_gguf.U16, number),
        raw_gguf.entry("split.count", raw_gguf.U16, count),
        raw_gguf.entry("split.tensors.count", raw_gguf.I32, total),
    )
    directory = [raw_gguf.tensor(name, [8], 0, 32 * i) for i, name in enumerate(names)]
    first = 8 * (ord(names[0]) - ord("a")) if names else 0
    return raw_gguf.gguf(entries, directory, VALUES[first : first + 8 * len(names)].tobytes())


def name_of(number: int, count: int = 3) -> str:
    return f"toy-{number:05}-of-{count:05}.gguf"


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """Writes parts; the default is a toy of three, whose first has the metadata and no tensor."""

    def make(*contents: bytes) -> list[Path]:
        contents = contents or (
            part(0, 3, "", extra=raw_gguf.TOY_ENTRIES),
            part(1, 3, "ab"),
            part(2, 3, "c"),
        )
        paths = [tmp_path / name_of(i + 1) for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return paths

    return make


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_set(parts: Parts, opened: int) -> None:
    paths = parts()
    file = _core.GgufFile(paths[opened])
    assert file.path == str(paths[opened])
    assert file.paths == [str(one) for one in paths]
    assert file.file_size == sum(one.stat().st_size for one in paths)
    assert file.metadata["general.architecture"] == "llama"
    assert [one.name for one in file.tensors] == ["a", "b", "c"]
    for i, name in enumerate("abc"):
        assert np.array_equal(file.dequantize(name), VALUES[8 * i : 8 * i + 8])


def test_relative_paths_and_links(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches hold links to files that have other names."""
    paths = parts()
    monkeypatch.chdir(tmp_path)
    assert len(_core.GgufFile(paths[1].name).tensors) == 3
    links = tmp_path / "links"
    links.mkdir()
    for i, path in enumerate(paths):
        path.rename(tmp_path / f"blob{i}")
        (links / path.name).symlink_to(tmp_path / f"blob{i}")
    assert len(_core.GgufFile(links / paths[2].name).tensors) == 3


@pytest.mark.parametrize("opened", [0, 2])
def test_a_missing_part_is_named(parts: Parts, opened: int) -> None:
    paths = parts()
    paths[1].unlink()
    with pytest.raises(sd.GgufError) as caught:
        _core.GgufFile(paths[opened])
    message = str(caught.value)
    assert f"part {opened + 1} of a model in 3 files, of which 1 is missing" in message
    assert name_of(2) in message
    assert "put all parts into one folder" in message


def test_many_missing_parts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / name_of(7, 40)
    path.write_bytes(part(6, 40, "a"))
    with pytest.raises(
        sd.GgufError, match=r"of which 39 are missing: .*00004-of-00040.gguf, \.\.\."
    ):
        _core.GgufFile(path)


def test_joined_parts_are_told(parts: Parts, tmp_path: Path) -> None:
    """With cat toy-*.gguf > toy.gguf; the header of the first part knows one part only."""
    contents = [one.read_bytes() for one in parts()]
    joined = tmp_path / "toy.gguf"
    joined.write_bytes(b"".join(contents))
    with pytest.raises(sd.GgufError, match="parts of a split model were joined into one file"):
        _core.GgufFile(joined)
    # A writer that does not fill up the last tensor.
    odd = raw_gguf.gguf((), [raw_gguf.tensor("a", [7], 0, 0)], VALUES[:7].tobytes())
    joined.write_bytes(odd + contents[1])
    with pytest.raises(sd.GgufError, match="were joined into one file"):
        _core.GgufFile(joined)
    joined = tmp_path / name_of(2)
    joined.write_bytes(b"".join(contents[1:]))
    with pytest.raises(sd.GgufError, match=r"were joined .*gguf-split --merge"):
        _core.GgufFile(joined)


def test_renamed_parts_are_told(parts: Parts, tmp_path: Path) -> None:
    paths = parts()
    lost = paths[1].rename(tmp_path / "model.gguf")
    with pytest.raises(
        sd.GgufError, match=r"part 2 of a model in 3 files, but .* NAME-00002-of-00003"
    ):
        _core.GgufFile(lost)
    lost.rename(paths[1])
    first, second = paths[0].read_bytes(), paths[1].read_bytes()
    paths[0].write_bytes(second)
    paths[1].write_bytes(first)
    for path in paths:  # a wrong one is found from any
        with pytest.raises(
            sd.GgufError, match=r"by its name this is part \d of 3, but .* say \d of 3"
        ):
            _core.GgufFile(path)


def test_parts_of_different_sets_are_told(parts: Parts) -> None:
    first = part(0, 3, "", extra=raw_gguf.TOY_ENTRIES)
    paths = parts(first, part(1, 3, "ab"), part(2, 3, "c", total=4))
    with pytest.raises(sd.GgufError, match=r"3 parts with 4 tensors.*says 3 parts with 3 tensors"):
        _core.GgufFile(paths[0])
    paths = parts(first, part(1, 3, "ab"), part(2, 2 + 2, "c"))
    with pytest.raises(sd.GgufError, match="4 parts with 3 tensors"):
        _core.GgufFile(paths[1])
    paths = parts(first, part(1, 3, "ab"), raw_gguf.gguf(raw_gguf.TOY_ENTRIES))
    with pytest.raises(sd.GgufError, match="1 part with an unknown number of tensors"):
        _core.GgufFile(paths[0])


def test_tensors_must_be_all_there_and_once(parts: Parts) -> None:
    first = part(0, 3, "", extra=raw_gguf.TOY_ENTRIES)
    paths = parts(first, part(1, 3, "ab"), part(2, 3, ""))
    with pytest.raises(sd.GgufError, match=r"3 parts have 2 tensors, but .*count' says 3"):
        _core.GgufFile(paths[1])
    paths = parts(first, part(1, 3, "ab"), part(2, 3, "b"))
    with pytest.raises(sd.GgufError, match="tensor 'b' is also in"):
        _core.GgufFile(paths[0])


def test_a_damaged_part_is_named(parts: Parts) -> None:
    paths = parts()
    paths[2].write_bytes(paths[2].read_bytes()[:-20])
    with pytest.raises(sd.GgufError, match=rf"{name_of(3)}: .*reach beyond the end of the file"):
        _core.GgufFile(paths[0])


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_may_be_the_odd_one(parts: Parts, odd: int, opened: int) -> None:
    names, totals = ("", "ab", "c"), [3, 3, 3]
    totals[odd] = 5
    paths = parts(*(part(i, 3, names[i], total=totals[i]) for i in range(3)))
    with pytest.raises(sd.GgufError, match="they are not parts of one model"):
        _core.GgufFile(paths[opened])
    without = raw_gguf.gguf(
        [
            raw_gguf.entry("split.no", raw_gguf.U16, odd),
            raw_gguf.entry("split.count", raw_gguf.U16, 3),
        ]
    )
    contents = [part(i, 3, names[i]) for i in range(3)]
    contents[odd] = without
    with pytest.raises(sd.GgufError, match=r"an unknown number of tensors"):
        _core.GgufFile(parts(*contents)[opened])


@pytest.mark.parametrize(("key", "value"), [("split.no", 3), ("split.count", 70000)])
def test_numbers_out_of_range(parts: Parts, key: str, value: int) -> None:
    values = {"split.no": 0, "split.count": 3, "split.tensors.count": 3, key: value}
    entries = [raw_gguf.entry(name, raw_gguf.U32, one) for name, one in values.items()]
    paths = parts(raw_gguf.gguf(entries), part(1, 3, "ab"), part(2, 3, "c"))
    with pytest.raises(sd.GgufError, match=key):
        _core.GgufFile(paths[0])


@pytest.mark.parametrize("count", [0, 1])  # 0: what gguf-split --merge leaves
def test_a_model_in_one_part_needs_no_name(tmp_path: Path, count: int) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(part(0, count, "a", total=1))
    assert _core.GgufFile(path).paths == [str(path)]


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("total", [0, 1, 3])
def test_a_model_in_one_part_has_all_its_tensors(tmp_path: Path, count: int, total: int) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(part(0, count, "ab", total=total))
    with pytest.raises(
        sd.GgufError, match=rf"it has 2 tensors, but key 'split.tensors.count' says {total}"
    ):
        _core.GgufFile(path)


@pytest.mark.parametrize("count", [0, 1])
def test_the_only_part_is_the_first(tmp_path: Path, count: int) -> None:
    path = tmp_path / "whole.gguf"
    path.write_bytes(part(1, count, "a", total=1))
    with pytest.raises(sd.GgufError, match=r"'split.no' is u16 1, but an integer from 0 to 0"):
        _core.GgufFile(path)


def test_what_the_gguf_package_splits(tmp_path: Path) -> None:
    """An independent writer of the format."""
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama", split_max_tensors=2)
    for name in "abcde":
        writer.add_tensor(name, VALUES[:8].reshape(2, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = _core.GgufFile(tmp_path / name_of(3))
    assert len(file.paths) == 3
    assert sorted(one.name for one in file.tensors) == list("abcde")
    assert file.metadata["general.architecture"] == "llama"


# --- Writing ---


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Ten tensors of 4 KB and one of 20 KB, aligned to 64."""
    entries = (*raw_gguf.TOY_ENTRIES, raw_gguf.entry("general.alignment", raw_gguf.U32, 64))
    names = [f"{i}.weight" for i in range(11)]
    sizes = [(32, 32)] * 10 + [(160, 32)]
    directory, offset = [], 0
    for name, (rows, cols) in zip(names, sizes, strict=True):
        directory.append(raw_gguf.tensor(name, [cols, rows], 0, offset))
        offset += rows * cols * 4
    data = np.random.default_rng(1).normal(0, 1, offset // 4).astype(np.float32)
    path = tmp_path / "in" / "toy.gguf"
    path.parent.mkdir()
    path.write_bytes(raw_gguf.gguf(entries, directory, data.tobytes(), alignment=64))
    return path


def test_splitting_keeps_sizes_and_contents(whole: Path, tmp_path: Path) -> None:
    result = sd.quantize(whole, tmp_path / "toy.gguf", "f32", split_size="10K")
    names = sorted(one.name for one in tmp_path.glob("*.gguf"))
    assert names == [name_of(i + 1, len(names)) for i in range(len(names))]
    assert [one.name for one in result.paths] == names
    assert result.path == result.paths[0]
    sizes = [one.stat().st_size for one in result.paths]
    assert result.bytes_after == sum(sizes)
    assert all(size <= 10_000 for size in sizes[:-1])
    assert min(sizes[:-1]) > 8000  # filled as far as possible
    assert sizes[-1] > 20_000  # one tensor that is larger
    for i, path in enumerate(result.paths):
        fields = gguf.GGUFReader(path).fields
        keys = ("split.no", "split.count", "split.tensors.count")
        assert [fields[key].contents() for key in keys] == [i, len(names), 11]
        assert ("tokens" in fields) == (i == 0)
    before, after = _core.GgufFile(whole), _core.GgufFile(result.paths[-1])
    assert [one.name for one in after.tensors] == [one.name for one in before.tensors]
    for one in before.tensors:
        assert np.array_equal(after.dequantize(one.name), before.dequantize(one.name))


def test_split_input_becomes_one_file_again(whole: Path, tmp_path: Path) -> None:
    parts = sd.quantize(whole, tmp_path / "parts.gguf", "f32", split_size=9000).paths
    assert len(parts) > 3
    out = tmp_path / "out.gguf"
    result = sd.quantize(parts[2], out, "q8_0")
    direct = tmp_path / "direct.gguf"
    sd.quantize(whole, direct, "q8_0")
    assert out.read_bytes() == direct.read_bytes()
    assert result.bytes_before == sum(one.stat().st_size for one in parts)
    assert not any(key.startswith("split.") for key in _core.GgufFile(out).metadata)
    again = sd.quantize(parts[0], tmp_path / "again.gguf", "f32", split_size=9000)
    assert [one.read_bytes() for one in again.paths] == [one.read_bytes() for one in parts]


def test_enough_room_gives_one_file_of_the_name_asked(whole: Path, tmp_path: Path) -> None:
    result = sd.quantize(whole, tmp_path / "toy.gguf", "f32", split_size="1G")
    assert [one.name for one in result.paths] == ["toy.gguf"]
    assert not any(key.startswith("split.") for key in _core.GgufFile(result.path).metadata)


def test_a_failure_leaves_no_part(tmp_path: Path) -> None:
    """Also where parts before the bad one are complete."""
    values = np.ones((64, 32), np.float32)
    values[60, 3] = np.nan
    directory = [raw_gguf.tensor(f"{i}.weight", [32, 16], 0, 2048 * i) for i in range(4)]
    path = tmp_path / "in.gguf"
    path.write_bytes(raw_gguf.gguf((), directory, values.tobytes()))
    with pytest.raises(sd.GgufError, match=r"'3.weight': value 3 of row 12 is nan"):
        sd.quantize(path, tmp_path / "out.gguf", "f16", split_size=1500)
    assert [one.name for one in tmp_path.iterdir()] == ["in.gguf"]


def test_parts_that_cannot_be_named_take_the_others_along(whole: Path, tmp_path: Path) -> None:
    count = len(sd.quantize(whole, tmp_path / "a.gguf", "f32", split_size="10K").paths)
    blocked = tmp_path / f"b-{count:05}-of-{count:05}.gguf"
    blocked.mkdir()
    with pytest.raises(sd.OutputError, match="it is a directory"):
        sd.quantize(whole, tmp_path / "b.gguf", "f32", split_size="10K")
    assert [one.name for one in tmp_path.glob("b*")] == [blocked.name]


def test_the_output_must_not_be_a_part_of_the_input(whole: Path, tmp_path: Path) -> None:
    parts = sd.quantize(whole, tmp_path / "toy.gguf", "f32", split_size="10K").paths
    with pytest.raises(ValueError, match="is the input file"):
        sd.quantize(parts[0], parts[1], "q8_0")
    with pytest.raises(ValueError, match="is the input file"):
        sd.quantize(parts[0], tmp_path / "toy.gguf", "f32", split_size="10K")


@pytest.mark.parametrize("size", ["", "G", "-1", "0", "2.5G", "many", 0])
def test_sizes_that_are_none(whole: Path, tmp_path: Path, size: str | int) -> None:
    with pytest.raises(ValueError, match=r"split size is .*expected a number of bytes"):
        sd.quantize(whole, tmp_path / "out.gguf", "f32", split_size=size)


def test_sizes() -> None:
    from specdec_native.quantization import parse_size

    assert [parse_size(one) for one in (None, 7, "7", "2G", "500m", "3kb", "1T")] == [
        0, 7, 7, 2 * 10**9, 500 * 10**6, 3000, 10**12,
    ]  # fmt: skip


# --- Everything that takes a file ---


def test_everything_runs_on_parts(tiny_model: Path, tmp_path: Path) -> None:
    parts = sd.quantize(tiny_model, tmp_path / "m.gguf", "f32", split_size="200K").paths
    assert len(parts) > 2
    with sd.Generator(tiny_model, draft=None, progress=False) as generator:
        expected = generator.generate("the cat", max_tokens=20, temperature=0).tokens
    with sd.Generator(parts[1], draft=sd.DraftModel(parts[-1]), progress=False) as generator:
        assert generator.generate("the cat", max_tokens=20, temperature=0).tokens == expected
    assert sd.Tokenizer(parts[-1]).encode("the cat") == sd.Tokenizer(tiny_model).encode("the cat")
    about, plain = sd.inspect(parts[2]), sd.inspect(tiny_model)
    assert about["files"] == len(parts)
    for key in ("architecture", "parameters", "layers", "tensor_types", "memory", "supported"):
        assert about[key] == plain[key], key
