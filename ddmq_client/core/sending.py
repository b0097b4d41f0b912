"""One send, or one batch, from first attempt to outcome. Pure: the shells do what a SendJob says.

A shell loops: pick a node, `begin()`, write `frame()`, hand back `answered()` or `failed()`, then ask
`next_wait()`: seconds until the next attempt, or None when every message has its result. The rules of
resending are in `verdicts`. An outcome that was unknown once stays unknown unless a resend is confirmed as
stored. `end()` comes last, whatever the outcome.

A message that may be stored is resent if that creates no second message. It must have a number, and proxies
must have been observed to recognise numbers; or it has a key, and no proxy was observed to ignore keys. The
results of a node show whether it recognises them; some recognise keys but no numbers. With its number a
message states for how long it has been under way: a proxy that no longer remembers that time rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil
from typing import NamedTuple

from ddmq_client.core import frames, verdicts
from ddmq_client.core.nodes import Node
from ddmq_client.core.sequences import Sequences
from ddmq_client.core.verdicts import CallVerdict, ResendTarget
from ddmq_client.errors import NotStoredError, SendError, UnknownOutcomeError
from ddmq_client.outgoing import SendResult
from ddmq_client.wire.wording import in_arguments

SEND_ONE = b"sendSync"
SEND_MANY = b"sendBatch"
SEND_DELAYED = b"sendDelaySync"


class ResendPolicy(NamedTuple):
    """The limits of resending.

    retry_unknown    also resend a message that may be stored, even if that may create a duplicate
    attempts_max     the maximum of attempts per message
    backoff_first_s  the first wait before a proxy is tried again; it doubles each time
    backoff_max_s    the maximum of that wait
    """

    retry_unknown: bool = False
    attempts_max: int = 1_000
    backoff_first_s: float = 0.02
    backoff_max_s: float = 0.5


class SendJob:
    """A job that sends messages for one call of the application, with retries, until each has a
    SendResult."""

    __slots__ = (
        "_attempts",
        "_batch",
        "_divides",
        "_encode_resend",
        "_first_at",
        "_keyed",
        "_keys_recognised",
        "_maybe_stored",
        "_messages",
        "_numbers",
        "_pending",
        "_policy",
        "_recognised",
        "_sequences",
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
        encode_resend: Callable[[], bytes] | None = None,
        sequences: Sequences | None = None,
        keyed: Collection[int] = (),
    ) -> None:
        """Create the job of sending these messages until `deadline`, in monotonic seconds.

        `batch` chooses sendBatch, else sendSync of one message, or `method`: that takes one argument struct
        and a timeout as sendSync does. `encode_resend` encodes the one message for the attempts after the
        first; it is called once, before the second. `keyed`: the indices of messages with a key; the others
        get a number each if there are `sequences`.
        """
        self.method = method or (SEND_MANY if batch else SEND_ONE)
        self._messages = messages
        self._encode_resend = encode_resend
        self._sequences = sequences
        self._keyed = keyed
        self._numbers: range | None = None  # one for each message, also for those with a key
        self._recognised: bool | None = None
        self._keys_recognised: bool | None = None
        self._divides = False  # the time, to leave some for another attempt
        self._first_at: float | None = None  # when the first request was made
        self._batch = batch
        self.deadline = deadline
        self._policy = policy
        self._attempts = 0
        self._pending: Sequence[int] = range(len(messages))
        self._maybe_stored: set[int] = set()
        self.results: list[SendResult] = [_UNTRIED] * len(messages)
        self.tried: set[Node] = set()

    @property
    def error(self) -> SendError | None:
        """The latest error of a message that is not stored yet; None if there is none."""
        return self.results[self._pending[0]].error if self._pending else None

    @property
    def has_keys(self) -> bool:
        """Whether a message has an idempotency key."""
        return bool(self._keyed)

    def begin(self, node: Node, recognised: bool | None = None, keys_recognised: bool | None = None) -> None:
        """Start an attempt to send the messages to `node`.

        `recognised`: whether proxies recognise a resent message by its number, `keys_recognised`: by its key;
        None if that is not known.
        """
        self._attempts += 1
        self.tried.add(node)
        self._recognised, self._keys_recognised = recognised, keys_recognised
        if self._sequences is not None and self._attempts == 1:
            self._numbers = self._sequences.take_numbers(len(self._messages))
        self._divides = self._attempts < self._policy.attempts_max and self._any_resend_safe()
        if self._encode_resend is not None and self._attempts > 1:
            self._messages, self._encode_resend = (self._encode_resend(),), None

    def attempt_deadline(self, now: float) -> float:
        """Return the deadline of an attempt that starts now."""
        return now + (self.deadline - now) / 2 if self._divides else self.deadline

    def encode_request(self, now: float, sequence_id: int) -> bytes:
        """Encode the request for all pending messages. The proxy gets slightly less time than the job has."""
        if self._first_at is None:
            self._first_at = now
        left_ms = max(0.0, self.attempt_deadline(now) - now) * 1000
        timeout_ms = max(1, int(left_ms - min(50.0, left_ms / 10)))
        pending = self._numbered_messages() if self._numbers else [self._messages[at] for at in self._pending]
        head = frames.call_head(self.method, sequence_id)
        return frames.build_frame((head, *self._encode_args(pending, timeout_ms)))

    def take_results(self, node: Node, results: Sequence[SendResult], elsewhere: bool) -> CallVerdict:
        """Record a proxy's results for the pending messages; return the worst verdict, for the node's health.

        `elsewhere`: whether a proxy in rotation has not been tried by this job.
        """
        if len(results) != len(self._pending):
            text = f"proxy answered {len(results)} results for {len(self._pending)} messages"
            return self.take_failure(node, CallVerdict.LOST, text, elsewhere)
        worst, not_stored = CallVerdict.STORED, []
        recognises_numbers: bool | None = None
        recognises_keys: bool | None = None
        for at, result in zip(self._pending, results, strict=True):
            verdict = verdicts.of_code(result.code)
            result.proxy = node.name
            self.results[at] = result
            if verdict is not CallVerdict.STORED:
                not_stored.append((at, verdict, result))
                if worst is not CallVerdict.LEAVING:
                    worst = verdict
            elif at in self._keyed:
                recognises_keys = self._infer_recognition(recognises_keys, result)
            elif self._numbers is not None:
                recognises_numbers = self._infer_recognition(recognises_numbers, result)
        if recognises_numbers is not None:
            node.recognises = recognises_numbers
            self._recognised = recognises_numbers and self._recognised is not False
        if recognises_keys is not None:
            node.recognises_keys = recognises_keys
            self._keys_recognised = recognises_keys and self._keys_recognised is not False
        self._pending = [
            at
            for at, verdict, result in not_stored
            if self._record_error(at, verdict, in_arguments(result.text), result.code, node.name, elsewhere)
        ]
        return worst

    def take_failure(self, node: Node, verdict: CallVerdict, text: str, elsewhere: bool) -> CallVerdict:
        """Record an attempt that ended without results: `verdict` applies to all pending messages."""
        self._pending = [
            at for at in self._pending if self._record_error(at, verdict, text, None, node.name, elsewhere)
        ]
        return verdict

    def give_up(self, error: SendError) -> None:
        """End the job: each pending message without a better error gets `error`."""
        for at in self._pending:
            if self.results[at] is _UNTRIED:
                self.results[at] = result_of(error)
        self._pending = ()

    def next_wait(self, now: float, elsewhere: bool) -> float | None:
        """Return the seconds until the next attempt; None if the job is completed."""
        if not self._pending:
            return None
        wait = 0.0 if elsewhere else self._next_backoff()
        if self._attempts >= self._policy.attempts_max or now + wait >= self.deadline:
            self._pending = ()
            return None
        return wait

    def end(self) -> None:
        """Release the sequence numbers of the messages, because none of them will be resent. Must be called
        however the job ends."""
        if self._sequences is not None and self._numbers is not None:
            self._sequences.give_back(self._numbers)
            self._numbers = None

    def _encode_args(self, pending: Sequence[bytes], timeout_ms: int) -> tuple[bytes, ...]:
        if self._batch:
            return frames.many_messages_args(pending, timeout_ms)
        return frames.one_message_args(pending[0], timeout_ms)

    def _numbered_messages(self) -> list[bytes]:
        assert self._sequences is not None
        assert self._numbers is not None
        first, keyed, messages = self._numbers.start, self._keyed, self._messages
        producer, below = self._sequences.producer, frames.answered_below(self._sequences.lowest)
        with_number, maybe_stored = frames.with_number, self._maybe_stored
        if not maybe_stored:
            return [
                messages[at] if at in keyed else with_number(messages[at], producer, first + at, below)
                for at in self._pending
            ]
        resent = frames.under_way(below, self._under_way_ms())
        return [
            messages[at]
            if at in keyed
            else with_number(messages[at], producer, first + at, resent if at in maybe_stored else below)
            for at in self._pending
        ]

    def _under_way_ms(self) -> int:
        """Return the milliseconds from the first request to the deadline; a proxy must not assume less."""
        assert self._first_at is not None
        return max(0, ceil((self.deadline - self._first_at) * 1000))

    def _is_resend_safe(self, at: int) -> bool:
        """Return whether resending the message at this index can create no unwanted duplicate."""
        if self._policy.retry_unknown:
            return True
        if at in self._keyed:
            return self._keys_recognised is not False
        return self._recognised is True and self._numbers is not None

    def _any_resend_safe(self) -> bool:
        if self._policy.retry_unknown or (self._numbers is not None and self._recognised):
            return True
        return bool(self._keyed) and any(map(self._is_resend_safe, self._pending))

    @staticmethod
    def _infer_recognition(recognises: bool | None, result: SendResult) -> bool | None:
        """Return whether the proxy recognises resends, from the result of a stored message.

        `recognises`: what earlier results show; None: nothing. The result of a delayed message shows nothing.
        """
        if result.duplicate_code is not None:
            return recognises is not False
        return recognises if result.delayed else False

    def _next_backoff(self) -> float:
        return min(
            self._policy.backoff_first_s * 2.0 ** min(self._attempts - 1, 16), self._policy.backoff_max_s
        )

    def _record_error(
        self, at: int, verdict: CallVerdict, text: str, code: int | None, proxy: str, elsewhere: bool
    ) -> bool:
        """Record an error as the message's result for now; return whether the message may be resent."""
        rule = verdicts.RULES[verdict]
        if rule.error is UnknownOutcomeError:
            self._maybe_stored.add(at)
        if at in self._maybe_stored:
            error: SendError = UnknownOutcomeError(text, code, proxy)
        else:
            error = verdicts.build_error(verdict, text, code, proxy)
        self.results[at] = result_of(error)
        if at in self._maybe_stored and not self._is_resend_safe(at):
            return False
        if rule.resend is ResendTarget.ELSEWHERE:
            return elsewhere
        return rule.resend is not ResendTarget.NEVER


def result_of(error: SendError) -> SendResult:
    """Return a SendResult that carries an error."""
    result = SendResult()
    result.code = -1 if error.code is None else error.code
    result.text, result.proxy, result.error = error.text, error.proxy, error
    return result


_UNTRIED = result_of(NotStoredError("not sent: no attempt was made in time"))
