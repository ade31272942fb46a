"""Chat templates give what `transformers` gives (tools/make_chat_template_golden.py)."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from specdec_native import chat
from specdec_native.chat import ChatTemplate
from specdec_native.errors import TemplateError

FOLDER = Path(__file__).parent.parent / "golden" / "chat_templates"
CASES = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
GOLDEN = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


class FixedTime(datetime):
    """The clock of the golden texts."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.fromisoformat(GOLDEN["now"])


def arguments(setting: dict[str, Any]) -> dict[str, Any]:
    given = dict(setting)
    for name in ("tools", "documents"):
        given[name] = CASES[name] if given.get(name) else None
    return given


@pytest.mark.parametrize("name", sorted(GOLDEN["texts"]))
def test_texts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "datetime", FixedTime)
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    template = ChatTemplate(source, *CASES["variables"].values(), control_tokens=["<|x|>"])
    for case, expected in GOLDEN["texts"][name].items():
        talk, setting = case.split(", ")
        messages = CASES["conversations"][talk]
        given = arguments(CASES["settings"][setting])
        if expected is None:
            with pytest.raises(TemplateError):
                template.render(messages, **given)
        else:
            assert template.render(messages, **given) == expected, case
            # The marks that keep messages apart from the template change no text.
            segments = template.render_segments(messages, **given)
            assert "".join(text for text, _ in segments) == expected, case


def test_there_are_texts() -> None:
    counts = [
        sum(text is not None for text in texts.values()) for texts in GOLDEN["texts"].values()
    ]
    assert len(counts) >= 9
    assert min(counts) >= 10
