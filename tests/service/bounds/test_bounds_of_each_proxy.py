"""Bounds that each proxy counts for itself: N proxies allow N times as much, and not more."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.records import AppendStatus, NewRecord
from ddmq_common.delivery import encode
from ddmq_common.token_bucket import CREATIONS_AT_ONCE
from proxy_consumer.config import SubscriptionDefaults
from proxy_producer.config import RateLimit
from tests.service.bounds.shared_bounds import BUSY
from tests.service.bounds.shared_log import (
    CLOCK,
    ConsumerProxy,
    ProducerProxy,
    SharedLog,
    StoppedClock,
    send_results,
)
from tests.support.waits import done, soon, until

QUEUES = 6
MESSAGES = 120
LIMIT = 7


class Leasing:
    """A group that proxies of several processes share; what they delivered is never acknowledged."""

    def __init__(self, folder: Path, processes: int, **settings: object) -> None:
        self.log = SharedLog(folder / "log", processes)
        self.log.make("T", QUEUES)
        self.proxies = [ConsumerProxy(backend) for backend in self.log.backends]
        for number, proxy in enumerate(self.proxies):
            proxy.service.advertise(f"proxy-{number}:9713")
        config = SubscriptionDefaults(start="first", **settings)  # type: ignore[arg-type]
        done(self.proxies[0].service.subscribe("g", "T", config))
        until(lambda: all(backend.setting("group/g") for backend in self.log.backends), "all know the group")
        self.delivered: list[list[tuple[bytes, int]]] = [[] for _ in self.proxies]
        until(self._shared_out, "every proxy that may hold queues of the group does")
        results = done(self.log.writer.append([_record(number) for number in range(MESSAGES)], soon()))
        assert {result.status for result in results} == {AppendStatus.STORED}

    def _shared_out(self) -> bool:
        """Pull once, which makes a proxy take its share; say whether all queues have their holders."""
        self.pull_all()
        holders = done(self.log.writer.holders("g", "T", soon()))
        proxies = 1 if self.proxies[0].service.order_keys("g").order_keys else len(self.proxies)
        return len(holders) == QUEUES and len(set(holders.values())) == proxies

    def pull_all(self) -> None:
        """Pull at every proxy until none of them brings anything, twice in a row."""
        empty = 0
        while empty < 2:
            calls = [proxy.start_pull("g", "T") for proxy in self.proxies]
            until(lambda: all(call.answered for call in calls), "every pull is answered")  # noqa: B023
            empty = 0 if any(call.result.messages for call in calls) else empty + 1
            for call, delivered in zip(calls, self.delivered, strict=True):
                for message in call.result.messages or ():
                    delivered.append((call.result.context.qid, message.offset))

    def count_in_flight(self) -> int:
        return sum(map(len, self.delivered))


def _record(number: int) -> NewRecord:
    delivery = encode(b"k%d" % number, b"x" * 100, b"", None)
    return NewRecord("T", number % QUEUES, number.to_bytes(16, "big"), CLOCK.wall_ms(), delivery)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_concurrency_is_of_each_proxy(processes: int, tmp_path: Path) -> None:
    leasing = Leasing(tmp_path, processes, concurrency=LIMIT, batch_max=3)
    until(
        lambda: leasing.pull_all() or leasing.count_in_flight() == LIMIT * processes,
        "every proxy is at its bound",
    )
    leasing.pull_all()
    assert [len(delivered) for delivered in leasing.delivered] == [LIMIT] * processes
    everything = [message for delivered in leasing.delivered for message in delivered]
    assert len(set(everything)) == len(everything), "a message is in flight at one proxy only"


@pytest.mark.parametrize("processes", [2, 3])
def test_concurrency_of_a_group_in_order_is_of_all(processes: int, tmp_path: Path) -> None:
    leasing = Leasing(tmp_path, processes, concurrency=LIMIT, batch_max=3, order_key="KEY")
    until(lambda: leasing.pull_all() or leasing.count_in_flight() == LIMIT, "the holder is at its bound")
    leasing.pull_all()
    assert leasing.count_in_flight() == LIMIT


@pytest.mark.parametrize("processes", [2, 3])
def test_a_topics_rate_is_of_each_proxy(processes: int, tmp_path: Path) -> None:
    log = SharedLog(tmp_path / "log", processes)
    log.make("T")
    limits = {"topic_rate": RateLimit(messages_per_s=0.001, burst_ms=60_000), "defer_ms_max": 0}
    for backend in log.backends:
        proxy = ProducerProxy(backend, **limits)
        results = send_results(proxy.start_send(topic=b"T") for _ in range(3))
        assert [code for code, _ in results] == [0, BUSY, BUSY]
        assert "topic 'T' is limited to" in results[1][1]


def test_the_burst_of_new_topics_is_of_each_proxy(tmp_path: Path) -> None:
    """It is bounded by topics_max in any case, which holds for all of them together."""
    log = SharedLog(tmp_path / "log", 2)
    settings = {"creations_max": 10_000, "timeout_ms_max": 600_000}
    proxies = [ProducerProxy(backend, StoppedClock(), **settings) for backend in log.backends]
    calls = [
        proxy.start_send(topic=b"t-%d-%d" % (proxy_index, number))
        for number in range(CREATIONS_AT_ONCE + 40)
        for proxy_index, proxy in enumerate(proxies)
    ]
    results = send_results(calls)
    for proxy_index in range(len(proxies)):
        accepted = sum(code == 0 for code, _ in results[proxy_index :: len(proxies)])
        assert accepted == CREATIONS_AT_ONCE
    assert {code for code, _ in results} == {0, BUSY}
