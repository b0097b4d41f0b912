"""An acknowledgement that carries messages, from its first attempt to its outcome. Pure: a shell does what a
ReplyJob says, and calls `next_wait` after each attempt.

The message's lease ensures that the reply is stored once, so it is retried, also at other proxies, until the
outcome is certain. An uncertain outcome stays uncertain unless a later answer confirms that the reply is
stored, or that it never was.

    answer                            result for the caller
    stored, now or before             the results
    the lease has expired             LeaseOverError: nothing is stored
    finished, perhaps by another call UnknownOutcomeError
    rejected (11, 13, 18, 19)         InvalidMessageError, NoSuchTopicError (NotAllowedError): nothing is
                                      stored
    not now (14, 15, 20, 21)          retry; after the deadline NotStoredError, ThrottledError
    uncertain (10, 12), no answer     retry; after the deadline UnknownOutcomeError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ddmq_client.core import frames, verdicts
from ddmq_client.core.verdicts import CallVerdict
from ddmq_client.errors import (
    ClientError,
    LeaseOverError,
    NotStoredError,
    SendError,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.idl.codes import Code, ReplyOutcome
from ddmq_client.outgoing import SendResult
from ddmq_client.wire.wording import in_arguments

REPLY = b"reply"
PAUSE_FIRST_S, PAUSE_MAX_S = 0.02, 0.5
_RETRYABLE = {
    Code.NO_SUCH_QUEUE: NotStoredError,
    Code.BUSY: ThrottledError,
    Code.SHUTTING_DOWN: NotStoredError,
    Code.NO_SERVICE: NotStoredError,
}


class ReplyTo(NamedTuple):
    """The received message that a reply acknowledges."""

    group: str
    topic: str
    queue: str
    offset: int
    lease: int


class ReplyAnswer:
    """The answer of a proxy to a request that acknowledges messages and sends others."""

    code: int = 0
    text: str = ""
    outcome: int | None = None
    results: Sequence[SendResult] = ()


class ReplyJob:
    """A job that acknowledges a message and sends others; when it is completed, `error` or `results` is
    set."""

    def __init__(self, request: bytes, messages: Sequence[bytes], deadline: float) -> None:
        """Create the job.

        `request`: the encoded ReplyRequest without messages and timeout. `deadline`: monotonic seconds.
        """
        self.deadline = deadline
        self.results: Sequence[SendResult] = ()
        self.error: ClientError | None = NotStoredError("not sent: no attempt was made in time")
        self._request = request
        self._messages = messages
        self._tries = 0
        self._uncertain = False
        self._permanent = False  # the last proxy would answer another call in the same way
        self._completed = False

    def attempt_deadline(self, now: float) -> float:
        """Return the deadline of an attempt that starts now, so that time remains for another one."""
        return now + (self.deadline - now) / 2

    def encode_request(self, now: float, sequence_id: int) -> bytes:
        """Encode the request. The proxy gets slightly less time than the job has."""
        left_ms = max(0.0, self.attempt_deadline(now) - now) * 1000
        timeout_ms = max(1, int(left_ms - min(50.0, left_ms / 10)))
        args = frames.reply_args(self._request, self._messages, timeout_ms)
        return frames.build_frame((frames.call_head(REPLY, sequence_id), *args))

    def take_answer(self, answer: ReplyAnswer, proxy: str) -> None:
        """Record the answer of a proxy."""
        self._tries += 1
        self._permanent = False
        code, text, outcome = answer.code, in_arguments(answer.text or ""), answer.outcome
        if code == Code.OK:
            for result in answer.results:
                result.proxy = proxy
            self._end(None, answer.results)
        elif outcome == ReplyOutcome.LEASE_OVER:
            self._end(LeaseOverError(text, code, proxy))
        elif outcome == ReplyOutcome.FINISHED:
            self._end(UnknownOutcomeError(text, code, proxy))
        elif code in _RETRYABLE:
            self._retry_on(_RETRYABLE[Code(code)](text, code, proxy))
        else:
            error = verdicts.build_error(verdicts.of_code(code), text, code, proxy)
            if isinstance(error, UnknownOutcomeError):
                self._retry_on(error)
            else:
                self._end(error)

    def take_failure(self, verdict: CallVerdict, text: str, proxy: str) -> None:
        """Record an attempt that got no answer."""
        self._tries += 1
        self._permanent = verdict in verdicts.PERMANENT
        self._retry_on(verdicts.RULES[verdict].error(text, None, proxy))

    def on_unsupported(self, text: str) -> None:
        """End the job with an error, because no proxy supports it."""
        self._end(ClientError(text))

    def next_wait(self, now: float, elsewhere: bool) -> float | None:
        """Return the seconds until the next attempt, or None if the job is completed.

        `elsewhere`: whether a proxy has not been tried yet.
        """
        if self._completed or (self._permanent and not elsewhere):
            return None
        wait = 0.0 if elsewhere else min(PAUSE_FIRST_S * 2.0 ** min(self._tries, 10), PAUSE_MAX_S)
        return wait if now + wait < self.deadline else None

    def _retry_on(self, error: SendError) -> None:
        self._uncertain = self._uncertain or isinstance(error, UnknownOutcomeError)
        if self._uncertain and not isinstance(error, UnknownOutcomeError):
            error = UnknownOutcomeError(error.text, error.code, error.proxy)
        self.error = error

    def _end(self, error: ClientError | None, results: Sequence[SendResult] = ()) -> None:
        self._completed = True
        self.error, self.results = error, results
