"""Making a group, a subscription, and where it starts: one commit, durable before anything is delivered.

Of two that make the same subscription at once, here or at two proxies, one does (`absent`).

`start` applies to the queues that exist now: their committed offset is set by a reset in the same commit
as the settings. Queues that appear later have no progress and start at their first message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.completion import Completion
from backend.records import AppendResult, Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq_common.errors import DdmqError, FencedError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.group import (
    SOURCE_LOG,
    differences,
    encode_group,
    encode_subscription,
    group_key,
    subscription_key,
)
from proxy_consumer.runtime import Runtime


class Creation:
    """One subscription on its way into the settings. `done(error)` runs once, later or at once."""

    def __init__(
        self,
        runtime: Runtime,
        group: str,
        topic: str,
        config: SubscriptionDefaults,
        done: Callable[[Exception | None], None],
        source: str = SOURCE_LOG,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._runtime = runtime
        self._group = group
        self._topic = topic
        self._config = config
        self._done = done
        self._source = source
        self._given = differences(config, runtime.config.defaults) if given is None else given
        self._left = 0
        self._error: Exception | None = None

    def start(self) -> None:
        """Ask where the queues start, then commit."""
        backend = self._runtime.backend
        info = backend.topic(self._topic)
        queues = (
            [] if info is None else [QueueRef(info.name, info.incarnation, n) for n in range(info.queues)]
        )
        if not queues:
            self._commit(())
            return
        views = backend.progress(self._group, queues)
        starts = self._starts(queues)
        waited: list[Completion[Any]] = [views, *starts]
        self._left = len(waited)

        def one(answer: Completion[Any]) -> None:
            self._left -= 1
            self._error = self._error or answer.error
            if self._left == 0:
                self._asked(queues, views, starts)

        for completion in waited:
            completion.then(one)

    def _starts(self, queues: Sequence[QueueRef]) -> list[Completion[Any]]:
        backend, start = self._runtime.backend, self._config.start
        if start in ("first", "last"):
            return [backend.bounds(queues)]
        return [backend.offset_for_time(queue, int(start)) for queue in queues]

    def _asked(
        self,
        queues: Sequence[QueueRef],
        views: Completion[list[ProgressView]],
        starts: list[Completion[Any]],
    ) -> None:
        if self._error is not None:
            self._done(self._error)
            return
        offsets = self._offsets(starts)
        self._commit(
            [
                ProgressDelta(self._group, queue, view.epoch, view.generation + 1, reset_to=offset)
                for queue, view, offset in zip(queues, views.value, offsets, strict=True)
                if offset is not None
            ]
        )

    def _offsets(self, starts: list[Completion[Any]]) -> list[int | None]:
        if self._config.start not in ("first", "last"):
            return [completion.value for completion in starts]
        limits: list[Bounds | None] = starts[0].value
        first = self._config.start == "first"
        return [None if one is None else (one.min if first else one.next) for one in limits]

    def _commit(self, resets: Sequence[ProgressDelta]) -> None:
        runtime = self._runtime
        if runtime.backend.setting(subscription_key(self._group, self._topic)) is not None:
            self._done(FencedError(f"group {self._group} has got a subscription to {self._topic} meanwhile"))
            return
        created_ms = runtime.clock.wall_ms()
        settings: dict[str, bytes | None] = {
            subscription_key(self._group, self._topic): encode_subscription(
                self._given, created_ms, self._source
            )
        }
        if runtime.backend.setting(group_key(self._group)) is None:
            settings[group_key(self._group)] = encode_group(created_ms, self._source)
        absent = (subscription_key(self._group, self._topic),)
        batch = CommitBatch(progress=resets, settings=settings, absent=absent)
        try:
            runtime.backend.commit(batch, runtime.commit_deadline()).then(self._committed)
        except DdmqError as error:
            self._done(error)

    def _committed(self, committed: Completion[list[AppendResult]]) -> None:
        self._done(committed.error)
