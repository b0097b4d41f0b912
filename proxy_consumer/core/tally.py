"""Counters of the core. The proxy passes metric cells; tests pass plain counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Counter(Protocol):
    """Anything with a number that can be increased."""

    value: float


class Observer(Protocol):
    """Anything that records single values, such as a histogram."""

    def observe(self, value: float) -> None: ...


class Unobserved:
    """An Observer that ignores all values."""

    __slots__ = ()

    def observe(self, value: float) -> None:
        """Ignore the value completely."""


class Count:
    """A plain number that implements Counter, without a metric behind it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


@dataclass(slots=True)
class Tally:
    """The counts of a subscription's deliveries and results.

    `late`: results with a stale lease; `unknown`: results for offsets neither leased nor waiting. `pressure`,
    `others` (resent to another group), `missing`, `expired`, `filtered`: messages finished undelivered.
    `unkeyed`: delivered without order. `returned`: delivered, and returned by clients unprocessed.
    `redelivered`: delivered after a failure or time-out. `process`: microseconds from delivery to
    acknowledgement, observed once per lease that a result names.
    """

    delivered: Counter = field(default_factory=Count)
    acked: Counter = field(default_factory=Count)
    failed: Counter = field(default_factory=Count)
    timed_out: Counter = field(default_factory=Count)
    late: Counter = field(default_factory=Count)
    unknown: Counter = field(default_factory=Count)
    pressure: Counter = field(default_factory=Count)
    others: Counter = field(default_factory=Count)
    missing: Counter = field(default_factory=Count)
    expired: Counter = field(default_factory=Count)
    filtered: Counter = field(default_factory=Count)
    unkeyed: Counter = field(default_factory=Count)
    redelivered: Counter = field(default_factory=Count)
    returned: Counter = field(default_factory=Count)
    process: Observer = field(default_factory=Unobserved)


class Budget:
    """The number of messages that one subscription holds at the moment, over all its queues."""

    __slots__ = ("leased", "leased_bytes", "retrying")

    def __init__(self) -> None:
        self.leased = 0  # messages at clients
        self.leased_bytes = 0
        self.retrying = 0  # waiting, ready, exhausted, or on their way to the dead letters
