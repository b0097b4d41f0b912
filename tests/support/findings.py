"""The findings of a process that a test moves through time, as GET /findings answers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from backend.port import Backend
from ddmq.server.admin.api import AdminApi
from ddmq.server.findings.watch import TICK_S, FindingsWatch
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.registry import Registry
from proxy_consumer.service import ConsumerService

INSTANCE = "mq-1:9813"


class FindingsView:
    """The admin API over a backend and its metrics, which evaluates its rules as a server does."""

    def __init__(
        self, backend: Backend, metrics: Registry, clock: ManualClock, consumer: ConsumerService | None = None
    ) -> None:
        self._clock = clock
        self._watch = FindingsWatch(metrics, clock, INSTANCE)
        self._api = AdminApi(backend, consumer, metrics, clock, backend.health, findings=self._watch)

    def items(self) -> list[dict[str, Any]]:
        environ = {"REQUEST_METHOD": "GET", "RAW_URI": "/findings", "QUERY_STRING": ""}
        answer = b"".join(self._api.router(environ, lambda status, headers: None))
        return list(msgspec.json.decode(answer)["items"])

    def ids(self) -> list[str]:
        return [item["id"] for item in self.items()]

    def pass_time(self, seconds: float, advance: Callable[[float], object] | None = None) -> None:
        """Let time pass, with an evaluation each TICK_S. `advance` moves the clock, and what runs by it."""
        for _ in range(int(seconds / TICK_S)):
            (advance or self._clock.advance)(TICK_S)
            self._watch.evaluate_rules()
