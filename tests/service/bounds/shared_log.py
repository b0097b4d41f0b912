"""Several proxies over one directory: a writer and its members on one hub, with the real socket between them.

`SharedLog` holds the backends. `ProducerProxy` and `ConsumerProxy` are the services that a process runs over
one of them; their calls have no socket, and several may be under way at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from backend.completion import Completion
from backend.file_log import FileLogOptions, open_shared
from backend.file_log.sessions.election import ElectedBackend
from backend.port import Backend
from backend.records import TopicInfo
from ddmq_client.idl.codes import Code
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from proxy_consumer.config import ConsumerConfig
from proxy_consumer.service import ConsumerService
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.service.consumer.consumer_rig import IDL, METHODS
from tests.service.consumer.consumer_rig import FakeCall as PullCall
from tests.support.constants import build_options
from tests.support.rig import Rig
from tests.support.waits import PATIENCE_S, done, soon, until
from tests.unit.producer.producer_rig import Args, FakeTimer, Wire, message
from tests.unit.producer.producer_rig import FakeCall as SendCall

CLOCK = SystemClock()


class SharedLog(Rig):
    """A file log that `processes` processes have open; the first of them is the writer."""

    def __init__(self, directory: Path, processes: int, **options: Any) -> None:
        super().__init__()
        self.backends: list[ElectedBackend] = []
        for number in range(processes):
            opened = open_shared(
                directory,
                FileLogOptions(**options),
                clock=CLOCK,
                metrics=Registry(),
                may_write=number == 0,
            )
            self.backends.append(opened)

    @property
    def writer(self) -> Backend:
        return self.backends[0]

    def make(self, name: str, queues: int = 1) -> None:
        """Create a topic and wait until every process knows it."""
        done(self.writer.put_topic(TopicInfo(name, 0, queues), soon()))
        until(lambda: all(backend.topic(name) for backend in self.backends), f"all processes know {name}")

    def delete(self, name: str) -> None:
        """Delete a topic and wait until no process knows it."""
        done(self.writer.delete_topic(name, soon()))
        until(lambda: not any(backend.topic(name) for backend in self.backends), f"{name} is gone everywhere")

    def start_topic(self, process: int, name: str) -> Completion[TopicInfo]:
        """Begin to create a topic, as an operator does at one of the processes."""
        return self.backends[process].put_topic(TopicInfo(name, 0, 1), soon())

    def topics(self) -> set[str]:
        return set(self.writer.topics())

    def close(self) -> None:
        for backend in reversed(self.backends):
            backend.close()
        self.backends = []


class StoppedClock(SystemClock):
    """It stands still at the time of its making, so that no rate gives anything back meanwhile."""

    def __init__(self) -> None:
        self._stopped_at = super().monotonic()

    def monotonic(self) -> float:
        return self._stopped_at


class ProducerProxy(Rig):
    """A producer proxy over the backend of one process."""

    def __init__(self, backend: Backend, clock: SystemClock = CLOCK, **config: Any) -> None:
        super().__init__()
        self.backend = backend
        self.service = ProducerService(
            backend,
            build_options(ProducerConfig, **config),
            Registry(),
            clock,
            Random(),
            timer=FakeTimer(),
            transaction_timer=FakeTimer(),
        )
        self._handlers = self.service.service().handlers

    def start_send(self, **fields: Any) -> SendCall:
        """Begin a sendSync that is answered later."""
        arguments = Args(message=message(**fields), timeout=60_000)
        call = SendCall(arguments, CLOCK.monotonic(), 200, Wire.COMPACT, "sendSync")
        self._handlers["sendSync"](call)
        return call

    def close(self) -> None:
        self.service.close()


class ConsumerProxy(Rig):
    """A consumer proxy over the backend of one process; its timer runs."""

    def __init__(self, backend: Backend, **config: Any) -> None:
        super().__init__()
        self.backend = backend
        self.service = ConsumerService(
            backend, ConsumerConfig(**{"drain_leases_ms": 0} | config), Registry(), CLOCK, Random()
        )
        self.service.start()
        self._handlers = self.service.service().handlers

    def start_pull(self, group: str, topic: str, count: int | None = None) -> PullCall:
        """Begin a pull that lingers for as short as may be."""
        request = IDL.PullRequest(
            groupId=group.encode(), topic=topic.encode(), maxBatchSize=count, maxLingerTime=20, clientId=b"c"
        )
        call = PullCall("pull", METHODS["pull"].args[0](request=request))
        self._handlers["pull"](call)
        return call

    def close(self) -> None:
        self.service.drain(CLOCK.monotonic() + PATIENCE_S).wait(PATIENCE_S)


def send_results(calls: Iterable[SendCall]) -> list[tuple[int, str]]:
    """Wait for sends that were begun; return the code and text of each."""
    calls = list(calls)
    until(lambda: all(call.answers for call in calls), "every send is answered")
    return [(int(call.answer.code), str(call.answer.msg or "")) for call in calls]


def pull_results(calls: Iterable[PullCall]) -> list[tuple[int, str]]:
    """Wait for pulls that were begun; return the code and text of each. A pull that is served has code 0."""
    calls = list(calls)
    until(lambda: all(call.answered for call in calls), "every pull is answered")
    results = []
    for call in calls:
        error = getattr(call.outcome, "error", None)
        results.append((int(Code.OK), "") if error is None else (int(error.code), str(error.message)))
    return results
