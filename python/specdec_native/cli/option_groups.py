"""Groups of options that several commands share, each a dataclass with one field per option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

__all__ = ["with_option_groups"]


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are option groups become the options of their fields.

    Args:
        command: A function for typer. A parameter annotated with a dataclass stands for the fields
            of that dataclass, and gets an instance of it.

    Returns:
        A function with one keyword for each option, which typer can read.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _options(kind)
        else:
            parameters.append(
                parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            )

    @functools.wraps(command)
    def spread(**values: Any) -> None:
        for name, kind in groups.items():
            chosen = {field.name: values.pop(field.name) for field in fields(kind)}
            values[name] = kind(**chosen)
        command(**values)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    """One keyword for each field of an option group."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
