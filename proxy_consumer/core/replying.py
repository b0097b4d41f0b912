"""Acknowledgements that carry messages (replies): which may be committed, and the effects of their commit.

`reserve_message` reserves a leased message for the client that holds its lease, which may then finish it
together with other messages, its *replies*; `finish_reserved` and `end_reservation` end the reservation. In
between the lease does not expire, results of other clients are late, and the chain of the message waits
(leases.py).

A client that lost the response repeats its acknowledgement: `Replied` remembers the newest acknowledgements,
and `reply_id` is the same id for a reply each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b
from typing import Any, NamedTuple

from backend.records import QueueRef
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.subscribed_queue import SubscribedQueue

REMEMBERED_MAX = 10_000  # acknowledgements; of one proxy
RESULTS_MAX = 50_000  # replies in all remembered acknowledgements
ID_BYTES = 16


class ReservationResult(Enum):
    """The result of reserving a message for an acknowledgement; each value describes it in words."""

    RESERVED = "its lease is current; it may be committed"
    BUSY = "it is reserved already"
    LEASE_EXPIRED = "its lease has expired, and the message is not finished"
    FINISHED = "the message is finished"


def reserve_message(queue: SubscribedQueue, offset: int, lease_id: int) -> ReservationResult:
    """Reserve a leased message for an acknowledgement under this lease id."""
    if queue.ack_map.is_finished(offset):
        return ReservationResult.FINISHED
    pending = queue.leases.reserved.get(offset)
    if pending is not None and pending.lease.id == lease_id:
        return ReservationResult.BUSY
    return (
        ReservationResult.RESERVED
        if queue.leases.reserve_message(offset, lease_id)
        else ReservationResult.LEASE_EXPIRED
    )


def finish_reserved(queue: SubscribedQueue, offset: int) -> Lease:
    """Finish a reserved message after its commit succeeded; return the lease that it was finished under."""
    pending = queue.leases.end_reservation(offset)
    queue.drop_adopted(offset, offset + 1)
    queue.on_published(offset, acked=True)
    return pending.lease


def end_reservation(queue: SubscribedQueue, offset: int) -> None:
    """End the reservation of a message whose commit failed; events of the meantime take effect now."""
    pending = queue.leases.end_reservation(offset)
    job = queue.table.jobs.get(offset)
    if queue.ack_map.is_finished(offset):
        return
    if job is not None and job.final:
        queue.dead_letter(offset, job.reason)
    elif pending.turned:
        queue.send_back(offset)
    else:
        queue.leases.add(offset, offset + 1, pending.size, pending.lease)


class Ack(NamedTuple):
    """Identifies an acknowledgement by its message and lease."""

    group: str
    queue: QueueRef
    offset: int
    lease_id: int


class RecordedReply(NamedTuple):
    """An earlier acknowledgement of a message: its lease id, and the Thrift results that were returned."""

    lease_id: int
    results: Sequence[Any]


class Replied:
    """Remembers the newest acknowledgements that carried replies, up to `count_max` of them and `results_max`
    replies."""

    def __init__(self, count_max: int = REMEMBERED_MAX, results_max: int = RESULTS_MAX) -> None:
        self._count_max = count_max
        self._results_max = results_max
        self._results = 0
        self._recorded: OrderedDict[tuple[str, QueueRef, int], RecordedReply] = OrderedDict()

    def record_reply(self, ack: Ack, results: Sequence[Any]) -> None:
        """Remember a stored acknowledgement and its results."""
        before = self._recorded.pop(ack[:3], None)
        self._recorded[ack[:3]] = RecordedReply(ack.lease_id, results)
        self._results += len(results) - (0 if before is None else len(before.results))
        while len(self._recorded) > self._count_max or self._results > self._results_max:
            self._results -= len(self._recorded.popitem(last=False)[1].results)

    def earlier_reply(self, ack: Ack) -> RecordedReply | None:
        """Return the remembered acknowledgement of a message; None if there is none (any more)."""
        return self._recorded.get(ack[:3])


def reply_id(ack: Ack, index: int) -> bytes:
    """Return the message id of an acknowledgement's reply at `index`: unique, and the same at each
    call."""
    name = "\0".join(map(str, (ack.group, *ack.queue, ack.offset, ack.lease_id, index)))
    return blake2b(name.encode(), digest_size=ID_BYTES, person=b"reply").digest()
