"""Log the errors of a handler so that a log stays readable: one traceback per kind of error, then lines.

Errors are of one kind if their types and their stacks are equal, line by line, also those of their causes and
of the members of an exception group. The first error of a kind is logged with its traceback, each further one
as one line with its text, its number and the place. A traceback comes again an hour after the last one of its
kind, for logs whose old files are deleted, and always at level DEBUG.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from traceback import walk_tb

from ddmq_client.printable import printable
from ddmq_client.received import Message

KINDS_MAX = 256  # that are remembered; beyond it the kind that was seen longest ago is forgotten
CHAIN_MAX = 32  # causes and members of groups that are compared
FRAMES_MAX = 1_000  # of one stack that are compared
CAUSES_SHOWN_MAX = 3
MESSAGES_SHOWN_MAX = 3
TRACEBACK_EVERY_S = 3600.0

_log = logging.getLogger("ddmq_client.consumer")


@dataclass(slots=True)
class _Count:
    """The number of handler errors of one kind, and when one was last logged with its traceback.

    `traceback_number`: the number of that error.
    """

    errors: int = 0
    traceback_number: int = 0
    traceback_at: float = 0.0


class HandlerErrors:
    """Counts and logs the errors of one consumer's handler and serializer. Safe for many threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with no errors. `clock` returns monotonic seconds."""
        self._clock = clock
        self._lock = Lock()
        self._counts: dict[bytes, _Count] = {}  # by kind; the kind that was seen last is the last one

    def report_error(self, messages: Sequence[Message], error: BaseException, what: str = "handler") -> None:
        """Log an error that the handler, or the function that `what` names, raised on these messages."""
        number, traceback_number = self._count_error(error)
        shown_messages = ", ".join(map(repr, messages[:MESSAGES_SHOWN_MAX]))
        if len(messages) > MESSAGES_SHOWN_MAX:
            shown_messages += f" and {len(messages) - MESSAGES_SHOWN_MAX} more"
        if number == 1:
            _log.error("the %s raised on %s", what, shown_messages, exc_info=error)
            return
        has_traceback = number == traceback_number or _log.isEnabledFor(logging.DEBUG)
        where = f"error {number} of this kind, at {_find_location(error)}"
        _log.error(
            "the %s raised on %s: %s (%s)",
            what,
            shown_messages,
            _describe_error(error),
            where if has_traceback else f"{where}; error {traceback_number} has the traceback",
            exc_info=error if has_traceback else None,
        )

    def _count_error(self, error: BaseException) -> tuple[int, int]:
        """Return the error's number in its kind, and that of the kind's last error with a traceback."""
        kind, now = error_kind(error), self._clock()
        with self._lock:
            count = self._counts.pop(kind, None) or _Count()
            self._counts[kind] = count
            if len(self._counts) > KINDS_MAX:
                del self._counts[next(iter(self._counts))]
            count.errors += 1
            if count.errors == 1 or now - count.traceback_at >= TRACEBACK_EVERY_S:
                count.traceback_number, count.traceback_at = count.errors, now
            return count.errors, count.traceback_number


def error_kind(error: BaseException) -> bytes:
    """Return a digest of the types and stacks of an error, its causes and its group members."""
    digest, count = hashlib.sha256(), 0
    pending = [error]
    while pending and count < CHAIN_MAX:
        each, count = pending.pop(), count + 1
        text = repr((type(each).__module__, type(each).__qualname__, _read_stack(each)))
        digest.update(text.encode(errors="backslashreplace"))
        if isinstance(each, BaseExceptionGroup):
            pending.extend(each.exceptions)
        if (cause := _cause_of(each)) is not None:
            pending.append(cause)
    return digest.digest()


def _read_stack(error: BaseException) -> list[tuple[str, int]]:
    lines = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    return lines if len(lines) <= FRAMES_MAX else lines[:FRAMES_MAX]


def _cause_of(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _find_location(error: BaseException) -> str:
    """Return FOLDER/FILE:LINE of the innermost frame."""
    stack = _read_stack(error)
    if not stack:
        return "an unknown place"
    path, line = stack[-1]
    return printable(f"{'/'.join(path.split(os.sep)[-2:])}:{line}")


def _describe_error(error: BaseException) -> str:
    """Return the texts of an error, of the members of a group and of the causes, as one line."""
    texts: list[str] = []
    pending = [error]
    while pending and len(texts) <= CAUSES_SHOWN_MAX:
        each = pending.pop(0)
        texts.append(_text_of(each))
        if isinstance(each, BaseExceptionGroup):
            pending.extend(each.exceptions)
        if (cause := _cause_of(each)) is not None:
            pending.append(cause)
    return "; from ".join(texts)


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the application's own __str__
        text = "(its text cannot be read)"
    name = type(error).__name__
    return printable(" ".join(f"{name}: {text}".split())) if text else name
