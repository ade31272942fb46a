"""Chat templates: from messages to text, and to token ids.

Two dangers are dealt with here. The template is code from a stranger; it runs in a sandbox with
limits (`specdec_native.text.template_sandbox`). And the messages are text from strangers; no
part of them may turn into a control token, or a user could end their own turn and speak as the
system.

For the second, each control token has a character without which it cannot be written, such as the
bar in ``<|im_end|>``. Those characters of the messages are replaced by unused symbols before the
template runs, one for one, and put back afterwards. The marks live in the text itself, so they
survive whatever a template does with it: trimming, joining, slicing, replacing, JSON. Where
a mark stands, no control token is recognised; and any control token made in full or in part of
message text contains one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2

from specdec_native.errors import TemplateError
from specdec_native.text.template_data import plain_data, plain_messages
from specdec_native.text.template_limits import LimitExceeded, TemplateRefusal, to_text
from specdec_native.text.template_sandbox import (
    BUDGET,
    Budget,
    TemplateEnvironment,
    raise_exception,
)
from specdec_native.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "encode_chat"]

_NO_TEMPLATE = (
    "the model has no chat template (tokenizer.chat_template is missing); pass one (--template "
    "FILE on the command line, chat_template= in Python), or use generate() with a prompt you "
    "write yourself"
)
# The longest templates in use have some 30 KB; compiling takes time that no budget sees.
_MAX_SOURCE = 128 * 1024
# What stands for a character of a message: symbols of SignWriting, since they are printable (so
# that the text of a list shows them as they are) and no letters; private ones if all are taken.
_MARKS = (*range(0x1D800, 0x1DA00), *range(0xF0000, 0xFFFFE))
# Characters that best break control tokens, since templates rarely look for them in messages.
_PREFERRED = "|\uff5c<[>]{}()"
# Without a tokenizer the control tokens are unknown; nearly all contain one of these.
_DEFAULT_BREAKERS = frozenset("|\uff5c<[")
_NOW: ContextVar[datetime | None] = ContextVar("specdec_native_template_now", default=None)


class ChatTemplate:
    """A compiled chat template. It may be used by several threads at once."""

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        control_tokens: Iterable[str] | None = None,
        time_limit: float = 2.0,
        size_limit: int = 1_000_000,
        other_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """Compiles a template.

        Args:
            source: The template in Jinja's language, as models carry it.
            bos_token: Text of the BOS token, for templates that write it.
            eos_token: Text of the EOS token, for templates that write it.
            control_tokens: Texts of the model's control tokens, which messages must not write.
                None: whatever contains a bar or opens with ``<`` or ``[``.
            time_limit: Seconds that compiling, and each rendering, may take.
            size_limit: Characters that a rendering may have.
            other_tokens: More such texts by the name of their variable, such as ``pad_token``.

        Raises:
            TemplateError: There is no template, or it is not valid.
        """
        if not source:
            raise TemplateError(_NO_TEMPLATE)
        if len(source) > _MAX_SOURCE:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than the {_MAX_SOURCE} "
                "allowed; pass a shorter one"
            )
        self.source = source
        self._time_limit = time_limit
        self._size_limit = size_limit
        texts = {"bos_token": bos_token, "eos_token": eos_token, **(other_tokens or {})}
        self._variables = {name: text for name, text in texts.items() if text is not None}
        self._breakers = (
            _DEFAULT_BREAKERS if control_tokens is None else _breaking_characters(control_tokens)
        )
        environment = TemplateEnvironment()
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template: jinja2.Template = self._guarded(lambda: environment.from_string(source))

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Tokenizer, source: str | None = None, *, with_tools: bool = False
    ) -> ChatTemplate:
        """Compiles a template for a model.

        Args:
            tokenizer: The model's.
            source: A template, or the name of one of the model's. None: the model's default.
            with_tools: Whether tools are to be offered, for which some models have a template of
                its own, ``tool_use``.

        Raises:
            TemplateError: The model has no template, or it is not valid.
        """
        vocabulary = tokenizer.vocabulary
        ids = {
            "bos_token": vocabulary.bos_id,
            "eos_token": vocabulary.eos_id,
            "unk_token": vocabulary.unknown_id,
            "pad_token": vocabulary.padding_id,
        }
        texts = {name: vocabulary.tokens[one] for name, one in ids.items() if one is not None}
        return cls(
            _chosen(vocabulary.chat_templates, source, with_tools),
            texts.pop("bos_token", None),
            texts.pop("eos_token", None),
            control_tokens=tokenizer.control_texts(),
            other_tokens=texts,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Returns the text of a conversation.

        Careful: where the text of a message spells a control token, this text spells it too. For
        token ids use `encode_chat`.

        Args:
            messages: Mappings with ``role`` and ``content``.
            add_generation_prompt: Whether to open the assistant's turn at the end.
            continue_final_message: Whether the text ends with the last message's, without what
                would close it, so that the model goes on with it. No other turn is opened then.
            **variables: More variables for the template, such as ``tools``.

        Raises:
            TemplateError: The template fails, refuses the messages, or exceeds its limits.
        """
        given = {"messages": plain_messages(messages), **plain_data(variables)}
        end = _End(given) if continue_final_message else None
        text = self._text(given, add_generation_prompt and end is None)
        return text if end is None else "".join(piece for piece, _ in end.cut([(text, True)]))

    def render_segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> list[tuple[str, bool]]:
        """Returns the text of a conversation in segments: (text, is_template).

        The joined segments are the text. A control token may be recognised only within segments
        whose ``is_template`` is True. The other segments hold the characters that came from
        messages or variables and could be part of a control token; harmless characters of messages
        are not told apart from the template's.

        Args:
            messages: As for `render`.
            add_generation_prompt: As for `render`.
            continue_final_message: As for `render`.
            **variables: As for `render`.

        Raises:
            TemplateError: As for `render`.
        """
        given = {"messages": plain_messages(messages), **plain_data(variables)}
        marks = _Marks(self._breakers, [self.source, *_strings(given)])
        end = _End(given, marks.characters) if continue_final_message else None
        opens = add_generation_prompt and end is None
        now = _NOW.set(datetime.now())
        try:
            marked = {name: marks.mark(value) for name, value in given.items()}
            segments = marks.split(self._text(marked, opens))
            if len(segments) > 1:
                self._warn_if_different(segments, given, opens)
        finally:
            _NOW.reset(now)
        return segments if end is None else end.cut(segments)

    def _warn_if_different(
        self, segments: list[tuple[str, bool]], given: Mapping[str, Any], opens: bool
    ) -> None:
        """Warns if the marks made the template take another course than it would have."""
        if "".join(text for text, _ in segments) != self._text(given, opens):
            warnings.warn(
                "the chat template looks for control-token characters in the messages; they are "
                "hidden from it, so that messages cannot write control tokens, and its text "
                "differs from what it would be",
                stacklevel=4,
            )

    def _text(self, given: Mapping[str, Any], opens: bool) -> str:
        """Renders the messages and variables."""
        variables = {"tools": None, "documents": None, **given, "add_generation_prompt": opens}
        text: str = self._guarded(lambda: self._render(variables))
        return text

    def _render(self, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate({**self._variables, **variables}):
            size += len(piece)
            if size > self._size_limit:
                raise LimitExceeded(f"its text is longer than {self._size_limit} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _guarded(self, work: Callable[[], Any]) -> Any:
        """Runs work of the template under the limits; every failure is a `TemplateError`."""
        token = BUDGET.set(Budget(self._time_limit, self._size_limit))
        try:
            return work()
        except TemplateRefusal as error:
            raise TemplateError(f"the chat template refuses the messages: {error}") from error
        except LimitExceeded as error:
            raise TemplateError(
                f"the chat template was stopped: {error}. Pass another template, or shorter "
                "messages."
            ) from error
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is not valid, line {error.lineno}: {error}; pass another one "
                "(chat_template=, or --template FILE)"
            ) from error
        except RecursionError as error:
            raise TemplateError(
                "the chat template is nested too deeply, or calls itself"
            ) from error
        except Exception as error:
            raise TemplateError(
                f"the chat template failed: {type(error).__name__}: {str(error)[:500]}"
            ) from error
        finally:
            BUDGET.reset(token)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,
    *,
    continue_final_message: bool = False,
    **variables: Any,
) -> list[int]:
    """Turns a conversation into token ids.

    Only the template's own text gives control tokens. A model that wants a BOS gets exactly one,
    whether the template writes it or not.

    Args:
        tokenizer: The model's tokeniser.
        template: A template made for that tokeniser (`ChatTemplate.from_tokenizer`).
        messages: Mappings with ``role`` and ``content``.
        add_generation_prompt: Whether to open the assistant's turn at the end.
        continue_final_message: Whether to end within the last message; see `ChatTemplate.render`.
        **variables: More variables for the template, such as ``tools``.

    Raises:
        TemplateError: The template fails, refuses the messages, or exceeds its limits.
        TokenizerError: The text is not valid Unicode.
    """
    segments = template.render_segments(
        messages, add_generation_prompt, continue_final_message=continue_final_message, **variables
    )
    # No EOS: the conversation goes on.
    ids = tokenizer.encode_segments(segments, add_special=False)
    bos = tokenizer.bos_id
    if bos is not None and tokenizer.vocabulary.add_bos:
        first = next((index for index, token in enumerate(ids) if token != bos), len(ids))
        ids[:first] = [bos]
    return ids


class _Marks:
    """Unused symbols that stand for the breaking characters of messages."""

    def __init__(self, breakers: Iterable[str], texts: Iterable[str]) -> None:
        """Chooses characters that occur in none of the texts."""
        used: set[str] = set().union(*texts)
        free = (chr(code) for code in _MARKS if chr(code) not in used)
        self._to_mark = {ord(one): next(free) for one in sorted(breakers)}
        self._to_text = {ord(mark): chr(code) for code, mark in self._to_mark.items()}
        self.characters = "".join(self._to_mark.values())
        self._pattern = re.compile(f"([{self.characters}]+)" if self._to_mark else r"(?!)()")

    def mark(self, value: Any) -> Any:
        """A copy of a value in which every string is marked."""
        if isinstance(value, str):
            return value.translate(self._to_mark)
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.mark(inner) for inner in value)
        return value

    def split(self, text: str) -> list[tuple[str, bool]]:
        """The text with the characters put back, cut where marks begin and end."""
        pieces = self._pattern.split(text)
        return [
            (piece.translate(self._to_text), index % 2 == 0)
            for index, piece in enumerate(pieces)
            if piece
        ]


def _breaking_characters(control_tokens: Iterable[str]) -> frozenset[str]:
    """A set of characters of which every control token contains one."""
    chosen: set[str] = set()

    def cost(character: str) -> tuple[bool, bool, bool, int]:
        rank = _PREFERRED.find(character)
        return (
            character.isspace(),  # Templates trim.
            character.isalnum(),  # Templates compare words.
            character in "\"'\\_-",
            rank if rank >= 0 else len(_PREFERRED),
        )

    # Tokens with few characters to choose from come first.
    for token in sorted(set(control_tokens), key=lambda one: (len(set(one)), one)):
        if token and chosen.isdisjoint(token):
            chosen.add(min(sorted(set(token)), key=cost))
    return frozenset(chosen)


class _End:
    """The end of the last message, found again in what the template makes of it."""

    def __init__(self, given: dict[str, Any], taken: str = "") -> None:
        """Marks the end of the last message's text.

        Args:
            given: Variables of the template; the last of its messages is changed. The blank after
                the mark tells whether the template trims messages, as in `transformers`.
            taken: Characters that mean something else.

        Raises:
            TemplateError: There is no text to go on with.
        """
        used: set[str] = set().union(taken, *_strings(given))
        self._mark = next(chr(code) for code in _MARKS if chr(code) not in used)
        last: dict[str, Any] = given["messages"][-1] if given["messages"] else {}
        content = last.get("content")
        parts = content if isinstance(content, (list, tuple)) else ()
        block = next((one for one in reversed(parts) if _is_text(one)), None)
        if isinstance(content, str):
            last["content"] = content + self._mark + " "
        elif block is not None:
            block["text"] += self._mark + " "
        else:
            raise TemplateError(
                "continue_final_message needs a last message whose content is a text, but it is "
                f"{content!r}"
            )

    def cut(self, segments: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """The segments up to the end of the last message.

        Raises:
            TemplateError: The template left the message out.
        """
        for index in reversed(range(len(segments))):
            text, is_template = segments[index]
            place = text.rfind(self._mark)
            if place < 0:
                continue
            kept = text[:place]
            if not text.startswith(" ", place + 1):
                kept = kept.rstrip()  # The template trims messages.
            return [*segments[:index], (kept, is_template)] if kept else segments[:index]
        raise TemplateError("the chat template leaves out the last message, which was to go on")


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def _chosen(templates: Mapping[str, str], source: str | None, with_tools: bool) -> str | None:
    """The template to compile, chosen as `transformers` chooses."""
    if source is not None:
        if source in templates or "{" in source:
            return templates.get(source, source)
        names = ", ".join(map(repr, sorted(templates))) or "none"
        raise TemplateError(
            f"{source[:80]!r} is no template, and no name of one in the model's file, which has "
            f"{names}"
        )
    if with_tools and "tool_use" in templates:
        return templates["tool_use"]
    if templates and "default" not in templates:
        names = ", ".join(map(repr, sorted(templates)))
        raise TemplateError(
            f"the model has several chat templates and none is the default; name one of {names} "
            "(--template NAME on the command line, chat_template= in Python)"
        )
    return templates.get("default")


def _strings(value: Any) -> Iterator[str]:
    """Every string within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner)


def _strftime_now(pattern: str) -> str:
    """``strftime_now`` of chat templates: the date, in a pattern."""
    pattern = to_text(pattern)
    # The C library would pad to any width that the pattern asks for.
    if len(pattern) > 200 or re.search(r"%[^a-zA-Z%]*[0-9]", pattern):
        raise LimitExceeded("it formats the date with a width, or a pattern above 200 characters")
    return (_NOW.get() or datetime.now()).strftime(pattern)
