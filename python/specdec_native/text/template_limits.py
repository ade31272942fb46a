"""What templates may do, and how large it may get. See `template_sandbox` for the idea."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

__all__ = ["FILTER_CHECKS", "LimitExceeded", "TemplateRefusal", "allowed_filters"]

# One value: items of all nested lists together, and characters of all its strings together.
MAX_ITEMS = 100_000
MAX_CHARACTERS = 4_000_000
# Bits of an integer: far more than any count or date, and cheap to multiply and to print.
MAX_BITS = 256
MAX_WIDTH = 1000
MAX_DEPTH = 100
# All values of a rendering together, as a multiple of the size of its output.
WORK_FACTOR = 64
LEAST_WORK = 250_000


class LimitExceeded(Exception):
    """A template went over its limits; the text completes "the template was stopped: ..."."""


class TemplateRefusal(Exception):
    """The template itself called ``raise_exception``."""


_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        re.findall(
            r"\w+",
            """
            capitalize casefold center count endswith expandtabs find format format_map index
            isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable
            isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix
            replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
            swapcase title upper zfill
            """,
        )
    ),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
}
_CLOSED_TYPES = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset)

# Not here: what is for web pages or people's eyes (urlencode, urlize, xmlattr, striptags, pprint,
# wordwrap, filesizeformat), and `random`, which would make a prompt differ from run to run.
_FILTERS = frozenset(
    re.findall(
        r"\w+",
        """
        abs attr batch capitalize center count d default dictsort e escape first float forceescape
        format groupby indent int items join last length list lower map max min reject rejectattr
        replace reverse round safe select selectattr slice sort string sum title tojson trim
        truncate unique upper wordcount
        """,
    )
)


def size_of(value: Any) -> int:
    """The size of a value: items and characters, nested ones each time they appear.

    Raises:
        LimitExceeded: It is too large, or nested too deeply.
    """
    if isinstance(value, str):
        return _bounded(len(value), MAX_CHARACTERS, "a text")
    if isinstance(value, int):
        return _bounded(value.bit_length(), MAX_BITS, "an integer")
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return 1
    items = characters = 0
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        items += 1
        if isinstance(one, str):
            characters += len(one)
        elif isinstance(one, Mapping):
            waiting.extend((inner, depth + 1) for pair in one.items() for inner in pair)
        elif isinstance(one, (list, tuple, set, frozenset)):
            waiting.extend((inner, depth + 1) for inner in one)
        if len(waiting) + items > MAX_ITEMS:
            raise LimitExceeded(f"it makes a list of more than {MAX_ITEMS} items")
        _bounded(characters, MAX_CHARACTERS, "a list of texts")
        _bounded(depth, MAX_DEPTH, "a nested list")
    return items + characters


def to_text(value: Any) -> str:
    """``str(value)``, for values whose text is bounded."""
    if isinstance(value, str):
        size_of(value)
        return value
    if isinstance(value, (bytes, bytearray)):
        raise SecurityError("bytes cannot be used as text")
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        # Each item may show at most ten characters per character (an escaped one).
        size_of(value)
    text = str(value)
    size_of(text)
    return text


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Refuses an operation whose result would be too large."""
    if operator == "*":
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                _bounded(len(many) * max(times, 0), MAX_CHARACTERS, "a repeated value")
                if not isinstance(many, str):
                    _bounded(len(many) * max(times, 0), MAX_ITEMS, "a repeated list")
    elif operator == "%" and isinstance(left, str):
        values = right if isinstance(right, tuple) else (right,)
        check_percent(left, values)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        _bounded(left.bit_length() * max(right, 0), 2 * MAX_BITS, "a power")


def check_percent(template: str, values: Iterable[Any]) -> None:
    """Refuses ``%`` formatting whose result could be too large."""
    bare = re.sub(r"\([^()]*\)", "", template)
    # A key with brackets in it would hide the width after it.
    if "%(" in bare or re.search(r"%[^%a-zA-Z]*(\*|[0-9]{4})", bare):
        raise LimitExceeded("it formats with a width that is computed or above 999")
    _check_fields(template, template.count("%"), values)


def check_format(template: str, values: Iterable[Any]) -> None:
    """Refuses ``str.format`` whose result could be too large."""
    for _, _, spec, _ in string.Formatter().parse(template):
        if spec and ("{" in spec or re.search("[0-9]{4}", spec)):
            raise LimitExceeded("it formats with a width that is computed or above 999")
    _check_fields(template, template.count("{"), values)


def _check_fields(template: str, fields: int, values: Iterable[Any]) -> None:
    """Bounds a formatted text: any field may show the longest value, padded to the full width."""
    longest = 0
    for value in values:
        parts = value.values() if isinstance(value, Mapping) else ()
        longest = max(longest, *(len(to_text(one)) for one in (value, *parts)))
    _bounded(len(template) + fields * (MAX_WIDTH + longest), 2 * MAX_CHARACTERS, "formatted text")


def check_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses a call of a string's method whose result would be too large."""
    text = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "")
    if isinstance(text, _CLOSED_TYPES) and not is_allowed_method(text, name):
        raise SecurityError(f"the method {name!r} of {type(text).__name__} is not available")
    if not isinstance(text, str):
        return
    if name in ("format", "format_map"):
        check_format(text, (*args, *kwargs.values()))
    elif name in ("center", "ljust", "rjust", "zfill") and args:
        _check_width(args[0])
    elif name == "expandtabs":
        width = args[0] if args else kwargs.get("tabsize", 8)
        _check_width(width)
        _bounded(len(text) + text.count("\t") * _whole(width), MAX_CHARACTERS, "a text with tabs")
    elif name == "replace":
        _check_replace(text, *args, **kwargs)
    elif name == "join" and args:
        _check_join(args[0], text)
    elif name in ("strip", "lstrip", "rstrip"):
        _check_trim(text, *args)
    elif name in ("rfind", "rindex", "rsplit", "rpartition") and args and isinstance(args[0], str):
        # Searching backwards takes the product of the lengths, at worst.
        _bounded(len(text) * len(args[0]), 100 * MAX_CHARACTERS, "a search")


def is_allowed_method(owner: Any, name: str) -> bool:
    """Whether a template may use a method of a value: by name for all built-in types."""
    for kind, names in _METHODS.items():
        if isinstance(owner, kind):
            return name in names
    # A class would give the same methods once more: `dict.update(messages[0], ...)`.
    return not isinstance(owner, (*_CLOSED_TYPES, type))


def allowed_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters of Jinja that templates may use, a few replaced by bounded ones."""
    chosen = {name: function for name, function in filters.items() if name in _FILTERS}
    chosen["tojson"] = _to_json
    chosen["string"] = to_text
    return chosen


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` has it: not escaped for HTML."""
    if isinstance(value, Undefined):
        raise TypeError("an undefined value has no JSON")
    size_of(value)
    if indent is not None:
        _bounded(_whole(indent), 16, "an indent")
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        # The symbols that stand for characters of messages (see `chat`) must stay what they are.
        text = re.sub(
            "[^\x00-\x7f\U0001d800-\U0001d9ff\U000f0000-\U000ffffd]",
            lambda found: json.dumps(found[0])[1:-1],
            text,
        )
    return text


def _check_width(width: Any = 80, *_: Any, **__: Any) -> None:
    _bounded(_whole(width), MAX_WIDTH, "a width")


def _check_center(value: Any, width: Any = 80) -> None:
    to_text(value)
    _check_width(width)


def _check_indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    size = len(width) if isinstance(width, str) else _whole(width)
    _bounded(size, MAX_WIDTH, "an indent")
    lines = to_text(value).count("\n") + 1
    _bounded(size * lines, MAX_CHARACTERS, "indented text")


def _check_replace(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    text, old, new = to_text(text), to_text(old), to_text(new)
    hits = text.count(old) if old else len(text) + 1
    _bounded(len(text) + hits * len(new), MAX_CHARACTERS, "replaced text")


def _check_join(values: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    # An iterator must not be used up here; its items are counted as they are made, and there are
    # no more of them than a list may have.
    count = len(values) if hasattr(values, "__len__") else MAX_ITEMS
    size = size_of(values) if isinstance(values, (list, tuple, dict)) else 0
    _bounded(size + count * len(to_text(separator)), MAX_CHARACTERS, "joined text")


def _check_trim(_: Any, characters: Any = None, *__: Any, **___: Any) -> None:
    # Each character of the text is looked for in all of these.
    if isinstance(characters, str):
        _bounded(len(characters), 100, "a set of characters to trim")


def _check_int(value: Any, *_: Any, **__: Any) -> None:
    # Converting digits takes quadratic time.
    if isinstance(value, str):
        _bounded(len(value), MAX_WIDTH, "a number in digits")


def _check_batch(_: Any, count: Any, *__: Any, **___: Any) -> None:
    _bounded(_whole(count), MAX_WIDTH, "a batch")


def _check_round(_: Any, precision: Any = 0, *__: Any, **___: Any) -> None:
    _bounded(abs(_whole(precision)), 50, "a precision")


def _check_format_filter(value: Any, *args: Any, **kwargs: Any) -> None:
    check_percent(to_text(value), (*args, *kwargs.values()))


def _check_sum(_: Any, __: Any = None, start: Any = 0) -> None:
    # Summing lists or texts takes quadratic time.
    if not isinstance(start, (int, float)):
        raise LimitExceeded("it sums something other than numbers")


FILTER_CHECKS: dict[str, Callable[..., None]] = {
    "batch": _check_batch,
    "center": _check_center,
    "format": _check_format_filter,
    "indent": _check_indent,
    "int": _check_int,
    "join": _check_join,
    "replace": _check_replace,
    "round": _check_round,
    "slice": _check_batch,
    "sum": _check_sum,
    "trim": _check_trim,
}


def _whole(value: Any) -> int:
    if not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, got {value!r}")
    return int(value)


def _bounded(size: int, limit: int, what: str) -> int:
    if size > limit:
        raise LimitExceeded(f"it makes {what} of size {size}, above the limit of {limit}")
    return size
