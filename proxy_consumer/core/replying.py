"""Acknowledgements that carry messages: what may be committed, and what follows when it was, or was not.

`take_up` gives the one who holds a message's lease the right to finish it together with other messages, which
are its *replies*; `finish_taken_up` and `put_down` are the two ends. In between nobody else has it: its lease
does not run out, its results are late, its chain waits (leases.py).

An answer that was lost is asked for again: `Replied` remembers the newest, and `reply_id` is the id that a
reply has wherever it is found.
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
RESULTS_MAX = 50_000  # of theirs together
ID_BYTES = 16


class AckTaking(Enum):
    """The result of taking a message up for an acknowledgement. The value is what it means."""

    TAKEN_UP = "its lease holds; it may be committed"
    BUSY = "it is taken up already"
    OVER = "its lease is over, and the message is not finished"
    FINISHED = "the message is finished"


def take_up(queue: SubscribedQueue, offset: int, lease_id: int) -> AckTaking:
    """Take a message up for whoever has it under this lease."""
    if queue.ack_map.is_finished(offset):
        return AckTaking.FINISHED
    pending = queue.leases.taken_up.get(offset)
    if pending is not None and pending.lease.id == lease_id:
        return AckTaking.BUSY
    return AckTaking.TAKEN_UP if queue.leases.take_up(offset, lease_id) else AckTaking.OVER


def finish_taken_up(queue: SubscribedQueue, offset: int) -> Lease:
    """Finish a message whose finish is durable, with its replies; return the lease it was finished under."""
    pending = queue.leases.put_down(offset)
    queue.drop_adopted(offset, offset + 1)
    queue.on_published(offset, acked=True)
    return pending.lease


def put_down(queue: SubscribedQueue, offset: int) -> None:
    """Undo `take_up`: nothing was stored, and what happened meanwhile takes effect now."""
    pending = queue.leases.put_down(offset)
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
    """Which acknowledgement it is: of which message, by whom."""

    group: str
    queue: QueueRef
    offset: int
    lease_id: int


class KnownReply(NamedTuple):
    """An earlier acknowledgement of a message: its lease, and the wire's results that were answered."""

    lease_id: int
    results: Sequence[Any]


class Replied:
    """The newest acknowledgements that carried replies."""

    def __init__(self, count_max: int = REMEMBERED_MAX, results_max: int = RESULTS_MAX) -> None:
        self._count_max = count_max
        self._results_max = results_max
        self._results = 0
        self._known: OrderedDict[tuple[str, QueueRef, int], KnownReply] = OrderedDict()

    def note_reply(self, ack: Ack, results: Sequence[Any]) -> None:
        """Remember an acknowledgement that was stored."""
        before = self._known.pop(ack[:3], None)
        self._known[ack[:3]] = KnownReply(ack.lease_id, results)
        self._results += len(results) - (0 if before is None else len(before.results))
        while len(self._known) > self._count_max or self._results > self._results_max:
            self._results -= len(self._known.popitem(last=False)[1].results)

    def earlier_reply(self, ack: Ack) -> KnownReply | None:
        """Return how a message was acknowledged; None: not known here (any more)."""
        return self._known.get(ack[:3])


def reply_id(ack: Ack, place: int) -> bytes:
    """The message id of the reply at `place`: the same each time, and no other acknowledgement's."""
    name = "\0".join(map(str, (ack.group, *ack.queue, ack.offset, ack.lease_id, place)))
    return blake2b(name.encode(), digest_size=ID_BYTES, person=b"reply").digest()
