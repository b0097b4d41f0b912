"""Clients that work on each message for a while: many messages in hand, one event loop, no thread for each.

A message is in hand from its delivery until its work time is over; messages of one key that came in one
answer are worked on one after the other. When it is over, its acknowledgement goes with the next pull, or
by a submit when all pulls are waiting. Loop and clock are precise to about 0.1 ms (select, not epoll, whose
time-outs are whole milliseconds); how late it was in spite of that is measured (`late_ms`).

What it asserts: every message once; each key in its order; nothing of a key delivered while an earlier
answer's messages of that key are in hand.
"""

from __future__ import annotations

import heapq
import select
import socket
import time
from collections.abc import Sequence

from bench import frames, keyed, load
from bench.harness import percentiles
from bench.servers import Running

PULLS = 8
SUBMITS = 4
BATCH = 100
LINGER_MS = 1_000
GIVE_UP_S = 20.0  # without a message or an answer


class Order:
    """What came of each key so far. `first`: the number that each key begins with."""

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._next: dict[int, int] = {}
        self._answer: dict[int, tuple[int, int]] = {}  # in hand: of which answer, how many

    def delivered(self, answer: int, key: int, number: int) -> None:
        """Raises when it is not the key's next, or another answer's of that key are in hand."""
        expected = self._next.get(key, self._first)
        if number != expected:
            raise AssertionError(f"key {key}: {number} delivered, {expected} was to come")
        self._next[key] = number + 1
        before, count = self._answer.get(key, (answer, 0))
        if before != answer:
            raise AssertionError(f"key {key}: {number} delivered while the one before is in hand")
        self._answer[key] = (answer, count + 1)

    def done(self, key: int) -> None:
        """One of the key's messages in hand is acknowledged now."""
        answer, count = self._answer.pop(key)
        if count > 1:
            self._answer[key] = (answer, count - 1)


class Workers:
    """`run()` consumes `message_count` messages; `figures()` returns the result."""

    def __init__(
        self, server: Running, group: bytes, topic: bytes, message_count: int, work_s: float, first: int = 0
    ) -> None:
        self._group, self._topic, self._message_count, self._work_s = group, topic, message_count, work_s
        address = server.addresses["consumer"]
        self._pullers = load.connect(address, PULLS)
        self._submitters = load.connect(address, SUBMITS)
        self._free_pullers, self._free_submitters = list(self._pullers), list(self._submitters)
        self._is_puller = frozenset(self._pullers)
        self._buffers = {one: bytearray() for one in self._pullers + self._submitters}
        self._under_way: dict[socket.socket, Sequence[frames.Done]] = {}
        self._answers = 0
        self._order = Order(first)
        self._in_hand: list[tuple[float, int, bytes, int]] = []  # due, key, qid, offset
        self._busy_until: dict[int, float] = {}
        self._done_at: dict[int, float] = {}
        self._pending: dict[bytes, list[int]] = {}
        self.acknowledged = self.delivered = self.in_hand_max = 0
        self.late_s: list[float] = []
        self.gaps_s: list[float] = []
        self.seconds = 0.0

    def run(self) -> None:
        """Raises when order was hurt, or when nothing comes any more."""
        began = alive = time.perf_counter()
        every = self._pullers + self._submitters
        while self.acknowledged < self._message_count:
            self._send()
            pause = self._in_hand[0][0] - time.perf_counter() if self._in_hand else 0.5
            ready = select.select(every, (), (), min(max(pause, 0.0), 0.5))[0]
            for one in ready:
                self._receive(one)
            now = time.perf_counter()
            if ready or self._finish(now):
                alive = now
            elif now - alive > GIVE_UP_S:
                raise AssertionError(f"{self._message_count} stored, {self.delivered} delivered, then none")
        self.seconds = time.perf_counter() - began
        for one in every:
            one.close()
        if self.delivered != self._message_count:
            raise AssertionError(f"{self._message_count} stored, {self.delivered} delivered")

    def figures(self) -> dict[str, float]:
        """per_s first; `gap`: from the end of a key's work to the delivery of its next message."""
        gaps, late = percentiles(self.gaps_s or [0.0]), percentiles(self.late_s)
        return {
            "per_s": self._message_count / self.seconds,
            "gap_p50_ms": gaps["p50_ms"],
            "gap_p99_ms": gaps["p99_ms"],
            "in_hand_max": self.in_hand_max,
            "generator_late_p50_ms": late["p50_ms"],
            "generator_late_p99_ms": late["p99_ms"],
        }

    # --- calls

    def _send(self) -> None:
        if self.delivered == self._message_count:
            self._repeat()
        else:
            while self._free_pullers:
                done = self._take_pending()
                request = frames.pull_with(self._group, self._topic, BATCH, LINGER_MS, done)
                self._call(self._free_pullers.pop(), request, done)
        if self._pending and self._free_submitters:
            done = self._take_pending()
            self._call(self._free_submitters.pop(), frames.submit(self._group, self._topic, done), done)

    def _repeat(self) -> None:
        """There is nothing left to wait for: what pulls that wait have taken along is asked for again."""
        for one in self._pullers:
            for qid, offsets, _ in self._under_way.pop(one, ()):
                self._pending.setdefault(qid, []).extend(offsets)

    def _call(self, one: socket.socket, request: bytes, done: Sequence[frames.Done]) -> None:
        self._under_way[one] = done
        one.send(request)

    def _take_pending(self) -> Sequence[frames.Done]:
        pending, self._pending = self._pending, {}
        return [frames.Done(qid, offsets) for qid, offsets in pending.items()]

    def _receive(self, one: socket.socket) -> None:
        data = one.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        buffer = self._buffers[one]
        buffer += data
        payload = load.thrift_payload(bytes(buffer))
        if payload is None:
            return
        buffer.clear()
        self.acknowledged += sum(len(each.succeeded) for each in self._under_way.pop(one, ()))
        if one in self._is_puller:
            self._free_pullers.append(one)
            self._deliver(payload)
        else:
            self._free_submitters.append(one)

    # --- messages

    def _deliver(self, payload: bytes) -> None:
        answer = frames.pulled(payload)
        if answer is None:
            return
        messages = keyed.read_messages(payload)
        if len(messages) != answer.messages:
            raise AssertionError(f"{answer.messages} messages in an answer, {len(messages)} are ours")
        now = time.perf_counter()
        self._answers += 1
        self.delivered += len(messages)
        for offset, key, number, _ in messages:
            self._order.delivered(self._answers, key, number)
            done_at = self._done_at.pop(key, None)
            if done_at is not None:
                self.gaps_s.append(now - done_at)
            due = max(self._busy_until.get(key, 0.0), now) + self._work_s
            self._busy_until[key] = due
            heapq.heappush(self._in_hand, (due, key, answer.qid, offset))
        self.in_hand_max = max(self.in_hand_max, len(self._in_hand))

    def _finish(self, now: float) -> bool:
        """Whether some work was over."""
        in_hand, count = self._in_hand, 0
        while in_hand and in_hand[0][0] <= now:
            due, key, qid, offset = heapq.heappop(in_hand)
            self._order.done(key)
            self._pending.setdefault(qid, []).append(offset)
            self._done_at[key] = due
            self.late_s.append(now - due)
            count += 1
        return count > 0
