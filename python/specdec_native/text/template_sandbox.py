"""A Jinja environment for templates from outside, with limits on time and size.

A chat template comes with the model file, so it is code from a stranger. Jinja's immutable sandbox
keeps it away from Python; this module also keeps it from taking the machine. It needs no signal
and no thread to kill, so it works anywhere. Two rules hold together:

* Every value a template can make is bounded in size, and what could make a large one is asked
  beforehand: operators, filters, methods, slices, literals. So a single step is short.
* Every step counts its size against a budget and looks at the clock: each turn of a loop, each
  call, each filter, each piece of output.

To see every step, loops, ``~``, slices and literals are rewritten into calls of this environment
before Jinja compiles the template. Methods are allowed by name, filters by list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Sized, ValuesView
from contextvars import ContextVar
from typing import Any, NoReturn

from jinja2 import Undefined, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from specdec_native.text import template_limits as limits
from specdec_native.text.template_limits import LimitExceeded

__all__ = ["BUDGET", "Budget", "LimitExceeded", "TemplateEnvironment"]


class Budget:
    """What one rendering may still use."""

    def __init__(self, seconds: float, characters: int) -> None:
        """Starts the clock.

        Args:
            seconds: Time for all of it.
            characters: Size of the output; values in between may have a multiple of it in all.
        """
        self.seconds = seconds
        self.characters = characters
        self._deadline = time.monotonic() + seconds
        self._work_left = limits.WORK_FACTOR * max(characters, limits.LEAST_WORK)

    def spend(self, size: int) -> None:
        """Counts a step that made a value of a size.

        Raises:
            LimitExceeded: Time or work is used up.
        """
        self._work_left -= size + 1
        if self._work_left < 0:
            raise LimitExceeded("it builds too much text or too many values")
        if time.monotonic() > self._deadline:
            raise LimitExceeded(f"it takes longer than {self.seconds:g} seconds")


BUDGET: ContextVar[Budget] = ContextVar("specdec_native_template_budget")


class _QuietNamespace(Namespace):
    """A namespace that shows nothing of its content, which may refer to itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        """Takes what `dict` takes; one of the names may be ``self``."""
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no names with an underscore in front: {name!r}")


class _Dictionaries:
    """``dict`` of templates: makes dictionaries, and has nothing else of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """A new dictionary."""
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        """A dictionary with one value for all keys."""
        return dict.fromkeys(keys, value)


class _Ticking:
    """Goes through an iterable, counting every turn."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        budget = BUDGET.get()
        for value in self._values:
            budget.spend(0)
            yield value

    def __len__(self) -> int:
        # LoopContext asks, and falls back to counting where there is no length.
        if isinstance(self._values, Sized):
            return len(self._values)
        raise TypeError("no length")


class _GenerationTag(Extension):
    """``{% generation %}``: marks the assistant's text for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # What is set within is not set after it, as in `transformers`.
        return nodes.Scope(body, lineno=line)


class _CountingGenerator(CodeGenerator):
    """Compiles templates so that every piece of output is counted, in macros and blocks too."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Compiles a node; the clock runs here too."""
        BUDGET.get().spend(0)
        return super().visit(node, *args, **kwargs)

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.output({super()._output_const_repr(group)})"

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        super()._output_child_pre(node, frame, finalize)
        self.write("environment.output(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(")")
        super()._output_child_post(node, frame, finalize)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment; a `Budget` must be set in `BUDGET` while it compiles and renders."""

    code_generator_class = _CountingGenerator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        """Sets up syntax, globals, filters and tests as `transformers` has them."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            # Folding constants would do a part of the work before anyone counts it.
            optimized=False,
            # Compiled templates must not outlive the budget they were compiled under.
            cache_size=0,
        )
        self.globals.pop("lipsum", None)
        self.globals["namespace"] = _QuietNamespace
        self.globals["dict"] = _Dictionaries()
        self.filters = {
            name: self._counted(name, function)
            for name, function in limits.allowed_filters(self.filters).items()
        }

    # --- what the rewritten template calls ---

    def each(self, values: Any) -> Any:
        """An iterable whose turns are counted."""
        return values if isinstance(values, (Undefined, _Ticking)) else _Ticking(values)

    def joined(self, *values: Any) -> str:
        """The operator ``~``."""
        texts = [limits.to_text(value) for value in values]
        self.charge(sum(map(len, texts)))
        return "".join(texts)

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """A slice."""
        return self.checked(value[start:stop:step])

    def checked(self, value: Any) -> Any:
        """A new value, counted; refuses one that is too large."""
        if isinstance(value, (KeysView, ItemsView, ValuesView)):
            # A view would hide its size.
            value = list(value)
        self.charge(limits.size_of(value))
        return value

    def output(self, value: Any) -> str:
        """A piece of output as text, counted."""
        text = limits.to_text(value)
        self.charge(len(text))
        return text

    def charge(self, size: int) -> None:
        """Counts a step of a size against the budget."""
        BUDGET.get().spend(size)

    # --- hooks of Jinja ---

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _rewrite(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Does an intercepted operator, if its result is bounded."""
        limits.check_operator(operator, left, right)
        return self.checked(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls something from the template, if it is allowed and its result is bounded."""
        self = __self
        if getattr(__obj, "__self__", None) is self:
            # One of ours, from `_rewrite`; Jinja adds keywords with the variables in scope.
            return __obj(*args)
        self.charge(0)
        limits.check_call(__obj, args, kwargs)
        keeps = isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs)
        if keeps or isinstance(__obj, (type, _Dictionaries)):
            # These keep their arguments in a tuple or dictionary that the template can get at.
            self.checked([args, kwargs])
        if isinstance(__obj, LoopContext) and args:
            args = (self.each(args[0]), *args[1:])
        return self.checked(super().call(__context, __obj, *args, **kwargs))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Looks an attribute up; counted, since filters do it for every item of a list."""
        return self._looked_up(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Looks an item up; counted, since filters do it for every item of a list."""
        return self._looked_up(super().getitem(obj, argument))

    def _looked_up(self, value: Any) -> Any:
        self.charge(len(value) if isinstance(value, str) else 0)
        return value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Methods of built-in types are allowed by name only."""
        if callable(value) and not limits.is_allowed_method(obj, attr):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``str.format`` with bounded widths."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        bound = wrapped

        def bounded(*args: Any, **kwargs: Any) -> str:
            limits.check_format(value.__self__, (*args, *kwargs.values()))
            return bound(*args, **kwargs)

        return bounded

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that checks its arguments before, and its result after."""
        check = limits.FILTER_CHECKS.get(name)
        # Jinja passes the context, evaluation context or environment first to filters that ask.
        skip = 1 if hasattr(function, "jinja_pass_arg") else 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.charge(0)
            if check is not None:
                check(*args[skip:], **kwargs)
            return self.checked(function(*args, **kwargs))

        if skip:
            counted.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return counted


def raise_exception(message: object = "") -> NoReturn:
    """``raise_exception`` of chat templates: they refuse messages with it."""
    raise limits.TemplateRefusal(limits.to_text(message))


def _rewrite(tree: nodes.Node) -> None:
    """Sends loops, ``~``, slices and literals through the environment."""
    for node in tree.iter_child_nodes():
        _rewrite(node)
    for field, value in tree.iter_fields():
        if isinstance(value, list):
            setattr(tree, field, [_replacement(one) for one in value])
        else:
            setattr(tree, field, _replacement(value))
    if isinstance(tree, nodes.For):
        tree.iter = _call("each", [tree.iter], tree)


def _replacement(node: Any) -> Any:
    """What stands for a node: a call of the environment, or the node itself."""
    if isinstance(node, nodes.Concat):
        return _call("joined", node.nodes, node)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        part = node.arg
        none = nodes.Const(None, lineno=node.lineno)
        bounds = [part.start or none, part.stop or none, part.step or none]
        return _call("sliced", [node.node, *bounds], node)
    if isinstance(node, (nodes.List, nodes.Dict)) or (
        isinstance(node, nodes.Tuple) and node.ctx == "load"
    ):
        return _call("checked", [node], node)
    return node


def _call(name: str, arguments: list[Any], at: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    call = nodes.Call(function, arguments, [], None, None, lineno=at.lineno)
    call.set_environment(at.environment)  # type: ignore[arg-type]
    return call
