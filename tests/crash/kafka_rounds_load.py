"""The load of kafka_rounds.py, and the account of what was sent, given and finished.

Three kinds of messages, each in its topic: `plain`, `ordered` (numbered by key, each key sent by one
thread) and `delayed` (due 1 to 5 s after the send). A body is sent once: what may be stored is not sent
again by the client, so a second stored copy of it is somebody else's.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from random import Random
from typing import NamedTuple

from ddmq_client import Consumer, Message, NotStoredError, Producer, UnknownOutcomeError
from ddmq_client.delays import DelayResult

PLAIN, ORDERED, DELAYED = TOPICS = ("plain", "ordered", "delayed")
QUEUES = 4
GROUPS = {"any": (PLAIN, DELAYED), "in-order": (ORDERED,)}
KEYS = 12  # of one sender
FAIL_SHARE, FAILS_MAX = 0.05, 2
TIMEOUT_MS = 6_000
DELAY_MS = (1_000, 5_000)
SHOWN = 20
Place = tuple[str, int, int]  # topic, queue, offset


class Stored(NamedTuple):
    """A message as it stands in Kafka."""

    place: Place
    body: bytes
    key: bytes
    at_ms: int


class Given(NamedTuple):
    """When a queue's message came to a handler, and when it had been born."""

    at_ms: int
    group: str
    queue: tuple[str, int]
    born_ms: int


class Account:
    """Hears of every send and every handling. Many threads report."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: Counter[str] = Counter()
        self.acknowledged: dict[bytes, str] = {}  # body → topic
        self.unknown: dict[bytes, str] = {}
        self.due_ms: dict[bytes, int] = {}
        self.began: dict[Place, float] = {}  # when it was given first …
        self.ended: dict[Place, float] = {}  # … and when a handler was first done with it
        self.bodies: dict[Place, bytes] = {}
        self.given: list[Given] = []
        self.fails: Counter[Place] = Counter()
        self.again = 0  # given after it was done: allowed, and counted
        self.last_again_s = 0.0
        self.faults: list[str] = []

    # --- clients

    def begin(self, message: Message) -> Place:
        place = message.topic, int(message.queue.rpartition("_")[2]), message.offset
        now, wall = time.monotonic(), time.time_ns() // 1_000_000
        with self.lock:
            self.began.setdefault(place, now)
            before = self.bodies.setdefault(place, message.body)
            if before != message.body:
                self.faults.append(f"{place} was {before!r} and is {message.body!r}")
            if place in self.ended:
                self.again += 1
                self.last_again_s = max(self.last_again_s, now - self.ended[place])
            self.given.append(Given(wall, message.group, place[:2], message.born_ms or 0))
            if wall < self.due_ms.get(message.body, 0):
                self.faults.append(f"{message.body!r} was given {self.due_ms[message.body] - wall} ms early")
        return place

    def end(self, place: Place) -> None:
        with self.lock:
            self.ended.setdefault(place, time.monotonic())

    def may_fail(self, place: Place) -> bool:
        with self.lock:
            self.fails[place] += 1
            return self.fails[place] <= FAILS_MAX

    # --- the end

    def unfinished(self, stored: Iterable[Stored]) -> list[str]:
        """What there is still to wait for."""
        with self.lock:
            stored = list(stored)
            there = {each.body for each in stored}
            missing = [f"{body!r} is not stored" for body in self.acknowledged if body not in there]
            return missing + [
                f"{s.place} {s.body!r} is not done" for s in stored if s.place not in self.ended
            ]

    def judge(self, stored: list[Stored]) -> list[str]:
        """What was broken."""
        faults = list(self.faults)
        there = {each.body for each in stored}
        faults += [
            f"LOST: {body!r} was acknowledged, not stored" for body in self.acknowledged if body not in there
        ]
        faults += [f"LOST: {s.place} {s.body!r} was never done" for s in stored if s.place not in self.ended]
        for body, count in Counter(each.body for each in stored).items():
            if count > 1:
                places = [each.place for each in stored if each.body == body]
                faults.append(f"TWICE: {body!r} is stored at {places}")
        for each in stored:
            early_ms = self.due_ms.get(each.body, 0) - each.at_ms
            if early_ms > 0:
                faults.append(f"EARLY: {each.place} {each.body!r} was stored {early_ms} ms before it was due")
            if self.bodies.get(each.place, each.body) != each.body:
                faults.append(f"{each.place} holds {each.body!r}, {self.bodies[each.place]!r} was given")
        return faults + self._order(stored)

    def _order(self, stored: list[Stored]) -> list[str]:
        """Within a queue: no message of a key was given before each earlier one of it was done."""
        faults: list[str] = []
        done: dict[tuple[int, bytes], tuple[float, Stored]] = {}
        for each in sorted(stored):
            if each.place[0] != ORDERED or each.place not in self.ended:
                continue
            of_key = each.place[1], each.key
            last, before = done.get(of_key, (0.0, each))
            if self.began[each.place] < last:
                early_s = last - self.began[each.place]
                faults.append(
                    f"ORDER: {each.place} {each.body!r} was given {early_s:.3f} s before "
                    f"{before.place} {before.body!r} was done"
                )
            done[of_key] = max((last, before), (self.ended[each.place], each))
        return faults

    def handed_over_s(self, since_ms: int, until_ms: int) -> float | None:
        """From `since_ms` until every queue that was given something born afterwards had been."""
        first: dict[tuple[str, tuple[str, int]], int] = {}
        with self.lock:
            for each in self.given:
                if since_ms < each.born_ms <= each.at_ms < until_ms and each.queue[0] != DELAYED:
                    of_queue = each.group, each.queue
                    first[of_queue] = min(each.at_ms, first.get(of_queue, each.at_ms))
        return (max(first.values()) - since_ms) / 1000 if first else None


class Sender(threading.Thread):
    """Sends one kind of messages until it is told to stop."""

    def __init__(self, name: str, topic: str, seed: int, proxies: str, account: Account) -> None:
        super().__init__(name=name, daemon=True)
        self.random = Random(f"{seed}/{name}")
        self.topic, self.account = topic, account
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._producer = Producer(proxies, timeout_ms=TIMEOUT_MS)
        self._numbers: Counter[str] = Counter()

    def run(self) -> None:
        try:
            while not self.over.wait(self.random.uniform(0.01, 0.09)):
                self._send()
        except BaseException as error:
            self.failure = error
        finally:
            self._producer.close()

    def _send(self) -> None:
        key = f"{self.name}-{self.random.randrange(KEYS)}"
        body = f"{key}/{self._numbers[key]}".encode()
        self._numbers[key] += 1
        delay_ms = self.random.randint(*DELAY_MS) if self.topic == DELAYED else None
        wait = None if delay_ms is None else timedelta(milliseconds=delay_ms)
        began_ms = time.time_ns() // 1_000_000
        if delay_ms is not None:
            self.account.due_ms[body] = began_ms + delay_ms
        what = "refused"
        try:
            result = self._producer.send(self.topic, body, key=key, shard_key=key, delay=wait)
        except UnknownOutcomeError:
            what = "unknown"
            self.account.unknown[body] = self.topic
        except NotStoredError:
            pass
        else:
            what = "acknowledged"
            self.account.acknowledged[body] = self.topic
            if isinstance(result, DelayResult) and result.due_ms is not None:
                self.account.due_ms[body] = result.due_ms
        with self.account.lock:
            self.account.sent[f"{self.topic} {what}"] += 1


def consumer(group: str, number: int, seed: int, proxies: str, account: Account) -> Consumer:
    """One that handles what its group subscribes to; the handler of the ordered group fails now and then."""
    random = Random(f"{seed}/{group}/{number}")

    def handle(message: Message) -> None:
        place = account.begin(message)
        time.sleep(random.uniform(0, 0.01))  # the handler's work, so that faults meet leases
        if message.topic == ORDERED and random.random() < FAIL_SHARE and account.may_fail(place):
            raise RuntimeError("it fails now and then")
        account.end(place)

    return Consumer(proxies, group, GROUPS[group], handler=handle, threads=4, timeout_ms=TIMEOUT_MS)
