"""One send, or one batch, from first attempt to outcome. Pure: the shells do what a SendJob says.

A shell loops: pick a node, `begin()`, write `frame()`, hand back `answered()` or `failed()`, then ask
`next_wait()`: seconds until the next attempt, or None when every message has its result. The rules of
resending are in `verdicts`. An outcome that was unknown once stays unknown unless a resend is confirmed as
stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ddmq_client.core import frames, verdicts
from ddmq_client.core.nodes import Node
from ddmq_client.core.verdicts import Again, CallVerdict
from ddmq_client.errors import NotStoredError, SendError, UnknownOutcomeError
from ddmq_client.outgoing import SendResult

SEND_ONE = b"sendSync"
SEND_MANY = b"sendBatch"
SEND_DELAYED = b"sendDelaySync"


class ResendPolicy(NamedTuple):
    """How long and how often to try.

    retry_unknown    also send again what may be stored (makes duplicates)
    attempts_max     per message
    backoff_first_s  wait before a proxy is tried again; doubles
    backoff_max_s    ceiling of that wait
    """

    retry_unknown: bool = False
    attempts_max: int = 1_000
    backoff_first_s: float = 0.02
    backoff_max_s: float = 0.5


class SendJob:
    """The state of one call of the application: encoded messages in, one SendResult for each out."""

    __slots__ = (
        "_again",
        "_attempts",
        "_batch",
        "_maybe_stored",
        "_messages",
        "_pending",
        "_policy",
        "deadline",
        "method",
        "results",
        "tried",
    )

    def __init__(
        self,
        messages: Sequence[bytes],
        batch: bool,
        deadline: float,
        policy: ResendPolicy,
        method: bytes | None = None,
        again: Callable[[], bytes] | None = None,
    ) -> None:
        """`deadline` in monotonic seconds; `batch` chooses sendBatch, else sendSync of one message, or
        `method`, which takes one argument struct and a timeout as sendSync does. `again` encodes
        the one message for the attempts after the first; it is called once, when there is a second.
        """
        self.method = method or (SEND_MANY if batch else SEND_ONE)
        self._messages = messages
        self._again = again
        self._batch = batch
        self.deadline = deadline
        self._policy = policy
        self._attempts = 0
        self._pending: Sequence[int] = range(len(messages))
        self._maybe_stored: set[int] = set()
        self.results: list[SendResult] = [_UNTRIED] * len(messages)
        self.tried: set[Node] = set()

    def begin(self, node: Node) -> None:
        """An attempt at this node starts."""
        self._attempts += 1
        self.tried.add(node)
        if self._again is not None and self._attempts > 1:
            self._messages, self._again = (self._again(),), None

    def attempt_deadline(self, now: float) -> float:
        """When to stop waiting for the attempt that starts now."""
        if self._policy.retry_unknown and self._attempts < self._policy.attempts_max:
            return now + (self.deadline - now) / 2
        return self.deadline

    def frame(self, now: float, sequence_id: int) -> bytes:
        """The request for everything still pending. The proxy is given a little less time than we have."""
        left_ms = max(0.0, self.attempt_deadline(now) - now) * 1000
        timeout_ms = max(1, int(left_ms - min(50.0, left_ms / 10)))
        pending = [self._messages[at] for at in self._pending]
        head = frames.call_head(self.method, sequence_id)
        if self._batch:
            return frames.framed((head, *frames.many_messages_args(pending, timeout_ms)))
        return frames.framed((head, *frames.one_message_args(pending[0], timeout_ms)))

    def answered(self, node: Node, results: Sequence[SendResult], elsewhere: bool) -> CallVerdict:
        """Take the proxy's results for what was pending; returns the worst verdict for the node's health.

        `elsewhere`: there is a proxy in rotation that this job has not tried.
        """
        if len(results) != len(self._pending):
            text = f"proxy answered {len(results)} results for {len(self._pending)} messages"
            return self.failed(node, CallVerdict.LOST, text, elsewhere)
        worst, left = CallVerdict.STORED, []
        for at, result in zip(self._pending, results, strict=True):
            verdict = verdicts.of_code(result.code)
            result.proxy = node.name
            self.results[at] = result
            if verdict is CallVerdict.STORED:
                continue
            if worst is not CallVerdict.LEAVING:
                worst = verdict
            if self._refused(at, verdict, result.text, result.code, node.name, elsewhere):
                left.append(at)
        self._pending = left
        return worst

    def failed(self, node: Node, verdict: CallVerdict, text: str, elsewhere: bool) -> CallVerdict:
        """The attempt ended without results: the verdict holds for everything pending."""
        self._pending = [
            at for at in self._pending if self._refused(at, verdict, text, None, node.name, elsewhere)
        ]
        return verdict

    def gave_up(self, error: SendError) -> None:
        """Nothing more can be tried: what is pending and has no better error gets this one."""
        for at in self._pending:
            if self.results[at] is _UNTRIED:
                self.results[at] = result_of(error)
        self._pending = ()

    def next_wait(self, now: float, elsewhere: bool) -> float | None:
        """Seconds until the next attempt; None when the job is done."""
        if not self._pending:
            return None
        wait = 0.0 if elsewhere else self._backoff()
        if self._attempts >= self._policy.attempts_max or now + wait >= self.deadline:
            self._pending = ()
            return None
        return wait

    def _backoff(self) -> float:
        return min(
            self._policy.backoff_first_s * 2.0 ** min(self._attempts - 1, 16), self._policy.backoff_max_s
        )

    def _refused(
        self, at: int, verdict: CallVerdict, text: str, code: int | None, proxy: str, elsewhere: bool
    ) -> bool:
        """Set the result that holds if nothing better comes; True while it may be sent again."""
        rule = verdicts.RULES[verdict]
        if rule.error is UnknownOutcomeError:
            self._maybe_stored.add(at)
        kind = UnknownOutcomeError if at in self._maybe_stored else rule.error
        self.results[at] = result_of(kind(text, code, proxy))
        if rule.again is Again.IF_ALLOWED:
            return self._policy.retry_unknown
        return rule.again is Again.ANYWHERE or (rule.again is Again.ELSEWHERE and elsewhere)


def result_of(error: SendError) -> SendResult:
    """A result that carries an error."""
    result = SendResult()
    result.code = -1 if error.code is None else error.code
    result.text, result.proxy, result.error = error.text, error.proxy, error
    return result


_UNTRIED = result_of(NotStoredError("not sent: no attempt was made in time"))
