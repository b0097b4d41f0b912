"""Refusals: the wire code, a reason to count by, a sentence for people; and what a failed append is called.

The sentence starts with `FAILED:` and says what was wrong, with the value, and what is allowed. The
reason is one of a small fixed set, so that it can label a metric; it never holds a client's text.

Errors become result codes here and nowhere else. Codes other than 12 say that nothing was stored, so a client
may send again without a duplicate; 12 says that nobody knows, unless its text says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.records import AppendResult, AppendStatus
from ddmq_client.idl.codes import FAILED_PREFIX, Code
from ddmq_common.errors import (
    CallerError,
    DiskFullError,
    DrainingError,
    NotWriterError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)


class SendRefusal(NamedTuple):
    """The reason why a message was not stored or, with code 12, may not be stored."""

    code: Code
    reason: str
    text: str


def refusal(code: Code, reason: str, what: str, allowed: str) -> SendRefusal:
    """Build a SendRefusal. `what`: the wrong item with its value.

    `allowed`: the valid values, or what to do.
    """
    return SendRefusal(code, reason, f"{FAILED_PREFIX} {what}; {allowed}")


def illegal(reason: str, what: str, allowed: str) -> SendRefusal:
    """Build a SendRefusal with code 11: the message itself is invalid."""
    return refusal(Code.ILLEGAL_MESSAGE, reason, what, allowed)


def shown(text: bytes, characters_max: int = 40) -> str:
    """Format a client's text for a message: quoted, shortened to `characters_max`, on one line, in valid
    UTF-8."""
    whole = text[: 4 * characters_max + 4].decode("utf-8", "backslashreplace")
    cut = whole[:characters_max]
    return repr(cut) if len(cut) == len(whole) else f"{cut!r}..."


_BY_ERROR: tuple[tuple[type[Exception], Code, str], ...] = (
    (UnknownTopicError, Code.NO_SUCH_QUEUE, "topic_missing"),
    (CallerError, Code.ILLEGAL_MESSAGE, "engine_refused"),
    (DrainingError, Code.SHUTTING_DOWN, "backend_draining"),
    (DiskFullError, Code.BUSY, "disk_full"),
    (TryLaterError, Code.BUSY, "backend_bound"),
    (NotWriterError, Code.NO_SERVICE, "not_writer"),  # code 10 is an unknown outcome to clients
    (StorageError, Code.BACKEND_FAILED, "storage"),
    (RemoteError, Code.TIMED_OUT, "backend_silent"),
)


def refusal_of(error: Exception) -> SendRefusal:
    """Convert an error of the backend to a SendRefusal; unknown errors become code 10."""
    for kind, code, reason in _BY_ERROR:
        if isinstance(error, kind):
            return SendRefusal(code, reason, f"{FAILED_PREFIX} {error}")
    what = f"the backend failed unexpectedly ({type(error).__name__})"
    return refusal(Code.BACKEND_FAILED, "unexpected", what, "nothing more precise is known")


def failure_of(result: AppendResult) -> SendRefusal:
    """Return the refusal of a record whose result is not STORED: not stored, or outcome unknown."""
    if result.status == AppendStatus.UNKNOWN:
        why = f": {result.error}" if result.error else " within the timeout"
        return refusal(
            Code.TIMED_OUT, "unknown", f"not acknowledged{why}", "the message may or may not be stored"
        )
    if result.error is not None:
        return refusal_of(result.error)
    return refusal(
        Code.TIMED_OUT, "not_stored", "not acknowledged within the timeout", "the message is not stored"
    )


def timed_out(waited_ms: int, doing: str, sent: bool) -> SendRefusal:
    """Build the code 12 that the sweep answers. `doing`: what the request was waiting for.

    `sent`: it may be stored.
    """
    state = "the message may or may not be stored" if sent else "the message is not stored; send it again"
    what = f"no answer within {waited_ms} ms, waiting for {doing}"
    return refusal(Code.TIMED_OUT, "swept" if sent else "swept_unsent", what, state)
