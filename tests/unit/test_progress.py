"""The progress option: what is shown where."""

from __future__ import annotations

import io
import sys

import pytest

from specdec_native.progress import open_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_as_stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in the test itself: pytest puts its own stderr there after the fixtures have run."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def work(option: object) -> None:
    with open_progress(option) as shown:  # type: ignore[arg-type]
        for text in ("loading target [bold]a.gguf", "loading draft b.gguf"):
            for tenth in range(11):
                shown(tenth / 10, text)


@pytest.mark.parametrize("option", [None, False])
def test_silent_without_a_terminal(option: object, capfd: pytest.CaptureFixture[str]) -> None:
    work(option)
    assert capfd.readouterr() == ("", "")


def test_true_without_a_terminal_writes_lines(capfd: pytest.CaptureFixture[str]) -> None:
    work(True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "\x1b" not in err
    assert err.splitlines()[0] == "loading target [bold]a.gguf: 0%"
    assert err.splitlines()[-1] == "loading draft b.gguf: 100%"
    assert len(err.splitlines()) == 10


@pytest.mark.parametrize("option", [None, True])
def test_bar_on_a_terminal(
    option: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    terminal = terminal_as_stderr(monkeypatch)
    work(option)
    shown = terminal.getvalue()
    assert "loading target [bold]a.gguf" in shown  # the name as it is, not as markup
    assert "loading draft b.gguf" in shown
    assert shown.rstrip("\r").endswith("\x1b[2K")  # the last line is cleared again
    assert capfd.readouterr().out == ""


def test_false_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)
    work(False)
    assert terminal.getvalue() == ""


def test_callback_gets_everything() -> None:
    calls: list[tuple[float, str]] = []
    work(lambda fraction, text: calls.append((fraction, text)))
    assert len(calls) == 22
    assert calls[-1] == (1.0, "loading draft b.gguf")


def test_error_of_a_callback_comes_out() -> None:
    def fail(fraction: float, text: str) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        work(fail)


def test_bar_is_cleared_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_as_stderr(monkeypatch)

    def interrupted() -> None:
        with open_progress(True) as shown:
            shown(0.5, "half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert terminal.getvalue().rstrip("\r").endswith("\x1b[2K")


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    work(None)
    work(True)


def test_wrong_option() -> None:
    with pytest.raises(TypeError, match="progress is 'yes'"):
        open_progress("yes")  # type: ignore[arg-type]
