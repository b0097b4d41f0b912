"""A topic's bound of waiting delayed messages holds over several delay services and producer proxies.

What is sent until the services have looked, once a second, comes on top of it.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

import gevent
import pytest

from backend.records import TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC
from delay_service.config import DelayConfig
from delay_service.service import DelayService
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.played_memory import PlayedMemory
from tests.service.delay.delay_rig import Disks
from tests.service.delay.hand_alarm import HandAlarms
from tests.support.rig import Rig
from tests.support.waits import done, until
from tests.unit.producer.producer_rig import Args, FakeCall, FakeTimer, Wire, delay_message

BOUND = 60
EACH_SECOND = 5  # sends at each proxy
SHARDS = 6
BUSY = 15
BYTES = 400  # of one message that waits, at most
HUB_ROUNDS = 50  # of the hub, until what a look has found is stored and every proxy was told


class DelayProcesses(Rig):
    """Delay services that share the shards, and as many producer proxies, over one engine."""

    def __init__(self, processes: int, **config: int) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.backend = PlayedMemory(self.clock)
        done(self.backend.put_topic(TopicInfo("orders", 0, 4), self.clock.monotonic() + 60))
        self.alarms = [HandAlarms() for _ in range(processes)]
        self.metrics = [Registry() for _ in range(processes)]
        disks, delays = Disks(), DelayConfig(shards=SHARDS, **config)
        self.services = [
            DelayService(self.backend, delays, metrics, self.clock, disks.open, alarms=alarms)
            for metrics, alarms in zip(self.metrics, self.alarms, strict=True)
        ]
        for service in self.services:
            service.start()
        until(self._shared_out, "every shard has an owner, every service has shards")
        self.proxies = [
            ProducerService(
                self.backend, ProducerConfig(), Registry(), self.clock, Random(),
                timer=FakeTimer(), transaction_timer=FakeTimer(),
            )
            for _ in range(processes)
        ]  # fmt: skip
        self.accepted: list[bytes] = []
        self._number = 0

    def _shared_out(self) -> bool:
        for alarms in self.alarms:
            alarms.ring()
        owned = [len(service.shards) for service in self.services]
        return sum(owned) == SHARDS and all(owned) and all(each.health().ready for each in self.services)

    def close(self) -> None:
        components: list[Any] = [*self.proxies, *self.services]
        for component in components:
            component.close()
        self.backend.close()

    def send(self, proxy: int, **fields: Any) -> Any:
        """Send one delayed message at a proxy, or with `action` and `uuid` another command."""
        self._number += 1
        uuid = str(UUID(int=Random(self._number).getrandbits(128))).encode()
        due_s = self.clock.wall_ms() // 1_000 + 3_600
        message = delay_message(**{"uuid": uuid, "timestamp": due_s, "body": b"x" * 100} | fields)
        call = FakeCall(
            Args(delayMessage=message, timeout=60_000), self.clock.monotonic(), 200, Wire.COMPACT,
            "sendDelaySync",
        )  # fmt: skip
        self.proxies[proxy].service().handlers["sendDelaySync"](call)
        until(lambda: call.answers, "the delayed send is answered")
        if call.answer.code == 0 and not fields:
            self.accepted.append(call.answer.uniqDelayMsgId)
        return call.answer

    def second(self) -> None:
        """Let the services take everything in, and a second pass."""
        until(self._has_ingested_all, "every command is taken in")
        self.clock.advance(1)
        for alarms in self.alarms:
            alarms.ring()
        for _ in range(HUB_ROUNDS):
            gevent.sleep(0)

    def pending_bytes(self) -> float:
        """The bytes that wait, as all services count them."""
        rows = [row for metrics in self.metrics for row in metrics.snapshot()["ddmq_delay_pending_bytes"]]
        return sum(float(row["value"]) for row in rows)

    def _has_ingested_all(self) -> bool:
        info = self.backend.topic(DELAY_TOPIC)
        assert info is not None
        ends = {ref: bounds.next for ref, bounds in zip(info.refs(), self._bounds(info), strict=True)}
        shards = [shard for service in self.services for shard in service.shards.values()]
        return sum(shard.position or 0 for shard in shards) == sum(ends.values()) and all(
            shard.is_idle for shard in shards
        )

    def _bounds(self, info: TopicInfo) -> list[Any]:
        return done(self.backend.bounds(info.refs()))


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("config", [{"pending_count_max": BOUND}, {"pending_bytes_max": BOUND * BYTES}])
def test_a_topic_fills_over_all_processes_and_is_freed_for_all(
    processes: int, config: dict[str, int]
) -> None:
    several = DelayProcesses(processes, **config)
    codes = set[int]()
    while BUSY not in codes:
        assert len(several.accepted) < 10 * BOUND, "it is never full"
        codes |= {several.send(proxy).code for _ in range(EACH_SECOND) for proxy in range(processes)}
        several.second()
    late = EACH_SECOND * processes
    assert BOUND / 3 < len(several.accepted) <= config.get("pending_count_max", 3 * BOUND) + late
    assert several.pending_bytes() <= config.get("pending_bytes_max", 1 << 60) + late * BYTES
    for proxy in range(processes):
        answer = several.send(proxy)
        assert answer.code == BUSY
        assert "delayed messages" in answer.msg
    for message_id in several.accepted[: len(several.accepted) // 2]:
        several.send(0, action=2, uuid=None, uniqDelayMsgId=message_id)
    several.second()
    several.second()
    assert [several.send(proxy).code for proxy in range(processes)] == [0] * processes
