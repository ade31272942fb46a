"""Models of the Hugging Face hub, whole and split, with a stand-in for its client."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from specdec_native import models
from specdec_native.cli import app
from specdec_native.models import PullError, hub, pull, resolve_model, store

CONTENT = bytes(range(256)) * 4096


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class FakeHub:
    """Answers in place of the hub's client, and brings files: what a test says there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: D107
        self.asked = 0
        self.files = {"m.gguf": CONTENT}
        self.sums: dict[str, str | None] = {}  # where the hub names another one
        self.fetched: list[str] = []
        self.stop_at = ""
        monkeypatch.setattr(hub, "_repo_info", self.info)
        monkeypatch.setattr(models, "fetch_hub_file", self.fetch)

    def info(self, source: models.HubSource) -> Any:
        self.asked += 1
        siblings = [
            SimpleNamespace(
                rfilename=name,
                size=len(data),
                lfs=SimpleNamespace(sha256=self.sums.get(name, hashlib.sha256(data).hexdigest())),
            )
            for name, data in self.files.items()
        ]
        return SimpleNamespace(siblings=siblings, sha="rev")

    def fetch(self, wanted: models.HubFile, folder: Path, on_bytes: Any) -> Path:
        name = wanted.source.file or ""
        on_bytes(17)
        if name == self.stop_at:
            raise KeyboardInterrupt
        self.fetched.append(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files[name])
        return path


@pytest.fixture
def fake_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    return FakeHub(monkeypatch)


PARTS = [f"q4/big-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.fixture
def split_hub(fake_hub: FakeHub) -> FakeHub:
    """A repository with one model, in three parts."""
    fake_hub.files = {name: CONTENT[i:] for i, name in enumerate(PARTS)}
    return fake_hub


@pytest.mark.parametrize("name", ["own/repo", *(f"own/repo:{part}" for part in PARTS)])
def test_hub_pull_of_a_split_model(split_hub: FakeHub, cache: Path, name: str) -> None:
    """R32: any part stands for the model; all parts come, and each is checked."""
    with pytest.raises(FileNotFoundError, match=f"specdec pull {name}"):
        resolve_model(name)
    calls: list[tuple[float, str]] = []
    path = pull(name, progress=lambda fraction, text: calls.append((fraction, text)))
    root = cache / "hub" / "own" / "repo"
    assert path == root / PARTS[0]
    assert split_hub.fetched == PARTS
    for part in PARTS:
        assert (root / part).read_bytes() == split_hub.files[part]
        assert any(text.startswith(f"downloading own/repo:{part} (1 MB)") for _, text in calls)
    for one in ("own/repo", *(f"own/repo:{part}" for part in PARTS)):
        assert resolve_model(one) == path
        assert pull(one) == path
    assert split_hub.asked == 1
    assert models.parts_of(path) == [root / part for part in PARTS]


def test_hub_interrupted_pull_of_a_split_model(split_hub: FakeHub, cache: Path) -> None:
    """What is complete stays; the model is not here before all of it is."""
    split_hub.stop_at = PARTS[1]
    with pytest.raises(KeyboardInterrupt):
        pull("own/repo")
    root = cache / "hub" / "own" / "repo"
    assert files_in(root) == [PARTS[0], f"{PARTS[0]}.json"]
    for name in ("own/repo", f"own/repo:{PARTS[0]}"):
        with pytest.raises(FileNotFoundError, match="specdec pull own/repo"):
            resolve_model(name)
    assert list(cache.glob(".pull-*")) == []
    split_hub.stop_at, split_hub.fetched = "", []
    assert pull("own/repo") == root / PARTS[0]
    assert split_hub.fetched == PARTS[1:]


@pytest.mark.parametrize("damage", ["gone", "byte", "short"])
def test_hub_damaged_part(split_hub: FakeHub, cache: Path, damage: str) -> None:
    path = pull("own/repo")
    part = models.parts_of(path)[1]
    split_hub.fetched = []
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(b"\xff" + CONTENT[2:] if damage == "byte" else CONTENT[2:])
    assert pull(f"own/repo:{PARTS[2]}") == path
    assert part.read_bytes() == CONTENT[1:]
    assert split_hub.fetched == [PARTS[1]]


@pytest.mark.parametrize("name", ["own/repo", *(f"own/repo:{part}" for part in PARTS)])
def test_hub_without_all_parts(split_hub: FakeHub, cache: Path, name: str) -> None:
    del split_hub.files[PARTS[1]]
    with pytest.raises(PullError, match=rf"only 2 of the 3 parts of {PARTS[0]}.*: {PARTS[1]}; not"):
        pull(name)
    assert not cache.exists()


def test_hub_wrong_part(split_hub: FakeHub, cache: Path) -> None:
    split_hub.sums[PARTS[2]] = "0" * 64
    with pytest.raises(PullError, match=rf"came for own/repo:{PARTS[2]} is not the right file"):
        pull("own/repo")
    with pytest.raises(FileNotFoundError):
        resolve_model("own/repo")


def test_hub_room_for_all_parts(split_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first is fetched; what is here already needs none."""
    free = {"bytes": 2 * len(CONTENT)}
    usage = lambda path: SimpleNamespace(free=free["bytes"])  # noqa: E731
    monkeypatch.setattr(store.shutil, "disk_usage", usage)
    with pytest.raises(PullError, match=r"not enough disk space.*3 MB are needed, 2 MB are free"):
        pull("own/repo")
    assert split_hub.fetched == []
    free["bytes"] = 3 * len(CONTENT)
    split_hub.stop_at = PARTS[2]
    with pytest.raises(KeyboardInterrupt):
        pull("own/repo")
    split_hub.stop_at, free["bytes"] = "", len(CONTENT)
    pull("own/repo")


def test_hub_of_several_models(split_hub: FakeHub) -> None:
    split_hub.files["small.gguf"] = CONTENT
    with pytest.raises(PullError, match=rf"holds 2 models; .*: {PARTS[0]}, small.gguf$"):
        pull("own/repo")
    pull(f"own/repo:{PARTS[1]}")
    pull("own/repo:small.gguf")
    with pytest.raises(FileNotFoundError, match=r"several .*: big-00001-of-00003.gguf, small.gguf"):
        resolve_model("own/repo")
    with pytest.raises(
        PullError, match=r"holds no file big.gguf; its .gguf files are q4/big-00001"
    ):
        pull("own/repo:big.gguf")


def test_pull_command_names_all_parts(split_hub: FakeHub) -> None:
    done = CliRunner().invoke(app, ["pull", "own/repo", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [Path(one).name for one in result["files"]] == [Path(one).name for one in PARTS]
    assert result["path"] == result["files"][0]
    assert result["size"] == sum(map(len, split_hub.files.values()))


@pytest.mark.parametrize("name", ["own/repo", "own/repo:m.gguf"])
def test_hub_pull_and_resolve(fake_hub: FakeHub, cache: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"specdec pull {name}"):
        resolve_model(name)
    path = pull(name)
    assert path == cache / "hub" / "own" / "repo" / "m.gguf"
    assert resolve_model("own/repo") == resolve_model("own/repo:m.gguf") == path
    assert pull(name) == path
    assert fake_hub.asked == 1  # what is here and intact needs no network


def test_hub_file_without_a_checksum(fake_hub: FakeHub) -> None:
    fake_hub.sums["m.gguf"] = None
    path = pull("own/repo")
    path.write_bytes(b"\xff" + CONTENT[1:])
    assert pull("own/repo").read_bytes() == CONTENT
    assert fake_hub.asked == 2


def test_hub_wrong_file(fake_hub: FakeHub, cache: Path) -> None:
    fake_hub.sums["m.gguf"] = "0" * 64
    with pytest.raises(PullError, match="not the right file"):
        pull("own/repo")
    assert files_in(cache) == []


def test_hub_of_several_files_is_asked_again(fake_hub: FakeHub) -> None:
    fake_hub.files["n.gguf"] = CONTENT
    pull("own/repo:m.gguf")
    with pytest.raises(PullError, match="holds 2"):
        pull("own/repo")


def test_hub_client_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PullError, match=r"pip install 'specdec_native\[hub\]'"):
        pull("own/repo")


@pytest.mark.parametrize("name", ["own/repo:../x.gguf", "own/repo:/x.gguf", "../x:y", "own/..:x"])
def test_hub_name_cannot_leave_the_cache(cache: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError):
        pull(name)
    with pytest.raises(FileNotFoundError):
        resolve_model(name)
