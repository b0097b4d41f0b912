"""What a failed append is called on the wire: the one place where errors become result codes.

Codes other than 12 say that nothing was stored, so a client may send again without a duplicate; 12 says
that nobody knows, unless its text says otherwise.
"""

from __future__ import annotations

from backend.records import AppendResult, AppendStatus
from ddmq_client.idl.codes import FAILED_PREFIX, Code
from ddmq_common.errors import (
    CallerError,
    DiskFullError,
    DrainingError,
    NoSuchTopicError,
    NotWriterError,
    RemoteError,
    StorageError,
    TryLaterError,
)
from proxy_producer.core.refusal import SendRefusal, refusal

_BY_ERROR: tuple[tuple[type[Exception], Code, str], ...] = (
    (NoSuchTopicError, Code.NO_SUCH_QUEUE, "topic_missing"),
    (CallerError, Code.ILLEGAL_MESSAGE, "engine_refused"),
    (DrainingError, Code.SHUTTING_DOWN, "backend_draining"),
    (DiskFullError, Code.BUSY, "disk_full"),
    (TryLaterError, Code.BUSY, "backend_bound"),
    (NotWriterError, Code.NO_SERVICE, "not_writer"),  # code 10 is an unknown outcome to clients
    (StorageError, Code.BACKEND_FAILED, "storage"),
    (RemoteError, Code.TIMED_OUT, "backend_silent"),
)


def refusal_of(error: Exception) -> SendRefusal:
    """The refusal for an error out of the backend; unknown ones are code 10."""
    for kind, code, reason in _BY_ERROR:
        if isinstance(error, kind):
            return SendRefusal(code, reason, f"{FAILED_PREFIX} {error}")
    what = f"the backend failed unexpectedly ({type(error).__name__})"
    return refusal(Code.BACKEND_FAILED, "unexpected", what, "nothing more precise is known")


def failure_of(result: AppendResult) -> SendRefusal:
    """Why a record is not stored, or that nobody knows; not for stored ones."""
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
    """Code 12 from the proxy's own sweep. `doing`: what the request was waiting for."""
    state = "the message may or may not be stored" if sent else "the message is not stored; send it again"
    what = f"no answer within {waited_ms} ms, waiting for {doing}"
    return refusal(Code.TIMED_OUT, "swept" if sent else "swept_unsent", what, state)
