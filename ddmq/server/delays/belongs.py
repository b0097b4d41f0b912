"""Does a delay store belong to this log?

A store knows its messages by the offsets of their orders in the log, and what has fired is kept in the log by
those offsets. Beside another log messages would be taken for fired, or others for known, and be lost; also
beside a log that a restore began, where the same orders stand in another sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from backend.port import Backend
from backend.records import Bounds, QueueRef
from ddmq_common.delays.command import COMMAND_PROPERTY
from ddmq_common.names import DELAY_TOPIC
from delay_service.core.decider import INGESTED
from delay_service.ingest import taken_in
from delay_service.store.port import DelayStore, DueKey, Pending, Scan

PAGE = 500
PAGE_BYTES = 4 << 20
LOOKED_AT_MAX = 2_000  # messages of a shard whose orders are looked for
WAIT_S = 30.0
FOREVER_MS = 1 << 62


def foreign(store: DelayStore, number: int, backend: Backend) -> str | None:
    """Why the store of this shard does not belong to the log; None: it does, as far as can be told."""
    info = backend.topic(DELAY_TOPIC)
    known_to = taken_in(store.meta(INGESTED)) or 0
    queue = None if info is None or number >= info.queues else QueueRef(info.name, info.incarnation, number)
    bounds = Bounds(0, 0) if queue is None else backend.bounds([queue]).wait(WAIT_S)[0] or Bounds(0, 0)
    if known_to > bounds.next:
        return f"shard {number} has taken in {known_to} orders, the log has {bounds.next}"
    if queue is None:
        return None
    for message in islice(chain.from_iterable(pages(store)), LOOKED_AT_MAX):
        if bounds.min <= message.offset and _is_another(message, queue, backend):
            return f"order {message.offset} of shard {number} is another one in the log"
    return None


def pages(store: DelayStore, bytes_max: int = PAGE_BYTES) -> Iterator[list[Pending]]:
    """All that wait, by due time, some at a time: so many bytes of bodies, and one message more."""
    after: DueKey | None = None
    while page := store.scan(Scan(None, 0, FOREVER_MS, PAGE, after, bytes_max)):
        yield page
        after = page[-1].key


def _is_another(message: Pending, queue: QueueRef, backend: Backend) -> bool:
    """False also where the order was damaged, or retention takes it meanwhile."""
    batch = backend.read(queue, message.offset, 1, 1).wait(WAIT_S)
    found = [one.message_id for one in batch.carried(COMMAND_PROPERTY) if one.offset == message.offset]
    return bool(found) and found[0] != message.message_id
