"""Makes tests/golden/chat_templates/expected.json: what `transformers` makes of chat templates.

    pip install transformers jinja2
    python tools/make_chat_template_golden.py [DIR]

DIR holds templates (NAME.jinja) and cases.json: conversations, tools, documents, and settings (the
arguments of ``apply_chat_template``). Each template is rendered for each conversation with each
setting; a refusal is kept as null.

Of the templates in tests/golden/chat_templates, those of Qwen3 and SmolLM2 (Apache-2.0) and Phi-3
(MIT) are the published ones. The others are our own; they use what the templates of the families in
their names use.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "chat_templates"
NOW = datetime(2025, 3, 7, 8, 5, 9)


class FixedTime(datetime):
    """A clock that stands still, for ``strftime_now``."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        """The same moment every time."""
        return NOW


def main(folder: Path) -> None:
    """Renders everything and writes the results."""
    import jinja2
    import transformers
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = FixedTime
    cases = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
    results: dict[str, dict[str, str | None]] = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        found = results[path.stem] = {}
        for talk, messages in cases["conversations"].items():
            for name, setting in cases["settings"].items():
                found[f"{talk}, {name}"] = render(
                    chat_template_utils, source, messages, setting, cases
                )
    versions = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    whole = {"versions": versions, "now": NOW.isoformat(), "texts": results}
    text = json.dumps(whole, ensure_ascii=True, indent=0)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def render(
    utils: Any, source: str, messages: list[dict[str, Any]], setting: dict[str, Any], cases: Any
) -> str | None:
    """One text, or None where the template refuses or fails."""
    given = {**cases["variables"], **setting}
    for name in ("tools", "documents"):
        given[name] = cases[name] if given.get(name) else None
    try:
        texts, _ = utils.render_jinja_template(
            conversations=[utils._normalize_chat_messages(messages)],
            chat_template=source,
            **given,
        )
    except Exception as error:
        print(f"refused: {type(error).__name__}: {error}"[:120], file=sys.stderr)
        return None
    return texts[0]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
