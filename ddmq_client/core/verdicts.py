"""The decision table of resending: the meaning of an answer, or the lack of one, for a message. Pure.

The question is always "can it be stored already?". A message that certainly is not stored may be sent
again without making a duplicate. One of unknown outcome may be where it would be recognised, by its number
or idempotency key, and is also where the application allowed duplicates ("if allowed", see SendJob).

    verdict       from                                     error                 resend             proxy
    STORED        code 0 (1 from old proxies)              -                     -                  fine
    INVALID       11, 18, 19, 30 to 38                     InvalidMessageError   never              fine
    NO_TOPIC      13, 14                                   NoSuchTopicError (*)  never              fine
    THROTTLED     15                                       ThrottledError        anywhere           fine
    LEAVING       20                                       NotStoredError        anywhere           out
    UNAVAILABLE   21, unknown method, protocol error       NotStoredError        another proxy      fine
    NOT_SENT      no connection, frame not written whole   NotStoredError        anywhere           out
    LOGIN_FAILED  login rejected, no usable token          LoginError            another proxy      out
    WRONG_SERVER  an HTTP server answers                   NotStoredError        another proxy      out
    UNKNOWN       10, 12, internal error, other codes      UnknownOutcomeError   if allowed         fine
    LOST          connection ended or garbled answer       UnknownOutcomeError   if allowed         out
    TIMED_OUT     no answer in time (out after three)      UnknownOutcomeError   if allowed         fine

(*) NotAllowedError, if the text of the answer names a missing right.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddmq_client.errors import (
    InvalidMessageError,
    LoginError,
    NoSuchTopicError,
    NotAllowedError,
    NotStoredError,
    SendError,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.idl.codes import Code
from ddmq_client.printable import printable
from ddmq_client.wire.wording import explain_missing_login, is_right_missing


class CallVerdict(Enum):
    """The meaning of a call's outcome for the message; the table above lists all."""

    STORED = "stored"
    INVALID = "invalid"
    NO_TOPIC = "no topic"
    THROTTLED = "throttled"
    LEAVING = "leaving"
    UNAVAILABLE = "unavailable"
    NOT_SENT = "not sent"
    LOGIN_FAILED = "login failed"
    WRONG_SERVER = "wrong server"
    UNKNOWN = "unknown"
    LOST = "lost"
    TIMED_OUT = "timed out"


class ResendTarget(Enum):
    """The proxies to which a message may be resent."""

    NEVER = 0
    ELSEWHERE = 1  # only to a proxy that has not been tried for it
    ANYWHERE = 2
    IF_ALLOWED = 3  # only when it would be recognised, or the application accepts duplicates


class Rule(NamedTuple):
    """One line of the table: the consequences of a verdict."""

    error: type[SendError]
    resend: ResendTarget


RULES: dict[CallVerdict, Rule] = {
    CallVerdict.INVALID: Rule(InvalidMessageError, ResendTarget.NEVER),
    CallVerdict.NO_TOPIC: Rule(NoSuchTopicError, ResendTarget.NEVER),
    CallVerdict.THROTTLED: Rule(ThrottledError, ResendTarget.ANYWHERE),
    CallVerdict.LEAVING: Rule(NotStoredError, ResendTarget.ANYWHERE),
    CallVerdict.UNAVAILABLE: Rule(NotStoredError, ResendTarget.ELSEWHERE),
    CallVerdict.NOT_SENT: Rule(NotStoredError, ResendTarget.ANYWHERE),
    CallVerdict.LOGIN_FAILED: Rule(LoginError, ResendTarget.ELSEWHERE),
    CallVerdict.WRONG_SERVER: Rule(NotStoredError, ResendTarget.ELSEWHERE),
    CallVerdict.UNKNOWN: Rule(UnknownOutcomeError, ResendTarget.IF_ALLOWED),
    CallVerdict.LOST: Rule(UnknownOutcomeError, ResendTarget.IF_ALLOWED),
    CallVerdict.TIMED_OUT: Rule(UnknownOutcomeError, ResendTarget.IF_ALLOWED),
}

# Another call to the same server would end in the same way.
PERMANENT = frozenset((CallVerdict.LOGIN_FAILED, CallVerdict.WRONG_SERVER))

_CODES: dict[int, CallVerdict] = {
    Code.OK: CallVerdict.STORED,
    1: CallVerdict.STORED,
    Code.ILLEGAL_MESSAGE: CallVerdict.INVALID,
    Code.TOPIC_REFUSED: CallVerdict.NO_TOPIC,
    Code.NO_SUCH_QUEUE: CallVerdict.NO_TOPIC,
    Code.BUSY: CallVerdict.THROTTLED,
    Code.TAKES_NO_DELAY: CallVerdict.INVALID,
    Code.TAKES_ONLY_DELAY: CallVerdict.INVALID,
    Code.SHUTTING_DOWN: CallVerdict.LEAVING,
    Code.NO_SERVICE: CallVerdict.UNAVAILABLE,
    **dict.fromkeys(range(Code.DELAY_ID_MALFORMED, Code.DELAY_BASE + 1), CallVerdict.INVALID),
}

_ERROR_KINDS: dict[int, CallVerdict] = {1: CallVerdict.UNAVAILABLE, 7: CallVerdict.UNAVAILABLE}


def of_code(code: int) -> CallVerdict:
    """Return the verdict of a result code; unknown codes are UNKNOWN."""
    return _CODES.get(code, CallVerdict.UNKNOWN)


def of_error_kind(kind: int) -> CallVerdict:
    """Return the verdict of a Thrift application exception that came instead of an answer."""
    return _ERROR_KINDS.get(kind, CallVerdict.UNKNOWN)


def build_error(verdict: CallVerdict, text: str, code: int | None, proxy: str) -> SendError:
    """Build the error of a message with this verdict. `text`, `code`: the answer of the proxy."""
    kind = RULES[verdict].error
    if kind is NoSuchTopicError and is_right_missing(text):
        return NotAllowedError(explain_missing_login(text), code, proxy)
    return kind(text, code, proxy)


class CallFailed(Exception):
    """A call ended without an answer."""

    def __init__(self, verdict: CallVerdict, text: str) -> None:
        self.verdict = verdict
        self.text = printable(text)
        super().__init__(self.text)


def not_connected(name: str, error: object) -> CallFailed:
    """Return the failure of a call for which no connection could be made."""
    return CallFailed(CallVerdict.NOT_SENT, f"cannot connect to {name}: {error}")


def connect_timed_out(name: str, *, at_deadline: bool) -> CallFailed:
    """Return the failure of a call whose connection was not made in time.

    `at_deadline`: the call's own time-out ended the attempt, not the limit of one connection attempt.
    """
    return not_connected(name, "the time is up (timeout_ms)" if at_deadline else "the time is up")


def not_written(name: str, error: object) -> CallFailed:
    """Return the failure of a call whose request was not written completely."""
    return CallFailed(CallVerdict.NOT_SENT, f"request not written to {name}: {error}")


def answer_lost(name: str, error: object) -> CallFailed:
    """Return the failure of a call whose request was written and which got no valid answer."""
    return CallFailed(CallVerdict.LOST, f"no answer from {name}: {error}")


def login_impossible(name: str, error: object) -> CallFailed:
    """Return the failure of a call before which this client cannot log in."""
    return CallFailed(CallVerdict.LOGIN_FAILED, f"cannot log in at {name}: {error}")


def wrong_server(name: str, error: object) -> CallFailed:
    """Return the failure of a call to a server that is no proxy, so that it has not carried out the call."""
    return CallFailed(CallVerdict.WRONG_SERVER, f"no answer from {name}: {error}")


def timed_out(name: str, waited_s: float) -> CallFailed:
    """Return the failure of a call that got no answer in time."""
    return CallFailed(CallVerdict.TIMED_OUT, f"no answer from {name} within {waited_s * 1000:.0f} ms")
