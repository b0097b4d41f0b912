"""Prepare sends before anything goes to a socket, for both producers, the blocking and the asyncio one."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from threading import Lock
from typing import NamedTuple
from uuid import uuid4

from ddmq_client.core import frames
from ddmq_client.core.pipeline import HURRY_SHARE, has_level, needs_own_request, split_batches
from ddmq_client.core.selectors import make_placer
from ddmq_client.core.sending import SEND_DELAYED, SendJob, result_of
from ddmq_client.core.sequences import Sequences
from ddmq_client.core.settings import TIMEOUT_MS_MAX, ProducerSettings, check, check_text
from ddmq_client.core.transactions import EndJob, PrepareJob
from ddmq_client.delays import DelayResult, When
from ddmq_client.errors import InvalidMessageError, OptionError
from ddmq_client.idl.codes import FRAME_BYTES_MAX, Code, DelayAction, TransactionAction
from ddmq_client.outgoing import OutgoingMessage, SendResult, describe_no_message, has_key
from ddmq_client.serializers.bodies import serialize_message
from ddmq_client.transactions import with_due_time
from ddmq_client.wire.producing import encode_change, encode_delayed, encode_message
from ddmq_client.wire.transactions import end_request, prepare_request

SEND_ONEWAY = b"sendOneway"
PRODUCER_ID_BYTES = 16
Member = tuple[int, bytes]  # index in the application's list, encoded message


class BatchPlan(NamedTuple):
    """A list of messages split into requests. Messages that cannot be sent already have a result."""

    results: list[SendResult]
    requests: list[list[Member]]
    keyed: Collection[int]  # in the application's list: which have a key

    def fill_results(self, request: list[Member], results: Sequence[SendResult]) -> None:
        """Store a request's results at the positions of its messages."""
        for (at, _), result in zip(request, results, strict=True):
            self.results[at] = result


class Outbox:
    """Checks messages, selects their queues, encodes them and creates send jobs."""

    def __init__(self, settings: ProducerSettings) -> None:
        self.settings = settings
        self._select_queue = make_placer(settings.selector)
        self._policy = settings.resend_policy()
        self._sequences = Sequences(_new_producer_field, Lock()) if settings.idempotent else None

    def encode(self, message: OutgoingMessage) -> bytes:
        """Encode a message. Raises InvalidMessageError for an invalid one, TypeError for an object of another
        type."""
        settings = self.settings
        try:
            idempotency_key = message.idempotency_key
        except AttributeError:
            raise TypeError(describe_no_message(message)) from None
        if idempotency_key is not None:
            check_text("idempotency_key", idempotency_key)
        placement = self._select_queue(message)
        if settings.serializer is not None:
            message = serialize_message(settings.serializer, message)
        return encode_message(message, placement, settings.client_id, settings.producer_group)

    def timeout_s(self, timeout_ms: int | None) -> float:
        """Return the timeout of a call in seconds: `timeout_ms`, or by default the producer's."""
        if timeout_ms is None:
            return self.settings.timeout_ms / 1000
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        return timeout_ms / 1000

    def job_of_message(self, message: OutgoingMessage, deadline: float) -> SendJob:
        """Create the job that sends one message."""
        encoded = self.encode(message)
        return self.build_job([encoded], deadline, _ALL_OF_ONE if has_key(message) else ())

    def job_of_request(self, plan: BatchPlan, request: list[Member], deadline: float) -> SendJob:
        """Create the job of one request of a plan."""
        keyed = [n for n, (at, _) in enumerate(request) if at in plan.keyed] if plan.keyed else ()
        return self.build_job([data for _, data in request], deadline, frozenset(keyed))

    def build_job(self, encoded: Sequence[bytes], deadline: float, keyed: Collection[int] = ()) -> SendJob:
        """Create the job of one request (sendSync or sendBatch).

        `keyed`: the messages that have an idempotency key.
        """
        sequences = self._sequences if len(keyed) < len(encoded) else None
        batch = len(encoded) > 1
        return SendJob(encoded, batch, deadline, self._policy, sequences=sequences, keyed=keyed)

    def job_of_delay(self, message: OutgoingMessage, when: When, deadline: float) -> SendJob:
        """Create the job of a delayed message.

        Its uuid is fixed here, so that a resend creates no second one.
        """
        if message.idempotency_key is not None:
            raise OptionError(
                f"idempotency_key={message.idempotency_key!r} of a delayed message; allowed: None. By an id"
                " of its own it is added once, however often it is sent again"
            )
        placement, client_id = self._select_queue(message), self.settings.client_id
        if self.settings.serializer is not None:
            message = serialize_message(self.settings.serializer, message)
        encoded, encode_resend = encode_delayed(message, placement, client_id, str(uuid4()), when)
        return self._repeatable_job(encoded, deadline, encode_resend)

    def job_of_change(
        self, action: DelayAction, delay: str | SendResult, topic: str | None, deadline: float,
        when: When | None = None,
    ) -> SendJob:  # fmt: skip
        """Create the job that changes a delayed message; repeating it has no further effect. `topic`: where
        it will be delivered; None: not known, or in the result of its send."""
        delay_id = delay.delay_id if isinstance(delay, SendResult) else delay
        if topic is None and isinstance(delay, DelayResult):
            topic = delay.topic
        if not isinstance(delay_id, str) or not delay_id:
            raise OptionError(f"{delay!r} names no delayed message; allowed: the delay_id of a delayed send")
        return self._repeatable_job(
            encode_change(action, delay_id, topic, self.settings.client_id, when), deadline
        )

    def job_of_prepare(
        self,
        transaction_id: str,
        messages: Sequence[OutgoingMessage],
        deadline: float,
        check_after_ms: int | None,
        when: When | None = None,
    ) -> PrepareJob:
        """Create the job that stores messages of a transaction, all in one request."""
        group, client_id = self._get_group(), self.settings.client_id
        request = prepare_request(transaction_id, group, client_id, check_after_ms, when is not None)
        encoded = [self.encode(with_due_time(message, when)) for message in messages]
        size = sum(map(len, encoded))
        if size + len(request) > FRAME_BYTES_MAX - frames.HEAD_BYTES_MAX:
            what = f"{len(encoded)} messages of {size} bytes with all fields"
            allowed = f"about {FRAME_BYTES_MAX} with the call around them"
            raise InvalidMessageError(f"{what}; allowed: {allowed}", Code.ILLEGAL_MESSAGE)
        keyed = frozenset(at for at, message in enumerate(messages) if has_key(message))
        sequences = self._sequences if len(keyed) < len(encoded) else None
        return PrepareJob(request, encoded, deadline, self._policy, sequences, keyed)

    def end(
        self,
        transaction_id: str,
        action: TransactionAction,
        through_offset: int | None,
        deadline: float,
        check: int | None = None,
        messages: int | None = None,
    ) -> EndJob:
        """Create the job that ends a transaction, or answers a check.

        `messages`: the number of messages, stated in a commit.
        """
        group, client_id = self._get_group(), self.settings.client_id
        request = end_request(transaction_id, group, client_id, action, through_offset, check, messages)
        return EndJob(request, deadline, self._policy)

    def _get_group(self) -> str:
        assert self.settings.producer_group is not None
        return self.settings.producer_group

    def _repeatable_job(
        self, encoded: bytes, deadline: float, encode_resend: Callable[[], bytes] | None = None
    ) -> SendJob:
        policy = self._policy._replace(retry_unknown=True)
        return SendJob([encoded], False, deadline, policy, SEND_DELAYED, encode_resend)

    def plan_batch(self, messages: Iterable[OutgoingMessage]) -> BatchPlan:
        """Encode messages and divide them into requests of permitted size.

        A message that asks for a delay level has a request of its own, after all others. One whose properties
        the topic may read as a delay has a request of its own, at its position.
        """
        results: list[SendResult] = []
        requests: list[list[Member]] = []
        together: list[Member] = []
        after: list[list[Member]] = []
        keyed: set[int] = set()
        for at, message in enumerate(messages):
            results.append(_UNSENT)
            try:
                member = (at, self.encode(message))
            except InvalidMessageError as error:
                results[at] = result_of(error)
                continue
            except OptionError as error:  # its queue or shard key: the others do not pay for it
                results[at] = result_of(InvalidMessageError(str(error), Code.ILLEGAL_MESSAGE))
                continue
            if has_key(message):
                keyed.add(at)
            if not needs_own_request(message):
                together.append(member)
            elif has_level(message):
                after.append([member])
            else:
                requests += [*self._split_requests(together), [member]]
                together = []
        return BatchPlan(results, requests + self._split_requests(together) + after, keyed)

    def _split_requests(self, members: list[Member]) -> list[list[Member]]:
        sizes = [len(data) for _, data in members]
        chunks = split_batches(sizes, self.settings.batch_bytes, self.settings.batch_messages)
        return [members[chunk.start : chunk.stop] for chunk in chunks]


def send_alone_at(now: float, timeout_s: float) -> float:
    """Return the time from which a waiting send is sent by itself instead of in a batch."""
    return now + timeout_s - timeout_s / HURRY_SHARE


def oneway_frame(encoded: bytes, sequence_id: int) -> bytes:
    """Encode a oneway request. The server does not answer it."""
    head = frames.call_head(SEND_ONEWAY, sequence_id, frames.ONEWAY)
    return frames.build_frame((head, *frames.one_message_args(encoded, None)))


def _new_producer_field() -> bytes:
    return frames.producer_field(secrets.token_bytes(PRODUCER_ID_BYTES))


_ALL_OF_ONE = frozenset((0,))
_UNSENT = SendResult()
