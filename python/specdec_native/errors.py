"""The exceptions this library raises.

Every one is an `Error`, and also the built-in exception a caller would expect, so that both
``except sd.Error`` and ``except ValueError`` work. A message says what was wrong, with the actual
values, and what to do next. The compiled module raises these same classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "BackendUnavailableError",
    "BusyError",
    "ContextFullError",
    "ConvertError",
    "DeviceError",
    "Error",
    "GgufError",
    "IncompatibleModelsError",
    "InternalError",
    "OutOfMemoryError",
    "OutputError",
    "PullError",
    "TemplateError",
    "TokenizerError",
]


class Error(Exception):
    """Base class of everything this library raises on purpose."""


class GgufError(Error, ValueError):
    """A model file is damaged, inconsistent, or of a kind that is not supported."""


class IncompatibleModelsError(Error, ValueError):
    """A draft model does not share the target's vocabulary; names the first differing token."""


class ContextFullError(Error, ValueError):
    """A prompt does not fit into the context."""


class BackendUnavailableError(Error, RuntimeError):
    """The asked-for device or instruction set is not built in or not present."""


class DeviceError(Error, RuntimeError):
    """A device failed while it was working."""


class OutOfMemoryError(Error, MemoryError):
    """Host or device memory is not enough."""


class BusyError(Error, RuntimeError):
    """The object is in use by another thread or an unfinished stream."""


class InternalError(Error, RuntimeError):
    """A broken invariant: a bug in this library, worth a report."""


class TokenizerError(Error, ValueError):
    """Text or token ids that the model's vocabulary cannot express."""


class TemplateError(Error, ValueError):
    """A chat template is missing, wrong, refuses the messages, or exceeds its limits."""


class ConvertError(Error, ValueError):
    """A checkpoint is damaged, incomplete, of an unknown kind, or does not fit its target."""


class OutputError(Error, OSError):
    """A file could not be written: no space, no permission, no such folder."""


class PullError(Error, OSError):
    """A model could not be fetched: no answer, not there, damaged, or nothing to fetch it with."""


def shortened(text: str, limit: int = 60) -> str:
    """A value for a message: of a stranger's long text only the beginning."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def naming_file(path: str) -> Iterator[None]:
    """Errors about what a GGUF file says begin with its path, as those of the engine do."""
    try:
        yield
    except GgufError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise GgufError(f"{path}: {error}") from None
