"""Where a message that was read goes: into an answer, or into its chain to wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from proxy_consumer.core.order.chains import Chain
from proxy_consumer.core.order.merge import ReadAhead, Row
from proxy_consumer.core.order.queue_stream import ReadyMessage, ScopeLedger


def place(
    ledger: ScopeLedger,
    rows: Iterable[Row],
    ahead: Sequence[ReadAhead],
    lying: deque[ReadyMessage],
    enough: int,
) -> int:
    """Place rows in the order of merge.py, until `enough` are `lying` ready: how many were placed.

    Most messages have a key that is free; for them this loop is all there is. Messages without a key are
    counted and delivered without order; heads of keys set aside are parked.
    """
    table, parked, seen = ledger.table, ledger.parked_keys, 0
    chains, message = table.chains, tuple.__new__
    for _, number, offset, delivery, index in rows:
        part = ahead[number]
        seen += 1
        key = part.key_of(delivery)
        if parked or part.faulty or part.out or key is None:
            _place_with_care(ledger, part, ReadyMessage(offset, delivery, part.batch, index, None), key)
        elif key not in chains:
            part.busy[offset] = chain = chains[key] = Chain(key, part.stream, offset)
            part.ready.append(message(ReadyMessage, (offset, delivery, part.batch, index, chain)))
        elif (found := table.arrive(key, part.stream, offset)) is not None:
            part.busy[offset] = found
            part.ready.append(message(ReadyMessage, (offset, delivery, part.batch, index, found)))
        if len(lying) >= enough:
            break
    return seen


def _place_with_care(ledger: ScopeLedger, part: ReadAhead, message: ReadyMessage, key: str | None) -> None:
    """One message, with all that may be out of the ordinary about it."""
    offset, jobs = message.offset, part.state.jobs
    faulty = offset in part.faulty
    part.faulty.discard(offset)  # whoever waits is judged again when its turn comes
    if key is None:
        part.stream.unkeyed.value += 1
    else:
        chain = ledger.table.arrive(key, part.stream, offset)
        if chain is None:
            return
        part.busy[offset] = chain
        if offset in part.out:
            chain.open = False
        elif key in ledger.parked_keys:
            jobs.park(offset)
            return
        message = message._replace(chain=chain)
    if offset in part.out:
        part.out.discard(offset)  # a client has it
    elif faulty:
        jobs.table.release(offset)  # read again, judged again, and failed there
    else:
        part.ready.append(message)
