"""Functions each of whose calls is a block of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import _native

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_blocks(make: Callable[[], _native.Tag | _native.Work], function: _Function, name: str) -> _Function:
    """Returns a function each of whose calls is in a block of its own: that of a coroutine lasts until the coroutine has ended.

    A generator runs when others ask it to, and would be outside of the block, so it is refused.
    """
    if not callable(function):
        raise TypeError(f"{name} decorates a function, not {type(function).__name__}")
    if _is(inspect.isgeneratorfunction, function) or _is(inspect.isasyncgenfunction, function):
        called = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{called} is a generator, whose body runs after the call: use `with {name}:` inside of it")
    if _is(inspect.iscoroutinefunction, function):

        @functools.wraps(function)
        async def complete(*arguments: Any, **named: Any) -> Any:
            with make():
                return await function(*arguments, **named)

        return cast("_Function", complete)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with make():
            return function(*arguments, **named)

    return cast("_Function", call)


def _is(kind: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """Returns whether a function, or what it is called by, is one of a kind."""
    return kind(getattr(function, "__func__", function)) or kind(getattr(function, "__call__", None))
