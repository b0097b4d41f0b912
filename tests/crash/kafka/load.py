"""The load of kafka_rounds.py and kafka_partitions.py, and the account of what was sent, given and finished.

Five kinds of messages, each in its topic:

    plain     nothing more
    ordered   numbered by key, each key sent by one thread; a handler fails now and then. Every delivery is
              judged: nothing may come again that a later message of its key has followed
    delayed   due 1 to 5 s after the send; some are cancelled at about that time, some repeat
    retried   unordered; some fail and come again over the retry path, "poison" always fails and dies
    spare     plain and delayed ones, for a topic that has no leader most of the time

Where sends are stored once, half of those without a delay have an idempotency key, and are sent again until
their outcome is certain. Any other body is sent once, unless the client knows that a resend is recognised.
So a second stored copy is always an error.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from ddmq_client import Consumer, DelayStatus, Message, NotStoredError, Producer, UnknownOutcomeError
from ddmq_client.delays import DelayResult
from ddmq_client.errors import ClientError
from tests.crash.kafka.bare import longest_gap_s
from tests.crash.kit.key_order import KeyDelivery, find_returns
from tests.crash.kit.pull_times import PullTimes

PLAIN, ORDERED, DELAYED, RETRIED = HEALTHY = ("plain", "ordered", "delayed", "retried")
SPARE = "spare"
TOPICS = (*HEALTHY, SPARE)
RETRY, DEAD = INNER = (f"%RETRY%{RETRIED}", f"%DLQ%{RETRIED}")
QUEUES = 4
GROUPS = {"any": (PLAIN, DELAYED), "in-order": (ORDERED,), RETRIED: (RETRIED,), SPARE: (SPARE,)}
KEYS = 12  # of one sender
FAIL_SHARE, FAILS_MAX = 0.05, 2
RETRY_SHARE, POISON_SHARE = 0.3, 0.1  # of the retried: fail sometimes; always
TIMEOUT_MS = 6_000
DELAY_MS = (1_000, 5_000)
CANCEL_SHARE, REPEAT_SHARE = 0.3, 0.15
CANCEL_SPREAD_S = 1.0  # how far from the due time a cancel leaves
TIMES, EVERY_MS = 3, 1_000
KEYED_SHARE, RESENDS_MAX = 0.5, 5
SPARE_DELAYED_SHARE = 0.7
Location = tuple[str, int, int]  # topic, queue, offset


class Stored(NamedTuple):
    """A message as it stands in Kafka. `step`: of the retry path."""

    location: Location
    body: bytes
    key: bytes
    at_ms: int
    step: str = ""


class HandlerCall(NamedTuple):
    """When a queue's message came to a handler, and when it had been born."""

    at_ms: int
    group: str
    queue: tuple[str, int]
    born_ms: int


class Account:
    """Hears of every send, cancel and handling. Many threads report."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: Counter[str] = Counter()
        self.acknowledged: dict[bytes, str] = {}  # body → topic
        self.acknowledged_at_ms: dict[str, list[int]] = defaultdict(list)  # by topic
        self.resent = 0  # because the outcome was unknown
        self.unknown: dict[bytes, str] = {}
        self.refused: dict[bytes, str] = {}
        self.due_ms: dict[bytes, int] = {}
        self.repeated: set[bytes] = set()
        self.cancels: dict[bytes, DelayStatus] = {}  # what each cancel was told; PENDING: nothing certain
        self.began: dict[Location, float] = {}  # when it was given first …
        self.done_at: dict[Location, float] = {}  # … and when a handler was first done with it
        self.bodies: dict[Location, bytes] = {}
        self.handled: set[bytes] = set()  # of the retried: a handler was done with it, somewhere
        self.handler_calls: list[HandlerCall] = []
        self.fails: Counter[Any] = Counter()
        self.pulls = PullTimes()
        self.deliveries: dict[tuple[int, bytes], list[KeyDelivery]] = defaultdict(list)  # by queue and key
        self.redelivered = 0  # given after it was done: allowed, and counted
        self.last_redelivery_s = 0.0
        self.violations: list[str] = []

    # --- clients

    def begin(self, message: Message) -> Location:
        topic = RETRY if "%RETRY%" in message.queue else message.topic
        location = topic, int(message.queue.rpartition("_")[2]), message.offset
        now, wall = time.monotonic(), time.time_ns() // 1_000_000
        with self.lock:
            self.began.setdefault(location, now)
            requested, received = self.pulls.take(message)
            if topic == ORDERED:
                delivery = KeyDelivery(location[2], requested, received, str(location))
                self.deliveries[location[1], (message.key or "").encode()].append(delivery)
            before = self.bodies.setdefault(location, message.body)
            if before != message.body:
                self.violations.append(f"{location} was {before!r} and is {message.body!r}")
            if location in self.done_at:
                self.redelivered += 1
                self.last_redelivery_s = max(self.last_redelivery_s, now - self.done_at[location])
            self.handler_calls.append(HandlerCall(wall, message.group, location[:2], message.born_ms or 0))
            if wall < self.due_ms.get(message.body, 0):
                self.violations.append(
                    f"{message.body!r} was given {self.due_ms[message.body] - wall} ms early"
                )
        return location

    def end(self, location: Location, body: bytes) -> None:
        with self.lock:
            self.done_at.setdefault(location, time.monotonic())
            self.handled.add(body)

    def may_fail(self, what: Location | bytes) -> bool:
        with self.lock:
            self.fails[what] += 1
            return self.fails[what] <= FAILS_MAX

    # --- the end

    def unfinished(self, stored: list[Stored]) -> list[str]:
        """What there is still to wait for."""
        with self.lock:
            there = Counter(each.body for each in stored)
            dead = {each.body for each in stored if each.location[0] == DEAD}
            unfinished_messages = [
                f"{s.location} {s.body!r} is not done" for s in self._own(stored) if not self._done(s, dead)
            ]
            return unfinished_messages + [
                f"{body!r} is stored {there[body]} times"
                for body in self.acknowledged
                if there[body] < min(self._copies(body))
            ]

    def _own(self, stored: list[Stored]) -> list[Stored]:
        return [each for each in stored if each.location[0] in TOPICS]

    def _done(self, each: Stored, dead: set[bytes]) -> bool:
        if each.location[0] == RETRIED:
            return each.body in self.handled or each.body in dead
        return each.location in self.done_at

    def _copies(self, body: bytes) -> set[int]:
        """How often a body may stand in its own topic."""
        times = TIMES if body in self.repeated else 1
        if body in self.refused:
            return {0}
        cancel_status = self.cancels.get(body)
        if cancel_status is DelayStatus.CANCELLED:
            return {0}
        if body in self.unknown or cancel_status is DelayStatus.PENDING:
            return {0, times}
        return {times}

    def judge(self, stored: list[Stored]) -> list[str]:
        """What was broken."""
        violations = list(self.violations)
        dead = {each.body for each in stored if each.location[0] == DEAD}
        own = self._own(stored)
        violations += [
            f"LOST: {s.location} {s.body!r} was never done" for s in own if not self._done(s, dead)
        ]
        violations += self._counted(own)
        violations += [
            f"{body!r} was acknowledged; a cancel was told that there never was such a message"
            for body, cancel_status in self.cancels.items()
            if cancel_status is DelayStatus.UNKNOWN
        ]
        for each in own:
            if self.bodies.get(each.location, each.body) != each.body:
                violations.append(
                    f"{each.location} holds {each.body!r}, {self.bodies[each.location]!r} was given"
                )
        return violations + self._early(own) + self._order(own) + self._retries(stored)

    def _counted(self, own: list[Stored]) -> list[str]:
        violations = []
        there = Counter(each.body for each in own)
        sent = {**self.acknowledged, **self.unknown, **self.refused}
        for body in sent.keys() | there.keys():
            allowed = self._copies(body) if body in sent else {1}
            if there[body] in allowed:
                continue
            word = "LOST" if there[body] < min(allowed) else "TWICE" if min(allowed) else "STORED"
            cancel_status = self.cancels.get(body)
            how = "acknowledged" if body in self.acknowledged else "of unknown outcome"
            how = "refused" if body in self.refused else how
            how += f", cancel: {cancel_status.value}" if cancel_status else ""
            copies = [(each.location, each.at_ms) for each in own if each.body == body]
            violations.append(
                f"{word}: {body!r}, {how}, is stored {there[body]} times, allowed {sorted(allowed)}: {copies}"
            )
        return violations

    def _early(self, own: list[Stored]) -> list[str]:
        violations, number = [], Counter[bytes]()
        for each in sorted(own, key=lambda each: each.at_ms):
            due_ms = self.due_ms.get(each.body, 0)
            if due_ms and each.body in self.repeated:
                due_ms += EVERY_MS * number[each.body]
            number[each.body] += 1
            if each.at_ms < due_ms:
                violations.append(
                    f"EARLY: {each.location} {each.body!r} was stored "
                    f"{due_ms - each.at_ms} ms before it was due"
                )
        return violations

    def _order(self, own: list[Stored]) -> list[str]:
        """Within a queue: no message of a key was given before each earlier one of it was done, and none
        again after a later one had been given."""
        violations = [
            f"ORDER: {delivery.label} was given again after {later.label}, of the same key, was with a client"
            for deliveries in self.deliveries.values()
            for delivery, later in find_returns(deliveries)
        ]
        done: dict[tuple[int, bytes], tuple[float, Stored]] = {}
        for each in sorted(own):
            if each.location[0] != ORDERED or each.location not in self.done_at:
                continue
            of_key = each.location[1], each.key
            last, before = done.get(of_key, (0.0, each))
            if self.began[each.location] < last:
                early_s = last - self.began[each.location]
                violations.append(
                    f"ORDER: {each.location} {each.body!r} was given {early_s:.3f} s before "
                    f"{before.location} {before.body!r} was done"
                )
            done[of_key] = max((last, before), (self.done_at[each.location], each))
        return violations

    def _retries(self, stored: list[Stored]) -> list[str]:
        """One copy of each step, one dead letter of what always fails, none of anything else."""
        steps = Counter((s.body, s.step) for s in stored if s.location[0] == RETRY)
        letters = Counter(s.body for s in stored if s.location[0] == DEAD)
        violations = [
            f"TWICE: {body!r} stands {count} times on the retry path as step {step}: "
            f"{[s.location for s in stored if (s.body, s.step) == (body, step)]}"
            for (body, step), count in steps.items()
            if count > 1
        ]
        violations += [
            f"TWICE: {body!r} is {count} dead letters" for body, count in letters.items() if count > 1
        ]
        for each in self._own(stored):
            if each.location[0] != RETRIED:
                continue
            poison = is_poison(each.body)
            if poison and not letters[each.body]:
                violations.append(f"LOST: {each.body!r} always fails and is no dead letter")
            if not poison and letters[each.body]:
                violations.append(f"{each.body!r} fails {FAILS_MAX} times at most and is a dead letter")
            if poison and each.body in self.handled:
                violations.append(f"{each.body!r} always fails and was done")
        return violations

    def delivered(self, topic: str) -> list[bytes]:
        """The bodies from a topic that came to a handler."""
        with self.lock:
            return [body for location, body in self.bodies.items() if location[0] == topic]

    def longest_pause_s(self, since_ms: int, until_ms: int) -> tuple[float, str]:
        """Return the longest time in which a healthy topic stored nothing, or delivered nothing."""
        with self.lock:
            calls = {topic: [c.at_ms for c in self.handler_calls if c.queue[0] == topic] for topic in HEALTHY}
            moments = {f"deliveries from {topic}": times for topic, times in calls.items()}
            moments |= {f"sends to {topic}": list(self.acknowledged_at_ms[topic]) for topic in HEALTHY}
        return max((longest_gap_s(times, since_ms, until_ms), what) for what, times in moments.items())

    def handed_over_s(self, since_ms: int, until_ms: int) -> float | None:
        """From `since_ms` until every queue that was given something born afterwards had been."""
        first: dict[tuple[str, tuple[str, int]], int] = {}
        with self.lock:
            for each in self.handler_calls:
                if since_ms < each.born_ms <= each.at_ms < until_ms and each.queue[0] in (PLAIN, ORDERED):
                    of_queue = each.group, each.queue
                    first[of_queue] = min(each.at_ms, first.get(of_queue, each.at_ms))
        return (max(first.values()) - since_ms) / 1000 if first else None


def is_poison(body: bytes) -> bool:
    """Whether a message of `retried` always fails."""
    return b"poison" in body


class Sender(threading.Thread):
    """Sends one kind of messages until it is told to stop."""

    def __init__(
        self, name: str, topic: str, seed: int, proxies: str, account: Account, keyed: bool = False
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._keyed = keyed
        self.random = Random(f"{seed}/{name}")
        self.topic, self.account = topic, account
        self.over = threading.Event()
        self.failure: BaseException | None = None
        self._producer = Producer(proxies, timeout_ms=TIMEOUT_MS)
        self._numbers: Counter[str] = Counter()
        self._cancels: list[tuple[float, int, bytes, DelayResult]] = []  # by time
        self._serial = itertools.count()

    def run(self) -> None:
        try:
            while not self.over.wait(self.random.uniform(0.01, 0.09)):
                self._send()
                while self._cancels and self._cancels[0][0] <= time.monotonic():
                    self._cancel(*heapq.heappop(self._cancels)[2:])
        except BaseException as error:
            self.failure = error
        finally:
            self._producer.close()

    def _send(self) -> None:
        key = f"{self.name}-{self.random.randrange(KEYS)}"
        poison = self.topic == RETRIED and self.random.random() < POISON_SHARE
        body = f"{key}/{self._numbers[key]}{'/poison' if poison else ''}".encode()
        self._numbers[key] += 1
        spare_delayed = self.topic == SPARE and self.random.random() < SPARE_DELAYED_SHARE
        more: dict[str, Any] = self._delay(body) if self.topic == DELAYED or spare_delayed else {}
        if not more and self._keyed and self.random.random() < KEYED_SHARE:
            more = {"idempotency_key": body.decode()}
        result, outcome = self._send_once(body, key, more)
        with self.account.lock:
            getattr(self.account, outcome)[body] = self.topic
            self.account.sent[f"{self.topic} {outcome}"] += 1
            if outcome == "acknowledged":
                self.account.acknowledged_at_ms[self.topic].append(time.time_ns() // 1_000_000)
        if isinstance(result, DelayResult):
            self._added(body, result)

    def _send_once(self, body: bytes, key: str, more: dict[str, Any]) -> tuple[Any, str]:
        """Send a message, with an idempotency key again and again while its outcome is unknown."""
        outcome = "refused"
        for _ in range(RESENDS_MAX if "idempotency_key" in more else 1):
            try:
                return self._producer.send(self.topic, body, key=key, shard_key=key, **more), "acknowledged"
            except UnknownOutcomeError:
                outcome = "unknown"
            except NotStoredError:
                if outcome == "refused":
                    break  # no attempt was stored
            with self.account.lock:
                self.account.resent += 1
        return None, outcome

    def _delay(self, body: bytes) -> dict[str, Any]:
        delay_ms = self.random.randint(*DELAY_MS)
        self.account.due_ms[body] = time.time_ns() // 1_000_000 + delay_ms
        more: dict[str, Any] = {"delay": timedelta(milliseconds=delay_ms)}
        if self.random.random() < REPEAT_SHARE:
            self.account.repeated.add(body)
            more |= {"every": timedelta(milliseconds=EVERY_MS), "times": TIMES, "catch_up": "all"}
        return more

    def _added(self, body: bytes, result: DelayResult) -> None:
        if result.due_ms is not None:
            self.account.due_ms[body] = result.due_ms
        if body not in self.account.repeated and self.random.random() < CANCEL_SHARE:
            left_s = (self.account.due_ms[body] - time.time_ns() // 1_000_000) / 1000
            at = time.monotonic() + left_s + self.random.gauss(0, CANCEL_SPREAD_S)
            heapq.heappush(self._cancels, (at, next(self._serial), body, result))

    def _cancel(self, body: bytes, result: DelayResult) -> None:
        try:
            cancel_status = self._producer.cancel(result).status
        except ClientError:
            cancel_status = DelayStatus.PENDING
        with self.account.lock:
            self.account.cancels[body] = cancel_status
            self.account.sent[f"cancel {cancel_status.value}"] += 1


def consumer(group: str, number: int, seed: int, proxies: str, account: Account) -> Consumer:
    """One that handles what its group subscribes to; handlers of two groups fail now and then."""
    random = Random(f"{seed}/{group}/{number}")

    def fails(message: Message, location: Location) -> bool:
        if message.topic == RETRIED:
            sometimes = random.random() < RETRY_SHARE and account.may_fail(message.body)
            return is_poison(message.body) or sometimes
        return message.topic == ORDERED and random.random() < FAIL_SHARE and account.may_fail(location)

    def handle(message: Message) -> None:
        location = account.begin(message)
        time.sleep(random.uniform(0, 0.01))  # the handler's work, so that faults meet leases
        if fails(message, location):
            raise RuntimeError("it fails now and then")
        account.end(location, message.body)

    return Consumer(proxies, group, GROUPS[group], handler=handle, threads=4, timeout_ms=TIMEOUT_MS)
