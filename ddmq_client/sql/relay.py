"""OutboxRelay: sends the messages of an outbox table, in order and once.

    with OutboxRelay(lambda: sqlite3.connect("shop.db"), outbox, producer) as relay:
        serve_forever()

The relay reads the oldest rows and sends the messages of each chain (messages that keep their order) one at a
time. It deletes a row when its message is stored. If the relay is interrupted before that, the message is
sent again. The row's name is its idempotency key, so the proxies recognise the duplicate. For the same
reason, two relays can share one table: each sends a chain in order, and only the first attempt of a message
is stored.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from ddmq_client.core.settings import check
from ddmq_client.errors import ClosedError, InvalidMessageError, NoSuchTopicError, OptionError
from ddmq_client.idl.codes import Code
from ddmq_client.outgoing import SendResult
from ddmq_client.producer import Producer
from ddmq_client.sql.outbox import OutboxRow, OutboxTable
from ddmq_client.sql.statements import check_connect, open_transaction

_log = logging.getLogger("ddmq_client.sql")
READ_MAX, READ_BYTES_MAX = 1_000, 16 * 1024 * 1024  # rows, and their bodies, at a time
READS_MAX = 16  # past deferred rows, before the oldest rows are read again
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 5.0
CLOSE_S = 10.0
CLOSED = "is not writable"  # in the rejection of a topic that accepts no messages for now
NO_KEYS = "cannot tell whether it was stored before"  # in the rejection of a key by an engine without keys


@dataclass(slots=True)
class RelayCounts:
    """Counters of a relay since its start."""

    sent: int = 0
    known: int = 0  # of these, stored before: by an attempt whose outcome was lost
    refused: int = 0  # rejected for good: they stay in the table, with the reason
    failed: int = 0  # unconfirmed attempts, which are repeated

    def copy(self) -> RelayCounts:
        """Return an independent copy of the counters."""
        return replace(self)


class OutboxRelay:
    """Sends the messages of an outbox from its own thread, between `start` and `stop` or in a `with` block.

    connect   makes a connection: DB-API, or SQLAlchemy's Connection or Session (`engine.connect`)
    outbox    the table
    producer  sends the messages; the application closes it, after the relay. Its `idempotent` makes no
              difference here
    poll_ms   how often an empty table is polled; `wake` polls at once
    once      messages have an idempotency key. False for an engine that knows none (Kafka with
              `store_once: none`): what may be stored is sent again, so it may come twice; an InboxTable
              knows it by property `outbox-id`
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        outbox: OutboxTable,
        producer: Producer,
        *,
        poll_ms: int = 200,
        once: bool = True,
    ) -> None:
        """Check the arguments. Raises OptionError."""
        check_connect(connect)
        check("poll_ms", poll_ms, 1, 600_000)
        if producer.has_serializer:
            raise OptionError("the relay's producer has a serializer; allowed: None, as the rows have bodies")
        self._connect = connect
        self._outbox = outbox
        self._producer = producer
        self._poll_s = poll_ms / 1000
        self._once = once
        self._counts = RelayCounts()
        self._due = threading.Event()
        self._stopped = False
        self._failures = 0
        self._left_at = 0  # the row at which the last call stopped: nearly all rows up to it are deferred
        self._thread: threading.Thread | None = None

    def counts(self) -> RelayCounts:
        """Return a copy of the counters."""
        return self._counts.copy()

    def start(self) -> None:
        """Start sending; may be called again after `stop`."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ddmq-outbox-relay", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Poll the table at once; call it after a commit that added messages."""
        self._due.set()

    def stop(self, timeout_s: float = CLOSE_S) -> bool:
        """Stop sending; return False if the send in progress did not end in time.

        Messages that remain are sent after the next start.
        """
        self._stopped = True
        self._due.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def send_waiting(self) -> int:
        """Send the waiting messages in the calling thread; return how many were stored.

        Returns when no message is left, or one was not confirmed: call it again later. A message that proxies
        deferred delays only those after it in its chain.
        """
        total = after = reads = 0
        deferred: set[str] = set()
        while not self._stopped and reads < READS_MAX:
            with open_transaction(self._connect) as database:
                rows = self._outbox.waiting(database, READ_MAX, READ_BYTES_MAX, after)
                for row in rows:
                    if row.error:
                        self._reject_row(database, row, row.error)
            outcome = self._send([row for row in rows if not row.error and row.chain not in deferred])
            total += outcome.stored
            deferred |= outcome.deferred
            if not rows or not outcome.all_deferred:
                break
            if deferred:
                after, reads = max(rows[-1].row, self._left_at), reads + 1
        self._left_at = after if reads >= READS_MAX else 0
        return total

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped:
            self._due.clear()
            failed = self._counts.failed
            try:
                self.send_waiting()
                failing = self._counts.failed > failed
            except (ClosedError, OptionError) as error:
                _log.error("the outbox relay ends: %s", error)
                return
            except Exception:
                failing = True
                if not self._failures:
                    _log.exception("the outbox relay failed; it goes on")
            self._failures = self._failures + 1 if failing else 0
            self._due.wait(self._pause_s())

    def _pause_s(self) -> float:
        if not self._failures:
            return self._poll_s
        return min(PAUSE_FIRST_S * 2.0 ** min(self._failures - 1, 10), PAUSE_MAX_S)

    def _send(self, rows: Sequence[OutboxRow]) -> _Pass:
        chains: dict[str, deque[OutboxRow]] = {}
        for row in rows:
            chains.setdefault(row.chain, deque()).append(row)
        stored, all_deferred = 0, True
        deferred: set[str] = set()
        while chains and not self._stopped:
            heads = [chain[0] for chain in chains.values()]
            results = self._producer.send_batch([self._message_of(head) for head in heads])
            with open_transaction(self._connect) as database:
                stored += self._record_results(database, heads, results)
            for head, result in zip(heads, results, strict=True):
                chain = chains[head.chain]
                chain.popleft()
                if not (result.stored or _for_good(result)):
                    deferred.add(head.chain)
                    all_deferred = all_deferred and (result.code in _DEFERRED_CODES or CLOSED in result.text)
                    chain.clear()
                if not chain:
                    del chains[head.chain]
        return _Pass(stored, deferred, all_deferred and not chains)

    def _message_of(self, row: OutboxRow) -> Any:
        return row.message if self._once else replace(row.message, idempotency_key=None)

    def _record_results(self, database: Any, rows: Sequence[OutboxRow], results: Sequence[SendResult]) -> int:
        counts = self._counts
        sent = [row for row, result in zip(rows, results, strict=True) if result.stored]
        self._outbox.sent(database, [row.row for row in sent])
        counts.sent += len(sent)
        for row, result in zip(rows, results, strict=True):
            if self._once and NO_KEYS in result.text:
                raise OptionError(f"once=True, and the proxies say: {result.text}; allowed there: once=False")
            counts.known += result.duplicate
            if _for_good(result):
                self._reject_row(database, row, str(result.error))
            elif not result.stored:
                counts.failed += 1
                if not self._failures:
                    _log.warning("outbox message %s is not sent yet: %s", row.name, result.error)
        return len(sent)

    def _reject_row(self, database: Any, row: OutboxRow, why: str) -> None:
        self._counts.refused += 1
        _log.error("outbox message %s to %s is refused: %s", row.name, row.message.topic, why)
        self._outbox.refuse(database, row.row, why)


class _Pass(NamedTuple):
    """The counts of one pass over some rows of the outbox.

    `stored`: the number of stored messages. `deferred`: the chains that wait. `all_deferred`: whether proxies
    deferred all of these.
    """

    stored: int
    deferred: set[str]
    all_deferred: bool


_DEFERRED_CODES = (Code.BUSY, Code.TOPIC_REFUSED, Code.NO_SUCH_QUEUE)


def _for_good(result: SendResult) -> bool:
    """Return whether proxies will never accept this message.

    This is not so for a topic that was just closed or changed: the engine may reject with 11 or 14 before the
    proxy has seen the change.
    """
    if CLOSED in result.text or result.code == Code.NO_SUCH_QUEUE:
        return False
    return isinstance(result.error, NoSuchTopicError | InvalidMessageError)
