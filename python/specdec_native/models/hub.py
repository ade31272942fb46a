"""Model files on the Hugging Face hub, through the optional package ``huggingface_hub``."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from specdec_native import _core
from specdec_native.errors import PullError
from specdec_native.models.downloads import TIMEOUT_VARIABLE, answer_timeout, run_watched

__all__ = ["HubFile", "HubSource", "fetch_hub_file", "find_hub_files", "parse_hub_name"]

_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
_FILE = re.compile(r"[\w][\w .+-]*(/[\w][\w .+-]*)*", re.ASCII)
# The client has its own ideas of waiting, so it runs as a watched child like pip does.
_DOWNLOAD = """
import sys
from huggingface_hub import hf_hub_download
repo, file, revision, folder = sys.argv[1:]
hf_hub_download(repo, file, revision=revision or None, local_dir=folder)
"""
# Plain HTTP: the other protocol fills the file in no order, which looks like a stall.
_DOWNLOAD_ENVIRONMENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
_STALL_FACTOR = 3


@dataclass(frozen=True)
class HubSource:
    """A file of a repository on the hub.

    Attributes:
        repo: ``OWNER/REPO``.
        file: Path of the file in it; None: its only GGUF file.
    """

    repo: str
    file: str | None = None

    def __str__(self) -> str:
        """As one writes it for ``specdec pull``."""
        return self.repo if self.file is None else f"{self.repo}:{self.file}"


@dataclass(frozen=True)
class HubFile:
    """What the hub says about a file.

    Attributes:
        source: Repository and file.
        revision: The commit that the other values belong to.
        size: Bytes.
        sha256: Checksum; None if the hub names none.
        is_only: Whether its model is the only one of its repository.
    """

    source: HubSource
    revision: str
    size: int
    sha256: str | None
    is_only: bool


def parse_hub_name(name: str) -> HubSource | None:
    """The repository and file that ``OWNER/REPO[:FILE]`` names; None for anything else."""
    repo, colon, file = name.partition(":")
    if not _REPO.fullmatch(repo) or ".." in repo:
        return None
    if not colon:
        return HubSource(repo)
    # The file's name becomes a path in the cache folder: it must not lead out of it.
    if not _FILE.fullmatch(file) or ".." in PurePosixPath(file).parts:
        return None
    return HubSource(repo, file)


def find_hub_files(source: HubSource) -> list[HubFile]:
    """Asks the hub about a model; this is also the quick test whether it answers at all.

    Returns:
        Its file; of a split model, of which any part may be named, all parts in order.

    Raises:
        PullError: The client is missing, the hub does not answer, or there is no such file, or not
            all parts of it.
    """
    info = _repo_info(source)
    files: dict[str, Any] = {
        one.rfilename: one
        for one in (info.siblings or [])
        if one.rfilename.lower().endswith(".gguf")
    }
    if not files:
        raise PullError(f"{source.repo} holds no .gguf file; look for a GGUF version of this model")
    known = sorted({_core.split_names(name)[0] for name in files})
    listing = ", ".join(known)
    if source.file is None and len(known) > 1:
        raise PullError(
            f"{source.repo} holds {len(known)} models; name the file of one, as in "
            f"'specdec pull {source.repo}:{known[0]}': {listing}"
        )
    name = known[0] if source.file is None else source.file
    parts = _core.split_names(name)
    missing = [part for part in parts if part not in files]
    if len(parts) > 1 and len(missing) < len(parts):
        _require_parts(source, parts, missing)
    elif missing:
        raise PullError(f"{source.repo} holds no file {name}; its .gguf files are {listing}")
    return [_hub_file(source.repo, part, files[part], info, len(known) == 1) for part in parts]


def _require_parts(source: HubSource, parts: list[str], missing: list[str]) -> None:
    if missing:
        raise PullError(
            f"{source.repo} holds only {len(parts) - len(missing)} of the {len(parts)} parts of "
            f"{parts[0]}; missing there: {', '.join(missing[:4])}"
            f"{', ...' if len(missing) > 4 else ''}; nothing was fetched"
        )


def _hub_file(repo: str, name: str, entry: Any, info: Any, is_only: bool) -> HubFile:
    if parse_hub_name(f"{repo}:{name}") is None:
        raise PullError(f"{repo} names a file {name!r}, which is no acceptable file name")
    return HubFile(
        source=HubSource(repo, name),
        revision=info.sha or "",
        size=entry.size or 0,
        sha256=getattr(entry.lfs, "sha256", None),
        is_only=is_only,
    )


def _repo_info(source: HubSource) -> Any:
    """The hub's description of a repository, or an error after a few seconds."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise PullError(
            f"to pull {source} from the Hugging Face hub, install its client: "
            "pip install 'specdec_native[hub]'"
        )
    timeout = answer_timeout()
    result: list[Any] = []

    def ask() -> None:
        try:
            from huggingface_hub import HfApi

            api = HfApi()
            result.append(api.model_info(source.repo, files_metadata=True, timeout=timeout))
        except Exception as error:
            result.append(error)

    # The client retries, and name look-ups know no time limit: a thread that can be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(1.5 * timeout)
    if not result:
        raise PullError(_no_answer(source, f"nothing came for {1.5 * timeout:g} seconds"))
    if isinstance(result[0], Exception):
        raise _explained(source, result[0]) from result[0]
    return result[0]


def _no_answer(source: HubSource, detail: str) -> str:
    return (
        f"no answer from the Hugging Face hub for {source} ({detail}); check the network, set "
        f"{TIMEOUT_VARIABLE} to wait longer, or get the file elsewhere and give its path"
    )


def _explained(source: HubSource, error: Exception) -> PullError:
    """The client's many exceptions as one, told apart by name: the classes move with versions."""
    names = {base.__name__ for base in type(error).__mro__}
    detail = " ".join(str(error).split())[:200] or type(error).__name__
    if "OfflineModeIsEnabled" in names:
        return PullError(
            f"cannot pull {source}: the Hugging Face client is in offline mode; unset "
            "HF_HUB_OFFLINE, or give the path of a file that is already here"
        )
    if "GatedRepoError" in names:
        return PullError(
            f"{source.repo} asks for its licence to be accepted; do so on its page on the hub, log "
            "in with 'hf auth login', and pull again"
        )
    if "RepositoryNotFoundError" in names:
        return PullError(
            f"the Hugging Face hub has no model {source.repo}, or it is private; check the "
            "name, or log in with 'hf auth login'"
        )
    if "HfHubHTTPError" in names:
        return PullError(f"the Hugging Face hub refused {source}: {detail}")
    return PullError(_no_answer(source, f"{type(error).__name__}: {detail}"))


def fetch_hub_file(wanted: HubFile, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Downloads a file.

    Args:
        wanted: From `find_hub_files`.
        folder: An empty folder for it.
        on_bytes: Called with the bytes that have come so far.

    Returns:
        The file.

    Raises:
        PullError: The download failed or stopped.
    """
    source = wanted.source
    file = source.file or ""
    command = [sys.executable, "-c", _DOWNLOAD, source.repo, file, wanted.revision, str(folder)]
    try:
        code, log = run_watched(
            command, _DOWNLOAD_ENVIRONMENT, folder, on_bytes, answer_timeout() * _STALL_FACTOR
        )
    except TimeoutError as error:
        raise PullError(_no_answer(source, str(error))) from None
    path = folder / file
    if code != 0 or not path.is_file():
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit status {code}"
        raise PullError(f"the download of {source} failed: {last[:300]}")
    return path
