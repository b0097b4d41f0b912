"""The fixtures that Dramatiq's tests ask for, each with a DdmqBroker in place of another one.

Its tests of the stub broker also look at dead letters and let `join` raise the exception of a failed actor;
those of RabbitMQ count messages. SuiteBroker can do both.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.rate_limits.backends import StubBackend as StubLimiter
from dramatiq.results.backends import StubBackend as StubResults

from ddmq_client.dramatiq import DdmqBroker
from ddmq_client.dramatiq.admin import QueueAdmin
from ddmq_client.dramatiq.delivered import DeliveredMessage
from tests.interop.dramatiq_suite.selection import reason_to_skip

TIMEOUT_MS_MIN = 500  # a count is a request, which takes longer on a busy machine than a look into memory
ADDRESSES = "DDMQ_OF_SUITE"  # HOST:PORT of producer, consumer and admin, with commas


class DeadLetters(dramatiq.Middleware):
    """Remember the messages that were rejected, and why."""

    def __init__(self) -> None:
        self.by_queue: defaultdict[str, list[tuple[dramatiq.MessageProxy, BaseException]]] = defaultdict(list)

    def after_nack(self, broker: dramatiq.Broker, message: dramatiq.MessageProxy) -> None:
        """Dramatiq clears the exception later, so it is stored now."""
        assert isinstance(message, DeliveredMessage)
        error = message.actor_error or Exception("failed without an exception")
        self.by_queue[message.queue_name].append((message, error))


class SuiteBroker(DdmqBroker):
    """A DdmqBroker with the additional methods that Dramatiq's tests use."""

    def __init__(self, addresses: str) -> None:
        producer, consumer, admin = addresses.split(",")
        self._rejected = DeadLetters()
        super().__init__(producer, consumer, admin=admin, namespace=f"suite-{uuid.uuid4().hex[:12]}")
        self.middleware.append(self._rejected)
        self._counts = QueueAdmin(admin)

    @property
    def dead_letters(self) -> list[dramatiq.MessageProxy]:
        """Return the rejected messages of all queues."""
        return [message for letters in self._rejected.by_queue.values() for message, _ in letters]

    def join(
        self,
        queue_name: str,
        *,
        interval: int = 20,
        timeout: int | None = None,
        fail_fast: bool | None = None,
        min_successes: int = 0,
    ) -> None:
        """Join; then raise what the first rejected message failed with, unless `fail_fast` is False."""
        timeout = 60_000 if timeout is None else max(timeout, TIMEOUT_MS_MIN)
        super().join(queue_name, interval=interval, timeout=timeout)
        if (self.raises if fail_fast is None else fail_fast) and self._rejected.by_queue[queue_name]:
            raise self._rejected.by_queue[queue_name][0][1]

    raises = False

    def flush_all(self) -> None:
        """Forget the rejected messages, too."""
        super().flush_all()
        self._rejected.by_queue.clear()

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return the unfinished messages, delayed ones among them, and the dead letters."""
        name = f"{self.namespace}-{queue_name}"
        delayed = len(self._counts.list_delayed(name))
        return self._counts.count_unfinished(name) - delayed, delayed, self._counts.count_dead_letters(name)


@pytest.fixture
def ddmq_broker() -> Iterator[SuiteBroker]:
    """A broker whose queues no other test has."""
    broker = SuiteBroker(os.environ[ADDRESSES])
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@pytest.fixture
def stub_broker(ddmq_broker: SuiteBroker) -> SuiteBroker:
    """In place of the stub broker, whose `join` raises by default."""
    ddmq_broker.raises = True
    return ddmq_broker


@pytest.fixture
def redis_broker(ddmq_broker: SuiteBroker) -> SuiteBroker:
    """In place of the Redis broker."""
    return ddmq_broker


@pytest.fixture
def rabbitmq_broker(ddmq_broker: SuiteBroker) -> SuiteBroker:
    """In place of the RabbitMQ broker."""
    return ddmq_broker


def running_worker(broker: dramatiq.Broker, **options: Any) -> Iterator[dramatiq.Worker]:
    """Yield a worker that runs until the test has ended."""
    worker = dramatiq.Worker(broker, **options)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def stub_worker(stub_broker: SuiteBroker) -> Iterator[dramatiq.Worker]:
    """A worker of the stub broker's stand-in."""
    yield from running_worker(stub_broker, worker_timeout=100, worker_threads=32)


@pytest.fixture
def redis_worker(redis_broker: SuiteBroker) -> Iterator[dramatiq.Worker]:
    """A worker of the Redis broker's stand-in."""
    yield from running_worker(redis_broker, worker_threads=32)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: SuiteBroker) -> Iterator[dramatiq.Worker]:
    """A worker of the RabbitMQ broker's stand-in."""
    yield from running_worker(rabbitmq_broker, worker_threads=32)


@pytest.fixture
def result_backend() -> StubResults:
    """The backend of results that needs no server."""
    return StubResults()


@pytest.fixture
def redis_result_backend() -> StubResults:
    """The same, in place of Redis."""
    return StubResults()


@pytest.fixture
def rate_limiter_backend() -> StubLimiter:
    """The backend of rate limiters that needs no server."""
    return StubLimiter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that concern another broker's own features, each with its reason."""
    for item in items:
        reason = reason_to_skip(item.name.partition("[")[0])
        if reason:  # a row of selection.py: another broker's own feature, or a bound on time; each says which
            item.add_marker(pytest.mark.skip(reason=reason))
