"""Progress of slow work: a bar on the terminal, a callback, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["Progress", "ProgressOption", "open_progress"]

Progress = Callable[[float, str], None]
"""Called with the fraction done, 0 to 1, and what is being done."""

ProgressOption = bool | Progress | None
"""None: a bar if stderr is a terminal; True: always; False: never; or a callback."""

_LINE_STEP = 0.25  # where there is no terminal: a line for each quarter


def open_progress(option: ProgressOption) -> AbstractContextManager[Progress]:
    """Opens a progress display on stderr; nothing is ever written to stdout.

    Several pieces of work may follow each other: a new text starts a new bar in the same place.
    While the fraction is 0 the bar only shows that something is going on.

    Args:
        option: None: a bar if stderr is a terminal. True: a bar, or lines where stderr is no
            terminal. False: nothing. A callback: that callback.

    Returns:
        A context manager that gives the function to report to, and clears the bar at its end.

    Raises:
        TypeError: `option` is something else.
    """
    if option is None:
        return _bar() if _on_terminal() else _silence()
    if isinstance(option, bool):
        if not option:
            return _silence()
        return _bar() if _on_terminal() else _lines()
    if callable(option):
        return _passed_through(option)
    raise TypeError(f"progress is {option!r}; give None, True, False or a callback(fraction, text)")


def _on_terminal() -> bool:
    # Under pythonw and in some services there is no stderr at all.
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def _silence() -> Iterator[Progress]:
    yield lambda fraction, text: None


@contextmanager
def _passed_through(callback: Progress) -> Iterator[Progress]:
    yield callback


@contextmanager
def _lines() -> Iterator[Progress]:
    """For logs: a line per text and quarter, without control characters."""
    last = ("", -1)

    def report(fraction: float, text: str) -> None:
        nonlocal last
        step = (text, int(_clamped(fraction) / _LINE_STEP))
        if step != last and sys.stderr is not None:
            last = step
            print(f"{text}: {step[1] * _LINE_STEP:.0%}", file=sys.stderr, flush=True)

    yield report


@contextmanager
def _bar() -> Iterator[Progress]:
    # Imported here: rich takes longer to load than the rest of this package.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        # Whoever prints meanwhile means stdout, or takes care of stderr himself.
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task("", total=None, visible=False)
    shown = ""

    def report(fraction: float, text: str) -> None:
        nonlocal shown
        if text != shown:
            shown = text
            bar.reset(task, description=escape(text), visible=True)
        fraction = _clamped(fraction)
        # Without a total the bar pulses.
        bar.update(task, total=1.0 if fraction > 0 else None, completed=fraction)

    with bar:
        yield report


def _clamped(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))
