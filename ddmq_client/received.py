"""The messages that a consumer receives, and the calls by which the application settles them.

Every message is settled once: acked, skipped, failed or handed back; later calls return False and change
nothing. What is settled travels to the proxy with the next pull, or by itself when no pull comes soon. A
message that is not settled before the group's ack time-out is given to some consumer again (`extend` starts
that time anew). All methods may be called from any thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.errors import ClientError
from ddmq_client.replies import Replies
from ddmq_client.serializers import Serializer

RETRY_QUEUE = "%RETRY%"  # in the names of queues of the retry path
REASON_CHARS_MAX = 200  # of a fail's reason; the rest is cut
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
DEAD_LETTER = -2  # in place of a delay
FAIL_DELAY_MS_MAX = 7 * 24 * 3600 * 1000


class Outcome(Enum):
    """The outcome of processing a message."""

    ACKED = "acked"
    SKIPPED = "skipped"
    FAILED = "failed"
    HANDED_BACK = "handed back"


def queue_number(name: str) -> int:
    """Return the number of a queue: the end of its name on the wire.

    A queue of the retry path belongs to no topic: its number is -1.
    """
    number = name.rpartition("_")[2]
    return int(number) if number.isdecimal() and RETRY_QUEUE not in name else -1


def message_position(topic: str, queue: str, offset: int) -> str:
    """Return the message's position as the text TOPIC/QUEUE/OFFSET. Commands show it in this form.

    For a queue of the retry path, with its complete name.
    """
    number = queue_number(queue)
    return f"{topic}/{queue if number < 0 else number}/{offset}"


class Origin(NamedTuple):
    """The source of received messages. The proxy expects it back with their results."""

    group: str
    topic: str
    queue: str


class LateResult(NamedTuple):
    """An acknowledgement or failure that did not count, because the message's lease had ended.

    The message was or will be delivered to a consumer again; `finished`: it is done meanwhile. `queue` is the
    wire name of the queue, until the next release: use `queue_id`.
    """

    group: str
    topic: str
    queue: str
    offset: int
    finished: bool

    @property
    def queue_id(self) -> int:
        """The number of the queue; -1 for one of the retry path."""
        return queue_number(self.queue)


class Settling(Protocol):
    """Receives the outcomes of messages, from any thread.

    `inline`: whether `reply` returns without being awaited.
    """

    inline: bool

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
        """Record the outcome of a message: acked, skipped or failed."""

    def extend(self, message: Message) -> bool:
        """Extend the lease of a message."""

    def hand_back(self, message: Message) -> bool:
        """Return a message to the proxy, for other consumers."""

    def reply(self, message: Message, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        """Acknowledge a message and send others, in one commit; return their results, or raise."""


class NothingToSettle:
    """The settling of messages fetched by offset: they have no lease and are not acknowledged singly."""

    inline = True

    def settle(self, message: Message, outcome: Outcome, delay_ms: int | None, reason: str) -> bool:
        """Record the outcome of a message: acked, skipped or failed."""
        return False

    def extend(self, message: Message) -> bool:
        """Extend the lease of a message."""
        return False

    def hand_back(self, message: Message) -> bool:
        """Give a message back, for other consumers."""
        return False

    def reply(self, message: Message, messages: Sequence[bytes], timeout_ms: int | None) -> Any:
        """Acknowledge a message and send others, in one commit; return their results, or raise."""
        raise ClientError("a message that was fetched by offset is not acknowledged, and carries no replies")


class DeliveryContext:
    """The data that the messages of one answer share: their origin, and the receiver of their outcomes.

    `lease_s`: the duration of the lease and of each extension. `lease_stated`: whether the proxy has stated
    it. `created_at`: the wall-clock time of the arrival, in epoch seconds.
    """

    __slots__ = ("arrived_at", "created_at", "lease_s", "lease_stated", "origin", "settling", "source")

    def __init__(
        self,
        origin: Origin,
        arrived_at: float,
        source: Any,
        settling: Settling,
        lease_s: float = math.inf,
        lease_stated: bool = False,
    ) -> None:
        self.lease_s = lease_s
        self.lease_stated = lease_stated
        self.origin = origin
        self.arrived_at = arrived_at  # monotonic seconds
        self.created_at = time.time()
        self.source = source  # what brought it
        self.settling = settling


class Message:
    """One delivered message. Attributes are read only.

    body          bytes as sent
    value         the body as converted by the consumer's serializer; None without one
    key, tags     text; None or empty if absent
    properties    text to text, without the reserved names
    offset        index in its queue
    message_id    the id assigned when it was sent; None from old proxies, like all fields below
    attempt       1 for the first delivery
    born_ms       when a producer proxy accepted it, in epoch milliseconds
    stored_ms     when it was stored, in epoch milliseconds
    next_offset   the queue's next offset at delivery: next_offset - offset - 1 messages follow this one
    lease_id      the right to settle this delivery
    lost          the proxy has reported that the lease has ended: another consumer gets the message
    """

    # Class attributes are the defaults of fields that were absent on the wire.
    key: str | None = None
    body: bytes = b""
    tags: str | None = None
    offset: int = 0
    properties: Mapping[str, str] = _NO_PROPERTIES
    message_id: str | None = None
    lease_id: int | None = None
    attempt: int | None = None
    born_ms: int | None = None
    stored_ms: int | None = None
    next_offset: int | None = None
    outcome: Outcome | None = None  # None until settled
    replying: bool = False  # its acknowledgement is under way, with messages
    lost: bool = False
    value: Any = None
    serializer: Serializer | None = None  # the consumer's, for its replies
    extended_at: float | None = None  # monotonic seconds of the last extension
    delivery: DeliveryContext

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        return self.delivery.origin.topic

    @property
    def queue_id(self) -> int:
        """The number of the message's queue, as `SendResult.queue_id`; -1 if it comes from the retry path."""
        return queue_number(self.delivery.origin.queue)

    @property
    def position(self) -> str:
        """The unique position TOPIC/QUEUE/OFFSET of this message, as commands and logs show it."""
        return message_position(self.topic, self.delivery.origin.queue, self.offset)

    @property
    def queue(self) -> str:
        """The wire name of the message's queue, until the next release: use `queue_id`."""
        return self.delivery.origin.queue

    @property
    def group(self) -> str:
        """The consumer group that the message was delivered to."""
        return self.delivery.origin.group

    @property
    def expires_at(self) -> datetime | None:
        """The time when the lease ends, in UTC; it is extended while a handler runs. None without a lease."""
        delivery = self.delivery
        if delivery.lease_s == math.inf:
            return None
        valid_s = get_lease_end(self) - delivery.arrived_at
        return datetime.fromtimestamp(delivery.created_at, UTC) + timedelta(seconds=valid_s)

    def text(self) -> str:
        """Return the body decoded as UTF-8. Raises UnicodeDecodeError (a ValueError)."""
        return self.body.decode("utf-8")

    def ack(self) -> bool:
        """Acknowledge the message.

        Returns False if it was settled before, or its lease has ended as far as this client knows. In the
        latter case the acknowledgement is still sent, and the proxy reports later whether it counted: if not,
        the consumer's `on_late` is called, and `counts().late` counts it.
        """
        return self._settle(Outcome.ACKED)

    def skip(self) -> bool:
        """Acknowledge the message without processing it; skips are counted separately.

        Returns False as `ack` does.
        """
        return self._settle(Outcome.SKIPPED)

    @explain_arguments("docs/retries.md")
    def fail(self, delay_ms: int | None = None, reason: object = None) -> bool:
        """Fail the message: it is delivered again, after `delay_ms` (0 to 7 days) or the group's interval.

        `reason`, text or an exception, is shown with a blocked key and in the dead letter. A message that has
        failed too often becomes a dead letter. Returns False as `ack` does.
        """
        if delay_ms is not None and not (type(delay_ms) is int and 0 <= delay_ms <= FAIL_DELAY_MS_MAX):
            is_reason = isinstance(delay_ms, (str, BaseException))
            hint = "; for a reason: fail(reason=...)" if is_reason else ""
            raise ValueError(
                f"delay_ms={delay_ms!r} is not a whole number from 0 to {FAIL_DELAY_MS_MAX}{hint}"
            )
        return self._settle(Outcome.FAILED, delay_ms, reason_text(reason))

    def dead_letter(self, reason: object = None) -> bool:
        """Move the message to the group's dead-letter topic at once. Returns False as `ack` does."""
        return self._settle(Outcome.FAILED, DEAD_LETTER, reason_text(reason))

    def extend(self) -> bool:
        """Extend the lease of the message; return False if it is settled or has no lease."""
        return self.delivery.settling.extend(self)

    def hand_back(self) -> bool:
        """Return the message for other consumers.

        Returns False and changes nothing if it is settled, or cannot be returned (to an older proxy, or in a
        broadcast).
        """
        return self.delivery.settling.hand_back(self)

    def replies(self, timeout_ms: int | None = None) -> Replies:
        """Return a block in which messages are sent that become visible together with the acknowledgement of
        this one: `with message.replies() as tx: tx.send(...)` (`async with` in an asyncio consumer).

        Leaving the block acknowledges and sends in one commit, within `timeout_ms` (the consumer's); an
        exception does neither. Raises InvalidMessageError, NoSuchTopicError, NotStoredError (nothing is
        stored), LeaseOverError (nothing is stored, and another consumer gets the message) or
        UnknownOutcomeError. Let these errors leave the handler: the message fails then, which changes
        nothing if everything was stored after all.
        """
        return Replies(self, self.delivery.settling, timeout_ms, self.serializer)

    def _settle(self, outcome: Outcome, delay_ms: int | None = None, reason: str = "") -> bool:
        return self.delivery.settling.settle(self, outcome, delay_ms, reason)

    def __repr__(self) -> str:
        return f"Message({self.position}, key={self.key!r}, {len(self.body)} bytes, attempt={self.attempt})"


def get_lease_start(message: Message) -> float:
    """Return the time when the message's lease began or was last extended, in monotonic seconds."""
    return message.delivery.arrived_at if message.extended_at is None else message.extended_at


def get_lease_end(message: Message) -> float:
    """Return the time when the message's lease ends, in monotonic seconds; infinite without a lease."""
    return get_lease_start(message) + message.delivery.lease_s


class FetchedQueue(NamedTuple):
    """The messages of one queue from a low-level fetch; the next fetch begins at `next_offset`.

    A RangeReader also gets the queue's bounds after the read: its oldest readable offset and the offset of
    the next message. `queue` is the wire name of the queue, `queue_id` its number.
    """

    topic: str
    queue: str
    next_offset: int
    messages: Sequence[Message]
    first_offset: int | None = None
    end_offset: int | None = None

    @property
    def queue_id(self) -> int:
        """The number of the queue, as `SendResult.queue_id`."""
        return queue_number(self.queue)


def fetched_here(fetched: FetchedQueue, group: str, now: float) -> None:
    """Set the origin and the arrival time of messages that were fetched by offset."""
    origin = Origin(group, fetched.topic, fetched.queue)
    delivery = DeliveryContext(origin, now, None, NothingToSettle())
    for message in fetched.messages:
        message.delivery = delivery


def reason_text(reason: object) -> str:
    """Convert a reason into one line of at most 200 characters that UTF-8 can encode; None becomes ""."""
    if reason is None:
        return ""
    text = _text_of(reason)[: 4 * REASON_CHARS_MAX]
    if isinstance(reason, BaseException):
        text = f"{type(reason).__name__}: {text}" if text else type(reason).__name__
    line = " ".join(text.split())[:REASON_CHARS_MAX]
    return line.encode(errors="backslashreplace").decode()[:REASON_CHARS_MAX]


def _text_of(reason: object) -> str:
    try:
        return str(reason)
    except Exception:  # the application's own __str__
        return "(its text cannot be read)"
