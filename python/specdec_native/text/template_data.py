"""What a chat template gets to see of messages and variables: plain data, as `transformers` has it.

Objects would bring methods along that no sandbox knows to be harmless, so that everything is
rebuilt of strings, numbers, lists and dictionaries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdec_native.errors import TemplateError

__all__ = ["plain_data", "plain_messages"]

# Names under which the reasoning of an earlier answer comes; the first is what templates read.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain_data(value: Any) -> Any:
    """A copy of a value out of plain data; what is none becomes the name of its type."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, np.generic):
        return plain_data(value.item())
    # Subclasses, such as enumerations, without what they add.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain_data(key): plain_data(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain_data, value))
    if isinstance(value, list):
        return list(map(plain_data, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain_data(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)):
        return plain_data(value.model_dump())
    return f"<{type(value).__name__}>"


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as templates expect them.

    Keys without a value are left out, since many a template would print ``None``; reasoning goes by
    all its names.

    Raises:
        TemplateError: They are no list of mappings with a role.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError(
            f"messages must be a list of mappings with 'role' and 'content', not "
            f"{type(messages).__name__}"
        )
    return [_plain_message(index, message) for index, message in enumerate(messages)]


def _plain_message(index: int, message: Any) -> dict[str, Any]:
    plain = plain_data(message)
    if not isinstance(plain, dict):
        raise TemplateError(
            f"messages[{index}] must be a mapping with 'role' and 'content', not "
            f"{type(message).__name__}"
        )
    role = plain.get("role")
    if not isinstance(role, str):
        raise TemplateError(f"messages[{index}]['role'] must be a string, but is {role!r}")
    given = {key: value for key, value in plain.items() if value is not None}
    reasoning = next((given[name] for name in _REASONING if name in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}
