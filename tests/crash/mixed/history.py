"""What clients of a mixed run saw and did, written down as it happened; and what lies on disk at the end.

Times are monotonic seconds of this machine. A message is known by its body's id, which is sent once only,
so one id is one stored record at most. Lists are only appended to, from many threads; the rules
(rules.py) look at them when all is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

Location = tuple[str, int, int]  # topic, queue, offset
RETRY = "%RETRY%"


class Plan(NamedTuple):
    """One consumer group of the run, and the settings that the rules need.

    `scope`: "" (unordered), queue, topic or group. `quick`: length of retry_intervals_ms. `timeouts_max`:
    max_timeout_redeliveries. `deliveries_max`: of ordered ones, in all. `steps`: of the retry path.
    """

    name: str
    topics: tuple[str, ...]
    scope: str
    ack_timeout_s: float
    quick: int
    timeouts_max: int
    deliveries_max: int
    steps: int

    def attempts(self) -> range:
        """How many deliveries a dead letter can have had."""
        if self.scope:
            return range(self.deliveries_max, self.deliveries_max + 1)
        fewest = min(self.quick, self.timeouts_max) + 1 + self.steps
        most = self.quick + self.timeouts_max + 1 + self.steps * (1 + self.timeouts_max)
        return range(fewest, most + 1)


@dataclass(slots=True)
class Sent:
    """One message that a client sends. `code` is None without an answer; `location` is the answered one."""

    body: str
    topic: str
    key: str
    at: float
    code: int | None = None
    location: Location | None = None


class Delivery(NamedTuple):
    """One message of one answer. `life` of the proxy's process; −1 when it may be either of two.

    `requested`: when the pull was sent; `read`: when its answer arrived. `lease` 0: an old client.
    """

    number: int
    group: str
    body: str
    topic: str
    qid: str
    offset: int
    proxy: str
    life: int
    lease: int
    requested: float
    read: float
    client: str

    @property
    def queue(self) -> tuple[str, int]:
        """The queue it stands in: the topic's own, or the group's on the retry path."""
        return (RETRY + self.group if self.retried else self.topic, int(self.qid.rpartition("_")[2]))

    @property
    def retried(self) -> bool:
        return RETRY in self.qid


@dataclass(slots=True)
class Settlement:
    """A result on its way: acknowledged, or failed. `answered` None: no answer, or a refusal."""

    delivery: Delivery
    ack: bool
    proxy: str
    at: float
    answered: float | None = None
    reason: str = ""

    @property
    def until(self) -> float:
        """It took effect before that, if ever."""
        return float("inf") if self.answered is None else self.answered


class Unseen(NamedTuple):
    """A pull that brought no answer: messages may have been given with it."""

    group: str
    proxy: str
    requested: float
    over: float


class Kill(NamedTuple):
    """A process was killed, as its `life`-th."""

    process: str
    life: int
    at: float


class Loss(NamedTuple):
    """A proxy wrote that it lost or gave up a queue."""

    proxy: str
    group: str
    topic: str
    queue: int
    at: float


class Row(NamedTuple):
    """One stored message; `position` in the log."""

    location: Location
    position: int
    body: str
    key: str


class Letter(NamedTuple):
    """One dead letter and what it says of itself; `at`: monotonic seconds of its time."""

    group: str
    body: str
    reason: str
    error: str
    location: Location
    attempts: int
    at: float


class Finish(NamedTuple):
    """A record of progress in the log: `[start, end)` done; `position` of the record's commit."""

    group: str
    topic: str
    queue: int
    start: int
    end: int
    position: int


@dataclass(slots=True)
class Ending:
    """What the directory holds when all processes are gone. `unfinished`: (group, place) not done."""

    rows: list[Row] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    finishes: list[Finish] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    unfinished: list[tuple[str, Location]] = field(default_factory=list)


class History:
    """Everything, in the order in which it was written down."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.deliveries: list[Delivery] = []
        self.settlements: list[Settlement] = []
        self.unseen: list[Unseen] = []
        self.kills: list[Kill] = []
        self._numbers = itertools.count()

    def send(self, body: str, topic: str, key: str, at: float) -> Sent:
        """A message leaves."""
        sent = Sent(body, topic, key, at)
        self.sent.append(sent)
        return sent

    def give(
        self,
        group: str,
        body: str,
        *,
        topic: str,
        qid: str,
        offset: int,
        proxy: str,
        life: int,
        lease: int,
        requested: float,
        read: float,
        client: str,
    ) -> Delivery:
        """A message is here."""
        delivery = Delivery(
            next(self._numbers), group, body, topic, qid, offset, proxy, life, lease, requested, read, client
        )
        self.deliveries.append(delivery)
        return delivery

    def settle(
        self, deliveries: Iterable[Delivery], proxy: str, at: float, *, ack: bool, reason: str = ""
    ) -> list[Settlement]:
        """Results leave; `answered` is for the caller to set."""
        settlements = [Settlement(each, ack, proxy, at, reason=reason) for each in deliveries]
        self.settlements += settlements
        return settlements
