"""Counters of the core. The shell puts metric cells in; tests put plain counts in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Counter(Protocol):
    """Anything with a number that can be added to."""

    value: float


class Observer(Protocol):
    """Anything that takes single values in, such as a histogram."""

    def observe(self, value: float) -> None: ...


class Unobserved:
    """An Observer that keeps nothing."""

    __slots__ = ()

    def observe(self, value: float) -> None:
        """Forget the value at once."""


class Count:
    """A Counter that is nothing else."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


@dataclass(slots=True)
class Tally:
    """One subscription's counters. `late`: stale leases; `unknown`: offsets neither leased nor waiting.

    `pressure`, `others` (resent to another group), `missing`, `expired`, `filtered`: finished undelivered.
    `unkeyed`: delivered without order. `returned`: of `delivered`, handed back by clients that had not
    looked at them. `redelivered`: of `delivered`, those that failed or timed out before. `process`: from
    handed out to acknowledged, µs, once per lease that a result names.
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
    """The messages that one subscription holds at the moment, over all its queues."""

    __slots__ = ("leased", "leased_bytes", "retrying")

    def __init__(self) -> None:
        self.leased = 0  # messages at clients
        self.leased_bytes = 0
        self.retrying = 0  # waiting, ready, exhausted, or on their way to the dead letters
