"""Rates at which messages are stored for a subscription and finished by it, from samples of its progress.

Progress is sampled in rounds of at most QUEUES_MAX queues: with more queues, a subscription is sampled less
often, and its rates are over a longer time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from backend.completion import Completion
from backend.port import Backend
from backend.records import Bounds, QueueRef
from ddmq_common.errors import DdmqError
from proxy_consumer.service import ConsumerService

QUEUES_MAX = 500  # of one round
AGE_MIN_S = 1.0  # of a sample from which a rate is computed
AGE_MAX_S = 120.0
Name = tuple[str, str]  # group, topic


class ProgressSample(NamedTuple):
    """The progress of a subscription at a moment, in monotonic seconds.

    `stored`: the sum of the next offsets of the topic's queues. `finished`: how many offsets are finished in
    each queue that this proxy holds, counted from offset 0.
    """

    at: float
    stored: int
    finished: Mapping[QueueRef, int]


class ProgressRates(NamedTuple):
    """Messages per second; None: not known. `finished_per_s`: in the queues that this proxy holds."""

    arriving_per_s: float | None = None
    finished_per_s: float | None = None


def find_rates(samples: Sequence[ProgressSample], now: ProgressSample) -> ProgressRates:
    """Return the rates from the oldest of the samples, which ascend in time, until now.

    Each rate goes back only to the last reset, new topic or change of owners; it is None if that is less than
    AGE_MIN_S ago.
    """
    stored_from, finished_from, after = now, now, now
    for sample in reversed(samples):
        if now.at - sample.at > AGE_MAX_S:
            break
        if stored_from is after and sample.stored <= after.stored:
            stored_from = sample
        if finished_from is after and _may_precede(sample.finished, after.finished):
            finished_from = sample
        after = sample
    arriving_s, finishing_s = now.at - stored_from.at, now.at - finished_from.at
    finished = sum(now.finished.values()) - sum(finished_from.finished.values())
    return ProgressRates(
        (now.stored - stored_from.stored) / arriving_s if arriving_s >= AGE_MIN_S else None,
        finished / finishing_s if finishing_s >= AGE_MIN_S and now.finished else None,
    )


def _may_precede(before: Mapping[QueueRef, int], after: Mapping[QueueRef, int]) -> bool:
    """Return whether the same queues are held, and none of them has fewer finished messages than before."""
    return before.keys() == after.keys() and all(before[queue] <= count for queue, count in after.items())


class ProgressSamples:
    """The last two samples of each subscription."""

    def __init__(self) -> None:
        self._samples: dict[Name, tuple[ProgressSample, ...]] = {}

    def record_sample(self, name: Name, sample: ProgressSample) -> None:
        """Record the sample of a subscription after its earlier ones."""
        self._samples[name] = (*self._samples.get(name, ())[-1:], sample)

    def keep_only(self, names: Sequence[Name]) -> None:
        """Forget all other subscriptions."""
        existing = set(names)
        self._samples = {name: each for name, each in self._samples.items() if name in existing}

    def read_rates(self, name: Name, now: ProgressSample) -> ProgressRates:
        """Return the rates of a subscription until its present progress."""
        return find_rates(self._samples.get(name, ()), now)


class ProgressSampler:
    """Samples the progress of all subscriptions of a proxy, round by round. `now`: monotonic seconds."""

    def __init__(self, backend: Backend, consumer: ConsumerService, now: Callable[[], float]) -> None:
        self.samples = ProgressSamples()
        self._backend = backend
        self._consumer = consumer
        self._now = now
        self._round: Iterator[Name] = iter(())
        self._is_reading = False

    def start_round(self) -> None:
        """Sample the next subscriptions; a new turn over all of them begins after the last one."""
        if self._is_reading:
            return
        selection = self._choose_queues()
        if not selection:
            names = self._consumer.list_subscriptions()
            self.samples.keep_only(names)
            self._round = iter(names)
            selection = self._choose_queues()
        queues = list({queue for refs in selection.values() for queue in refs})
        if not queues:
            return
        try:
            lookup = self._backend.bounds(queues)
        except DdmqError:
            return  # the samples before stay
        self._is_reading = True
        lookup.then(lambda read: self._record_round(selection, queues, read))

    def _choose_queues(self) -> dict[Name, list[QueueRef]]:
        """Take subscriptions from the turn, until they have QUEUES_MAX queues; return these queues."""
        selection: dict[Name, list[QueueRef]] = {}
        count = 0
        for name in islice(self._round, QUEUES_MAX):
            info = self._backend.topic(name[1])
            if info is not None:
                selection[name] = info.refs()
                count += info.queues
            if count >= QUEUES_MAX:
                break
        return selection

    def _record_round(
        self,
        selection: Mapping[Name, list[QueueRef]],
        queues: Sequence[QueueRef],
        read: Completion[list[Bounds | None]],
    ) -> None:
        self._is_reading = False
        if read.error is not None:
            return  # the samples before stay
        limits = dict(zip(queues, read.value, strict=True))
        now = self._now()
        for name, refs in selection.items():
            bounds = [each for each in map(limits.get, refs) if each is not None]
            finished = self._consumer.finished_positions(*name)
            self.samples.record_sample(name, ProgressSample(now, sum(each.next for each in bounds), finished))
