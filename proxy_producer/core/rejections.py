"""Rejections: the wire code, a reason to count by, a sentence for people; and what a failed append is called.

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
    FencedError,
    NotWriterError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnknownTopicError,
)

NOT_STORED = "the message is not stored"  # in the text of a code 12 whose outcome is certain


class SendRejection(NamedTuple):
    """The reason why a message was not stored or, with code 12, may not be stored."""

    code: Code
    reason: str
    text: str


def build_rejection(code: Code, reason: str, what: str, allowed: str) -> SendRejection:
    """Build a SendRejection. `what`: the wrong item with its value.

    `allowed`: the valid values, or what to do.
    """
    return SendRejection(code, reason, f"{FAILED_PREFIX} {what}; {allowed}")


def build_illegal_rejection(reason: str, what: str, allowed: str) -> SendRejection:
    """Build a SendRejection with code 11: the message itself is invalid."""
    return build_rejection(Code.ILLEGAL_MESSAGE, reason, what, allowed)


def quote_text(text: bytes, characters_max: int = 40) -> str:
    """Format a client's text for a message: quoted, shortened to `characters_max`, on one line, in valid
    UTF-8."""
    decoded = text[: 4 * characters_max + 4].decode("utf-8", "backslashreplace")
    shortened = decoded[:characters_max]
    return repr(shortened) if len(shortened) == len(decoded) else f"{shortened!r}..."


_BY_ERROR: tuple[tuple[type[Exception], Code, str], ...] = (
    (UnknownTopicError, Code.NO_SUCH_QUEUE, "topic_missing"),
    (FencedError, Code.BUSY, "owner_changed"),  # another process owns what is needed to store it
    (CallerError, Code.ILLEGAL_MESSAGE, "engine_refused"),
    (DrainingError, Code.SHUTTING_DOWN, "backend_draining"),
    (DiskFullError, Code.BUSY, "disk_full"),
    (TryLaterError, Code.BUSY, "backend_bound"),
    (NotWriterError, Code.NO_SERVICE, "not_writer"),  # code 10 is an unknown outcome to clients
    (StorageError, Code.BACKEND_FAILED, "storage"),
    (RemoteError, Code.TIMED_OUT, "backend_silent"),
)


def to_rejection(error: Exception) -> SendRejection:
    """Convert an error of the backend to a SendRejection; unknown errors become code 10."""
    for kind, code, reason in _BY_ERROR:
        if isinstance(error, kind):
            return SendRejection(code, reason, f"{FAILED_PREFIX} {error}")
    what = f"the backend failed unexpectedly ({type(error).__name__})"
    return build_rejection(Code.BACKEND_FAILED, "unexpected", what, "nothing more precise is known")


def failure_of(result: AppendResult) -> SendRejection:
    """Return the rejection of a record whose result is not STORED: not stored, or outcome unknown."""
    if result.status == AppendStatus.UNKNOWN:
        why = f": {result.error}" if result.error else " within the timeout"
        return build_rejection(
            Code.TIMED_OUT, "unknown", f"not acknowledged{why}", "the message may or may not be stored"
        )
    if result.error is not None:
        return to_rejection(result.error)
    return build_rejection(Code.TIMED_OUT, "not_stored", "not acknowledged within the timeout", NOT_STORED)


def timed_out(waited_ms: int, doing: str, sent: bool) -> SendRejection:
    """Build the code 12 that the sweep answers. `doing`: what the request was waiting for.

    `sent`: it may be stored.
    """
    state = "the message may or may not be stored" if sent else f"{NOT_STORED}; send it again"
    what = f"no answer within {waited_ms} ms, waiting for {doing}"
    return build_rejection(Code.TIMED_OUT, "swept" if sent else "swept_unsent", what, state)
