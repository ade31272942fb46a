"""What all commands share: errors as one line, output that survives anything, the figures."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer

from specdec_native.errors import Error
from specdec_native.stats import Stats

__all__ = [
    "DEBUG_VARIABLE",
    "describe",
    "figures",
    "note",
    "print_error",
    "print_json",
    "readable_size",
    "reported_errors",
    "stats_dict",
    "usage_errors",
    "write_text",
]

DEBUG_VARIABLE = "SPECDEC_DEBUG"
_INTERRUPTED = 130  # 128 + SIGINT, as shells expect

# Line ends and tabs are text; the other control characters could reprogram a terminal.
_UNSAFE = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)), "�")


@contextmanager
def reported_errors() -> Iterator[None]:
    """Turns an exception into one line on stderr and exit code 1."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has had enough, as `head` does; that is no failure. The
        # interpreter flushes once more at its end and must not find the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)  # below the terminal's ^C, or half a line of text
        raise typer.Exit(_INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        # Bad usage has exit code 2 and a message of its own, which typer prints.
        if isinstance(error, typer.BadParameter):
            raise
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            raise
        print_error(error)
        raise typer.Exit(1) from None


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns what the library says about a wrong option into bad usage: exit code 2."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(_message(error)) from None


def print_error(error: Exception) -> None:
    """Prints ``error: message`` in one line."""
    note(f"error: {describe(error)}")


def describe(error: Exception) -> str:
    """The message of an exception in one line; of an unexpected one, with its class."""
    text = " ".join(_message(error).split())
    expected = isinstance(error, (Error, ValueError, OSError, MemoryError))
    if expected and text:
        return text
    name = type(error).__name__
    return f"{name}: {text} (for the traceback, set {DEBUG_VARIABLE}=1)"


def _message(error: Exception) -> str:
    """The message; of what the system says of a file, the file and the reason, not the number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        name = error.filename
        return f"{os.fsdecode(name) if not isinstance(name, int) else name}: {error.strerror}"
    return str(error)


def note(text: str, dim: bool = False) -> None:
    """A line for the user, on stderr; dim where that is a terminal."""
    text = text.translate(_UNSAFE)
    if dim and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Prints one JSON object in one line, in ASCII: readable whatever the encoding is."""
    print(json.dumps(value, allow_nan=False), flush=True)


def write_text(text: str) -> None:
    """Writes a model's text to stdout at once; a terminal gets no control characters."""
    if text:
        sys.stdout.write(text.translate(_UNSAFE) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def stats_dict(stats: Stats | None) -> dict[str, Any]:
    """Statistics for JSON."""
    return {} if stats is None else asdict(stats)


def figures(stats: Stats | None) -> str:
    """The figures of an answer, in a short line."""
    if stats is None:
        return ""
    parts = [f"{stats.generated_tokens} tokens"]
    if stats.tokens_per_second:
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s")
    if stats.drafted:
        parts.append(f"{stats.accepted} of {stats.drafted} drafted tokens accepted")
    if stats.drafted and stats.speedup:
        parts.append(f"{stats.speedup:.2f} x plain decoding")
    return ", ".join(parts)


def readable_size(count: int) -> str:
    """Bytes for people, in decimal units as disks and downloads use them."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"
