"""A proxy with push subscriptions over the memory engine, its clock moved by hand."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gevent

from backend.records import NewRecord
from ddmq_common.delivery import decode, encode
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.push.actions.config import FormConfig, HttpConfig, PushConfig
from tests.service.consumer.consumer_rig import ConsumerRig
from tests.support.waits import until

LOOPBACK = ("127.0.0.0/8",)


class PushRig(ConsumerRig):
    """`pushed` subscribes group G to topic T."""

    def __init__(self, **config: Any) -> None:
        super().__init__(ConsumerConfig(**{"push_targets": LOOPBACK} | config))
        self.topic()

    def pushed(self, *actions: str, push: PushConfig, topic: str = "T", **more: Any) -> None:
        self.subscribe(
            topic=topic, config=SubscriptionDefaults(start="first", actions=actions, push=push, **more)
        )

    def http(self, *urls: str, actions: tuple[str, ...] = ("FormParams", "AsyncHttp"), **more: Any) -> None:
        """A subscription that pushes to `urls`; fields of HttpConfig or of the subscription."""
        http_settings = {
            name: more.pop(name) for name in list(more) if name in HttpConfig.__dataclass_fields__
        }
        push = PushConfig(
            http=HttpConfig(urls=urls, **http_settings),
            form=more.pop("form", FormConfig()),
            query_params=more.pop("query_params", {}),
        )
        self.pushed(*actions, push=push, **more)

    def put(
        self,
        *bodies: bytes,
        key: bytes = b"k",
        properties: Mapping[bytes, bytes] | None = None,
        topic: str = "T",
    ) -> None:
        """Append messages to queue 0."""
        records = [
            NewRecord(
                topic,
                0,
                bytes(16),
                self.clock.wall_ms(),
                encode(key, body, b"", properties),
                key=key,
                tags=b"",
            )
            for body in bodies
        ]
        self.wait(self.backend.append(records, self.deadline()))
        self.settle()

    def until_committed(self, offset: int) -> None:
        until(lambda: self.progress().committed == offset)

    def until_moved(self, condition: Any, step_s: float = 0.1, seconds: float = 30.0) -> None:
        """Move the clock in small steps until `condition` holds, slowly enough for the receiver's thread."""

        def moved() -> bool:
            self.settle(condition)
            if condition():
                return True
            self.advance(step_s)
            gevent.sleep(0.001)
            return False

        until(moved, lambda: inspect.getsource(condition), seconds)

    def outcomes(self) -> dict[str, float]:
        names = ("done", "filtered", "failed", "given up", "again", "late")
        counted = {name: self.counted("ddmq_pushes_total", outcome=name) for name in names}
        return {name: count for name, count in counted.items() if count}

    def dead(self, group: str = "G") -> list[tuple[bytes, dict[str, str]]]:
        """Bodies and properties of the dead letters."""
        info = self.backend.topic(f"%DLQ%{group}")
        if info is None:
            return []
        dead_letters = []
        for queue in range(info.queues):
            ref = self.ref(queue, f"%DLQ%{group}")
            batch = self.wait(self.backend.read(ref, 0, 100, 1 << 20))
            for raw in batch.deliveries:
                content = decode(raw)
                texts = {name.decode(): value.decode() for name, value in content.properties.items()}
                dead_letters.append((content.value, texts))
        return dead_letters
