"""Writes down what a `ddmq_client.Consumer` hears and says: its pulls and submits, as they go over the wire.

The library's threads are made with classes that note each call; the library itself does not know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from ddmq_client.core.acks import AckBatch
from ddmq_client.net import worker_pool
from ddmq_client.net.worker_pool import Flusher, Puller
from ddmq_client.wire.consuming import FAILURES, Pulled
from tests.crash.mixed.history import Delivery, History, Settlement, Unseen
from tests.crash.mixed.reading import body_id

if TYPE_CHECKING:
    from tests.crash.mixed.clients import Proxy

_installing = threading.Lock()


class Tap:
    """Of one consumer."""

    def __init__(self, history: History, proxies: Sequence[Proxy], client: str) -> None:
        self._history = history
        self._proxies = {f"127.0.0.1:{proxy.port()}": proxy for proxy in proxies}
        self._client = client
        self._leased: dict[tuple[str, int, int], Delivery] = {}  # by qid, offset, lease

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Consumers started within are noted."""
        tap = self

        class NotedPuller(Puller):
            def _call(self, batch: int, linger_ms: int, acks: AckBatch | None) -> Pulled:
                proxy = tap.proxy(self._source.proxy.name)
                settlements, life, requested = tap.leave(acks, proxy), proxy.life, time.monotonic()
                try:
                    answer = super()._call(batch, linger_ms, acks)
                except FAILURES:
                    tap.missed(self._pulls.group, proxy, requested)
                    raise
                tap.take(answer, proxy, life, requested)
                tap.answered(settlements)
                return answer

        class NotedFlusher(Flusher):
            def _submit_acks(self, acks: AckBatch, deadline: float) -> Exception | None:
                settlements = tap.leave(acks, tap.proxy(self.proxy.name))
                error = super()._submit_acks(acks, deadline)
                if error is None:
                    tap.answered(settlements)
                return error

        for kind, method in ((Puller, "_call"), (Flusher, "_submit_acks")):
            assert callable(getattr(kind, method)), "a renamed method would be noted no more"

        with (
            _installing,
            mock.patch.object(worker_pool, "Puller", NotedPuller),
            mock.patch.object(worker_pool, "Flusher", NotedFlusher),
        ):
            yield

    def proxy(self, name: str) -> Proxy:
        """The proxy of that address."""
        return self._proxies[name]

    def leave(self, acks: AckBatch | None, proxy: Proxy) -> list[Settlement]:
        """Results are about to leave."""
        settlements: list[Settlement] = []
        now = time.monotonic()
        for results in acks or ():
            qid = results.origin.queue
            acked = self._deliveries(qid, results.successes, results.success_leases)
            failed = self._deliveries(qid, results.fails, results.fail_leases)
            settlements += self._history.settle(acked, proxy.name, now, ack=True)
            for delivery, reason in zip(failed, results.fail_reasons, strict=True):
                settlements += self._history.settle([delivery], proxy.name, now, ack=False, reason=reason)
        return settlements

    def _deliveries(self, qid: str, offsets: Sequence[int], leases: Sequence[int]) -> list[Delivery]:
        return [self._leased[qid, *each] for each in zip(offsets, leases, strict=True)]

    def answered(self, settlements: Sequence[Settlement]) -> None:
        """They were taken."""
        now = time.monotonic()
        for each in settlements:
            each.answered = now

    def missed(self, group: str, proxy: Proxy, requested: float) -> None:
        """A pull that brought nothing."""
        self._history.unseen.append(Unseen(group, proxy.name, requested, time.monotonic()))

    def take(self, answer: Pulled, proxy: Proxy, life: int, requested: float) -> None:
        """A pull that brought messages."""
        read = time.monotonic()
        origin: Any = answer.origin
        for message in answer.messages:
            assert message.lease_id, "our own client was given no lease"
            delivery = self._history.give(
                origin.group,
                body_id(message.body),
                topic=origin.topic,
                qid=origin.queue,
                offset=message.offset,
                proxy=proxy.name,
                life=life if life == proxy.life else -1,
                lease=message.lease_id,
                requested=requested,
                read=read,
                client=self._client,
            )
            self._leased[origin.queue, message.offset, message.lease_id] = delivery
