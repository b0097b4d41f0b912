"""Each bound on what all processes of a directory share: how it is filled, counted, and freed again.

A SharedBound stands on a SharedLog with one proxy for each process. The table is SHARED_BOUNDS.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from backend.completion import Completion
from backend.records import CommitBatch, ProgressDelta, QueueRef
from ddmq_client.idl.codes import Code
from ddmq_common.errors import BoundReachedError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups import ordering
from tests.service.bounds.shared_log import ConsumerProxy, ProducerProxy, SharedLog, send_results
from tests.service.consumer.consumer_rig import directory
from tests.support.waits import done, soon, until

BOUND = 10
RACERS = 3 * BOUND  # attempts at each proxy
BUSY = int(Code.BUSY)


class AttemptResult(NamedTuple):
    """What one attempt came to: code 0, or the code of the rejection with its text."""

    code: int
    text: str


class SharedBound(ABC):
    """A bound that is BOUND here. `text`: what a rejection says. `exact`: it can be filled to the last."""

    text: ClassVar[str]
    exact: ClassVar[bool] = True
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path, processes: int) -> None:
        self.log = SharedLog(folder / "log", processes, **self.options)
        self._numbers = itertools.count()
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - not every bound needs it
        """Make the proxies, and what attempts need."""

    @abstractmethod
    def attempt(self, process: int, number: int) -> Any:
        """Begin to take one more at a process; `number` is used once."""

    @abstractmethod
    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        """Wait for attempts and return their outcomes."""

    @abstractmethod
    def count(self) -> int:
        """Count what is taken."""

    @abstractmethod
    def free(self) -> None:
        """Release at least one, and wait until that is known at every process."""

    def race(self) -> list[AttemptResult]:
        """Fill the bound from all processes at once."""
        processes = range(len(self.log.backends))
        return self.outcomes(
            [self.attempt(process, next(self._numbers)) for _ in range(RACERS) for process in processes]
        )

    def one_more(self, process: int) -> AttemptResult:
        """Try to take one more."""
        return self.outcomes([self.attempt(process, next(self._numbers))])[0]


def completed(attempts: Sequence[Completion[Any] | Exception]) -> list[AttemptResult]:
    """Wait for completions; an attempt may also have been rejected at once."""
    until(lambda: all(isinstance(each, Exception) or each.done for each in attempts), "all are answered")
    errors = [each if isinstance(each, Exception) else each.error for each in attempts]
    assert all(error is None or isinstance(error, BoundReachedError) for error in errors), errors
    return [AttemptResult(0, "") if error is None else AttemptResult(BUSY, str(error)) for error in errors]


def begun(act: Callable[[], Completion[Any]]) -> Completion[Any] | BoundReachedError:
    """Call `act`, which may reject at once."""
    try:
        return act()
    except BoundReachedError as error:
        return error


class TopicsBySends(SharedBound):
    """topics_max of proxy_producer.yaml."""

    text = "there are 10 topics"

    def prepare(self) -> None:
        self.proxies = [ProducerProxy(backend, topics_max=BOUND) for backend in self.log.backends]

    def attempt(self, process: int, number: int) -> Any:
        return self.proxies[process].start_send(topic=b"t-%d" % number)

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return [AttemptResult(*result) for result in send_results(attempts)]

    def count(self) -> int:
        return len(self.log.topics())

    def free(self) -> None:
        self.log.delete(min(self.log.topics()))


class TopicsOfTheLog(SharedBound):
    """topics_max of file_log.yaml, which holds for operators as well."""

    text = "there are 10 topics; topics_max is 10"
    options: ClassVar[dict[str, Any]] = {"topics_max": BOUND}

    def attempt(self, process: int, number: int) -> Any:
        return self.log.start_topic(process, f"t-{number}")

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return completed(attempts)

    def count(self) -> int:
        return len(self.log.topics())

    def free(self) -> None:
        self.log.delete(min(self.log.topics()))


class Subscriptions(SharedBound):
    """What groups and subscriptions have in common: subscribers, and the settings that are counted."""

    config: ClassVar[dict[str, int]]
    folder: ClassVar[str]
    topics: ClassVar[int] = 1

    def prepare(self) -> None:
        for number in range(self.topics):
            self.log.make(f"T{number}")
        self.proxies = [ConsumerProxy(backend, **self.config) for backend in self.log.backends]

    def names(self, number: int) -> tuple[str, str]:
        """Return the group and topic of an attempt."""
        return f"g{number}", "T0"

    def attempt(self, process: int, number: int) -> Any:
        group, topic = self.names(number)
        return begun(lambda: self.proxies[process].service.subscribe(group, topic))

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return completed(attempts)

    def count(self) -> int:
        return len(self.log.writer.settings(self.folder))

    def free(self) -> None:
        key = min(self.log.writer.settings("subscription/"))
        _, group, topic = key.split("/")
        directories = [directory(proxy.service) for proxy in self.proxies]
        until(
            lambda: all(each.find_subscription(group, topic) for each in directories),
            f"every proxy knows {key}",
        )
        done(self.proxies[0].service.delete_group(group, topic if self.topics > 1 else None))
        until(lambda: not any(each.find_subscription(group, topic) for each in directories), f"{key} is gone")


class Groups(Subscriptions):
    """groups_max."""

    text = "groups_max is 10"
    config: ClassVar[dict[str, int]] = {"groups_max": BOUND}
    folder = "group/"


class AllSubscriptions(Subscriptions):
    """subscriptions_max."""

    text = "subscriptions_max is 10"
    config: ClassVar[dict[str, int]] = {"subscriptions_max": BOUND}
    folder = "subscription/"


class SubscriptionsOfAGroup(Subscriptions):
    """subscriptions_per_group_max."""

    text = "subscriptions_per_group_max is 10"
    config: ClassVar[dict[str, int]] = {"subscriptions_per_group_max": BOUND}
    folder = "subscription/g/"
    topics = 3 * RACERS + 10

    def names(self, number: int) -> tuple[str, str]:
        return "g", f"T{number}"


class ParkedKeys(SharedBound):
    """PARKED_MAX of a group."""

    text = "keys of group g are parked; replay some first"

    def prepare(self) -> None:
        self.log.make("T")
        self.proxies = [ConsumerProxy(backend) for backend in self.log.backends]
        service = self.proxies[0].service
        done(service.subscribe("g", "T", SubscriptionDefaults(order_key="KEY")))
        directories = [directory(proxy.service) for proxy in self.proxies]
        until(
            lambda: all(each.find_subscription("g", "T") for each in directories),
            "every proxy knows the group",
        )
        self._keys = [proxy.service.order_keys("g") for proxy in self.proxies]

    def attempt(self, process: int, number: int) -> Any:
        return begun(lambda: self._keys[process].park(f'"k{number}"'))

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return completed(attempts)

    def count(self) -> int:
        return len(self.log.writer.settings(f"{ordering.PARKED_PREFIX}g/"))

    def free(self) -> None:
        until(lambda: len({keys.parked_keys for keys in self._keys}) == 1, "all proxies know the same")
        key = min(self._keys[0].parked_keys)
        replayed = self._keys[0].replay(key)
        assert replayed is not None
        done(replayed)
        until(lambda: not any(key in keys.parked_keys for keys in self._keys), f"{key} goes on")


class Settings(SharedBound):
    """settings_max of file_log.yaml."""

    text = "there are 10 settings, this makes 1 more; settings_max is 10"
    options: ClassVar[dict[str, Any]] = {"settings_max": BOUND}

    def attempt(self, process: int, number: int) -> Any:
        batch = CommitBatch(settings={f"s/{number}": b"value"})
        return self.log.backends[process].commit(batch, soon())

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return completed(attempts)

    def count(self) -> int:
        return len(self.log.writer.settings(""))

    def free(self) -> None:
        batch = CommitBatch(settings={min(self.log.writer.settings("")): None})
        done(self.log.writer.commit(batch, soon()))


class Progress(SharedBound):
    """progress_max of file_log.yaml."""

    text = "10 pairs of group and queue have progress, the bound is 10 pairs"
    options: ClassVar[dict[str, Any]] = {"progress_max": BOUND}

    def prepare(self) -> None:
        self._claimed: list[tuple[str, QueueRef]] = []
        self.log.make("T", queues=2)

    def attempt(self, process: int, number: int) -> Any:
        info = self.log.writer.topic("T")
        assert info is not None
        queue = info.refs()[0]
        self._claimed.append((f"g{number}", queue))
        delta = ProgressDelta(f"g{number}", queue, 0, 0, finished=[(0, 1)])
        return self.log.backends[process].commit(CommitBatch(progress=[delta]), soon())

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        return completed(attempts)

    def count(self) -> int:
        writer = self.log.writer
        views = [done(writer.progress(group, [queue]))[0] for group, queue in self._claimed]
        return sum(view.committed is not None or bool(view.finished) for view in views)

    def free(self) -> None:
        self.log.delete("T")
        self.log.make("T", queues=2)
        self._claimed = []


class IdempotencyKeys(SharedBound):
    """idempotency_keys_max of file_log.yaml: a topic gets half of it, the next a part of what is left."""

    text = "idempotency_keys_max"
    exact = False
    options: ClassVar[dict[str, Any]] = {"idempotency_keys_max": BOUND, "idempotency_window_ms": 1_500}

    def prepare(self) -> None:
        self._accepted = 0
        self.log.make("A")
        self.log.make("B")
        self.proxies = [ProducerProxy(backend) for backend in self.log.backends]

    def attempt(self, process: int, number: int) -> Any:
        topic = b"AB"[number % 2 :][:1]
        return self.proxies[process].start_send(topic=topic, idempotencyKey=b"key-%d" % number)

    def outcomes(self, attempts: Sequence[Any]) -> list[AttemptResult]:
        results = [AttemptResult(*result) for result in send_results(attempts)]
        self._accepted += sum(result.code == 0 for result in results)
        return results

    def count(self) -> int:
        return self._accepted

    def free(self) -> None:
        """The keys expire."""
        until(lambda: self.one_more(0).code == 0, "the window of the first keys is over")


SHARED_BOUNDS: dict[str, type[SharedBound]] = {
    "proxy_producer.topics_max": TopicsBySends,
    "file_log.topics_max": TopicsOfTheLog,
    "proxy_consumer.groups_max": Groups,
    "proxy_consumer.subscriptions_max": AllSubscriptions,
    "proxy_consumer.subscriptions_per_group_max": SubscriptionsOfAGroup,
    "PARKED_MAX": ParkedKeys,
    "file_log.settings_max": Settings,
    "file_log.progress_max": Progress,
    "file_log.idempotency_keys_max": IdempotencyKeys,
}
