"""Check the functions that an application gives to a client, and what they return. Pure.

Calling an async function, or a generator function, runs nothing of its body: it returns an object that
somebody has to await or to iterate. A client that took such an object for the result would acknowledge
messages whose handler never ran. The constructors reject these functions where the function itself shows its
kind (OptionError). A decorator, a lambda or an object may hide it: then the returned object shows it, and the
call counts as failed.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from ddmq_client.errors import OptionError

ASYNC_CONSUMER = "ddmq_client.aio.AsyncConsumer"
ASYNC_PRODUCER = "ddmq_client.aio.AsyncProducer"
_CALL = "__call__"
_UNWRAPPED_MAX = 32  # partials, methods and objects around one function
_UNRUN = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType, map, filter, itertools.starmap)
_KINDS: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)


def check_function(
    name: str, function: object, *, awaits: bool = False, instead: str = "", argument: str = ""
) -> None:
    """Raise OptionError unless `function` is None, or a callable whose call runs its body.

    `awaits`: the caller awaits the result, so that async functions are allowed. `instead`: the class that
    awaits, named in the error. `argument`: what the caller passes as the one argument, which is checked too.
    """
    if function is None:
        return
    if not callable(function):
        raise OptionError(f"{name}={function!r}; allowed: a function, or None")
    kind = function_kind(function)
    if kind and not (awaits and kind == "an async function"):
        raise OptionError(
            f"{name}={function!r} is {kind}, whose call runs nothing; {_allowed_text(kind, awaits, instead)}"
        )
    if argument and (error_text := find_signature_error(function)):
        raise OptionError(
            f"{name}={function!r} is called with one argument, {argument}: {error_text}; allowed: a function"
            " of one positional argument"
        )


def find_signature_error(function: Callable[..., object]) -> str:
    """Return why a call with one positional argument would fail; "" if it would not, or this is unknown.

    The signature is the callable's own, not that of a function that it wraps: a decorator may pass more.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # some builtin functions have none
        return ""
    try:
        signature.bind(None)
    except TypeError as error:
        return str(error)
    return ""


def function_kind(function: object) -> str:
    """Return the kind of a function whose call runs none of its body (async, generator).

    "" for other functions. Looks through functools.partial, bound and static methods, and objects with
    `__call__`.
    """
    for _ in range(_UNWRAPPED_MAX):
        if _is_awaitable_generator(function):
            return "an async function"
        for is_kind, kind in _KINDS:
            if is_kind(function):
                return kind
        inner = _inner_function(function)
        if inner is None:
            return ""
        function = inner
    return ""


def check_result(
    name: str, result: object, *, awaits: bool = False, instead: str = "", ends: bool = True
) -> None:
    """Raise OptionError if an application's function returned work instead of doing it.

    `ends`: the return must mean that the work has ended; without it, work that already runs elsewhere (a
    Future, a task) is allowed. A coroutine or generator is closed, so that it cannot run after its call has
    failed.
    """
    if result is None or isinstance(result, bool | int | str | bytes):
        return
    if isinstance(result, _UNRUN):
        text = f"{name} returned {result!r}, which has not run"
        _close(result)
        allowed = "allowed: to await it in the function" if awaits else _allowed_text("", awaits, instead)
        raise OptionError(f"{text}; {allowed}")
    if ends and _is_unfinished(result):
        what = f"{name} returned {result!r}, work that may not have ended"
        raise OptionError(f"{what}; allowed: to return when the work is done")


def _inner_function(function: object) -> object:
    if isinstance(function, partial):
        return function.func
    if isinstance(function, types.MethodType | staticmethod | classmethod):
        return function.__func__
    if inspect.isroutine(function) or isinstance(function, type):
        return None
    return getattr(type(function), _CALL, None)


def _is_awaitable_generator(function: object) -> bool:
    """Return whether `types.coroutine` made this function, so that its generator can be awaited."""
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _is_unfinished(result: object) -> bool:
    if isinstance(result, Awaitable | Future):
        return True
    for module, name in (("gevent", "Greenlet"), ("multiprocessing.pool", "ApplyResult")):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(result, kind):
            return True
    return False


def _close(result: object) -> None:
    close = getattr(result, "close", None)
    if callable(close):
        close()


def _allowed_text(kind: str, awaits: bool, instead: str) -> str:
    if awaits:
        return "allowed: a coroutine function, or a plain one, without yield"
    if instead and "generator" not in kind:
        return f"allowed: a plain function; for an async one use {instead}"
    return "allowed: a plain function (no async, no yield)"
