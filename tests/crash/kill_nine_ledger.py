"""What must be true after every kill -9, kept as a ledger that hears of every send, delivery and result.

Rules that it checks, each violation a sentence:
* lost: a message whose send was answered 0 is delivered, with the bytes that were sent, at the queue and
  offset that the answer named;
* order: inside one queue a sender's numbers rise with the offsets; messages that come for the first time
  come in offset order within one life of the consumer proxy;
* again: what was acknowledged, with the answer back, is in no answer to a pull sent after that; also
  when another process than the consumer proxy died between delivery and acknowledgement;
* committed: the committed offset passes only messages that a client has said it is done with, or has
  failed often enough for the dead-letter topic;
* dead letters: each message at most once, and only after it was failed often enough.

Pure: no sockets, no clock; times are arguments (monotonic seconds). One lock, as many threads report.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.crash.kit.violations import Violations

Location = tuple[int, int]  # queue, offset


class Body(NamedTuple):
    """What a message says of itself: its sender's number in its queue."""

    sender: int
    queue: int
    number: int
    poison: bool

    def encode(self, padding: bytes) -> bytes:
        kind = b"poison" if self.poison else b"plain"
        return b"%d/%d/%d/%b/%b" % (self.sender, self.queue, self.number, kind, padding)

    @staticmethod
    def decode(data: bytes) -> Body:
        sender, queue, number, kind, _ = data.split(b"/", 4)
        return Body(int(sender), int(queue), int(number), kind == b"poison")


class DeliveredMessage(NamedTuple):
    """One message of one answer."""

    location: Location
    data: bytes


class Ack(NamedTuple):
    """An acknowledgement on its way: of a delivery on a connection of `life`."""

    location: Location
    life: int
    delivery: int  # its number in the ledger


@dataclass
class Counts:
    """For people."""

    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    delivered: int = 0
    redelivered: int = 0
    acks: int = 0
    acks_binding: int = 0
    fails: int = 0
    left_to_time_out: int = 0
    stats_checked: int = 0
    answers_lost: int = 0


@dataclass
class _Queue:
    """One queue as the ledger knows it."""

    data: dict[int, bytes] = field(default_factory=dict)  # offset → body, as first delivered
    latest: dict[int, int] = field(default_factory=dict)  # offset → number of its newest delivery
    acked_at: dict[int, float] = field(default_factory=dict)  # offset → when its binding ack was answered
    ack_sent: set[int] = field(default_factory=set)
    fails_sent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    committed: int = 0
    # first deliveries of this life: when their answers were read, and the highest offset until then
    life: int = -1
    read_at: list[float] = field(default_factory=list)
    highest: list[int] = field(default_factory=list)


class Ledger(Violations):
    """Hears everything; `violations` is empty as long as every promise holds."""

    def __init__(self, fails_to_bury: int) -> None:
        super().__init__()
        self.counts = Counts()
        self.life = 0
        self._fails_to_bury = fails_to_bury
        self._lock = threading.Lock()
        self._queues: dict[int, _Queue] = defaultdict(_Queue)
        self._stored: dict[bytes, Location | None] = {}  # answered 0: body → place, where the answer named it
        self._at: dict[Location, bytes] = {}
        self._received_at: dict[bytes, list[Location]] = defaultdict(list)
        self._may_repeat: set[bytes] = set()
        self._deliveries = 0
        self._uncertain_lives: set[int] = set()

    def violated(self, text: str) -> None:
        super().violated(f"life {self.life}: {text}")

    # --- lives

    def killed(self) -> None:
        """A process was killed: what is answered from now on comes from a new life."""
        with self._lock:
            self.life += 1

    def answer_lost(self, life: int) -> None:
        """A pull failed on the client's side: what it carried may come later, out of order."""
        with self._lock:
            self.counts.answers_lost += 1
            self._uncertain_lives.add(life)

    # --- sends

    def stored(self, data: bytes, location: Location | None) -> None:
        """Answered 0."""
        with self._lock:
            self.counts.sent += 1
            self.counts.acknowledged += 1
            self._stored[data] = location
            if location is not None:
                before = self._at.setdefault(location, data)
                if before != data:
                    self.violated(f"{location} was answered for two messages: {before[:40]!r}, {data[:40]!r}")

    def unknown(self, data: bytes) -> None:
        """No answer, or one that says: perhaps."""
        with self._lock:
            self.counts.sent += 1
            self.counts.unknown += 1
            self._may_repeat.add(data)

    def refused(self) -> None:
        """Certainly not stored."""
        with self._lock:
            self.counts.sent += 1
            self.counts.refused += 1

    # --- deliveries

    def delivered(
        self, messages: Sequence[DeliveredMessage], life: int, sent_at: float, read_at: float
    ) -> list[Ack]:
        """An answer to a pull sent at `sent_at`; gives back what an acknowledgement of each would be."""
        with self._lock:
            acks = [self._one(each, life, sent_at) for each in messages]
            self._check_rising(messages)
            return acks if not messages else self._first_come(messages, acks, life, sent_at, read_at)

    def _one(self, each: DeliveredMessage, life: int, sent_at: float) -> Ack:
        queue, offset = each.location
        progress = self._queues[queue]
        self._deliveries += 1
        self.counts.delivered += 1
        if progress.acked_at.get(offset, sent_at) < sent_at:
            self.violated(f"{each.location} was acknowledged, and came again")
        if self._at.get(each.location, each.data) != each.data:
            self.violated(f"{each.location} holds {each.data[:40]!r}, not what was answered for it")
        if offset in progress.data and progress.data[offset] != each.data:
            self.violated(
                f"{each.location} changed from {progress.data[offset][:40]!r} to {each.data[:40]!r}"
            )
        return Ack(each.location, life, self._deliveries)

    def _check_rising(self, messages: Sequence[DeliveredMessage]) -> None:
        offsets = [each.location[1] for each in messages]
        if offsets != sorted(set(offsets)):
            self.violated(f"an answer is not in offset order: {offsets[:40]}")

    def _first_come(
        self, messages: Sequence[DeliveredMessage], acks: list[Ack], life: int, sent_at: float, read_at: float
    ) -> list[Ack]:
        progress = self._queues[messages[0].location[0]]
        if progress.life != life:
            progress.life, progress.read_at, progress.highest = life, [], []
        firsts = [each for each in messages if each.location[1] not in progress.data]
        self.counts.redelivered += len(messages) - len(firsts)
        for each, ack in zip(messages, acks, strict=True):
            progress.latest[each.location[1]] = ack.delivery
        if not firsts:
            return acks
        before = bisect_left(progress.read_at, sent_at)
        if (
            before
            and progress.highest[before - 1] > firsts[0].location[1]
            and life not in self._uncertain_lives
        ):
            self.violated(
                f"{firsts[0].location} came first after {progress.highest[before - 1]} of its queue had"
            )
        for each in firsts:
            progress.data[each.location[1]] = each.data
            self._received_at[each.data].append(each.location)
        last = firsts[-1].location[1]
        progress.read_at.append(read_at)
        progress.highest.append(max(last, progress.highest[-1]) if progress.highest else last)
        return acks

    # --- results

    def acks_sent(self, acks: Iterable[Ack]) -> None:
        """They leave; whether they arrive is open."""
        with self._lock:
            for ack in acks:
                self.counts.acks += 1
                self._queues[ack.location[0]].ack_sent.add(ack.location[1])

    def fails_sent(self, locations: Iterable[Location]) -> None:
        with self._lock:
            for queue, offset in locations:
                self.counts.fails += 1
                self._queues[queue].fails_sent[offset] += 1

    def acks_answered(self, acks: Iterable[Ack], life: int, at: float) -> None:
        """They are promised durable, if they were given in the life of their delivery, the newest one."""
        with self._lock:
            for ack in acks:
                queue, offset = ack.location
                progress = self._queues[queue]
                if ack.life == life and progress.latest[offset] == ack.delivery:
                    self.counts.acks_binding += 1
                    progress.acked_at.setdefault(offset, at)

    def left(self, count: int) -> None:
        with self._lock:
            self.counts.left_to_time_out += count

    # --- looks at the server

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Committed offsets by queue, asked for now."""
        with self._lock:
            for queue, offset in offsets.items():
                self.counts.stats_checked += 1
                self._check_committed(queue, offset)

    def _check_committed(self, queue: int, committed: int) -> None:
        progress = self._queues[queue]
        if committed < progress.committed:
            self.violated(
                f"queue {queue}: the committed offset fell from {progress.committed} to {committed}"
            )
        for offset in range(progress.committed, committed):
            if offset not in progress.ack_sent and progress.fails_sent[offset] < self._fails_to_bury:
                self.violated(f"queue {queue} is committed to {committed}, past unfinished {offset}")
        progress.committed = max(committed, progress.committed)

    # --- the end

    def finish(self, dead: Sequence[Location]) -> None:
        """Everything is consumed; `dead` are the origins of all dead letters, in their order."""
        with self._lock:
            self._check_lost()
            self._check_dead(dead)
            for queue, progress in self._queues.items():
                self._check_senders(queue, progress)

    def _check_lost(self) -> None:
        for data, location in self._stored.items():
            received = self._received_at.get(data)
            if not received:
                self.violated(f"lost: {data[:40]!r} was answered 0 at {location}")
            elif location is not None and location not in received:
                self.violated(f"{data[:40]!r} was answered for {location}, came from {received}")
        for data, locations in self._received_at.items():
            if len(locations) > 1 and data not in self._may_repeat:
                self.violated(f"{data[:40]!r} is stored twice, at {locations}, and was sent once")

    def _check_dead(self, dead: Sequence[Location]) -> None:
        if len(set(dead)) != len(dead):
            twice = sorted({location for location in dead if dead.count(location) > 1})
            self.violated(f"more than one dead letter of {twice[:10]}")
        for queue, offset in dead:
            progress = self._queues[queue]
            if progress.fails_sent[offset] < self._fails_to_bury:
                self.violated(
                    f"{queue, offset} is a dead letter after {progress.fails_sent[offset]} failures"
                )
        buried = set(dead)
        for queue, progress in self._queues.items():
            for offset, data in progress.data.items():
                if offset not in progress.ack_sent and (queue, offset) not in buried:
                    self.violated(f"{queue, offset} is finished and nobody acknowledged it: {data[:40]!r}")

    def _check_senders(self, queue: int, progress: _Queue) -> None:
        """What was sent again counts where it stands first."""
        last: dict[int, int] = {}
        before: set[bytes] = set()
        for offset in sorted(progress.data):
            if progress.data[offset] in before:
                continue
            before.add(progress.data[offset])
            body = Body.decode(progress.data[offset])
            if body.queue != queue:
                self.violated(f"{body} is in queue {queue}")
            if body.number < last.get(body.sender, -1):
                self.violated(f"queue {queue}: {body} comes after number {last[body.sender]}")
            last[body.sender] = body.number
