"""``specdec pull``."""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_native import models
from specdec_native.cli.common import note, print_json, reported_errors
from specdec_native.cli.options import JsonOption

__all__ = ["pull"]

_KNOWN = "; ".join(f"{one.name} ({one.about})" for one in models.KNOWN_MODELS.values())


def pull(
    name: Annotated[
        str,
        typer.Argument(
            help="A known model, or OWNER/REPO[:FILE] on the Hugging Face hub (FILE: of a split "
            f"model any part). Known: {_KNOWN}.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Fetches a model, checks it, and keeps it in the user's cache folder."""
    with reported_errors():
        path = models.pull(name)
        files = models.parts_of(path)
        if as_json:
            size = sum(one.stat().st_size for one in files)
            print_json(
                {"name": name, "path": str(path), "files": list(map(str, files)), "size": size}
            )
            return
        known = models.KNOWN_MODELS.get(name)
        if known is not None:
            note(f"{known.about}; licence {known.licence}", dim=True)
        if len(files) > 1:
            note(
                f"all {len(files)} parts of the model are here; any of them may be named", dim=True
            )
        print(path)
