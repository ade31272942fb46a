"""What is closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

__all__ = ["Closing"]

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """A base for classes with a `close` method, which may be called again."""

    @abstractmethod
    def close(self) -> None:
        """Frees what the object holds."""

    def __enter__(self: _Self) -> _Self:
        """Returns itself; it is closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()
