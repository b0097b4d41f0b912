"""The admin API's paths about groups: settings, offsets, blocked keys.

| request | answer |
|---|---|
| GET /groups · /groups/NAME?keys= | a row per subscription · one in full, with so many blocked keys |
| GET /lag?group= | a row per subscription with lag, its age and rates, the furthest behind first |
| POST /groups/NAME {topics, settings…} · DELETE /groups/NAME?topic= | the group · {} |
| POST /groups/NAME/topics/TOPIC {settings…, unset} | made or changed: what differs, what is in force |
| GET /groups/NAME/offsets?topic= | where it stands, queue by queue |
| POST /groups/NAME/offsets {topic, to, queue, dry_run} | what a reset did, or would do |
| GET /groups/NAME/keys?limit= · POST /groups/NAME/keys {action, key} | blocked keys · park, skip, replay |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.port import Backend
from ddmq.server.admin import groups, keys, offsets
from ddmq.server.admin.group_view import GroupView
from ddmq.server.admin.queries import WAIT_S
from ddmq.server.admin.rates import Rates
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import Clock
from ddmq_common.errors import CallerError, DdmqError
from ddmq_common.metrics.registry import Registry
from proxy_consumer.service import ConsumerService

_RESET_KEYS = ("topic", "to", "queue", "dry_run")


class GroupRoutes:
    """Handlers over one process's parts; `consumer` raises UnsupportedError where that part is not."""

    def __init__(
        self, backend: Backend, consumer: Callable[[], ConsumerService], metrics: Registry, clock: Clock
    ) -> None:
        self._backend = backend
        self._consumer = consumer
        self._metrics = metrics
        self._clock = clock
        self._rates = Rates()

    def table(self) -> dict[tuple[str, str], Callable[[AdminRequest], Any]]:
        """Method and path → handler."""
        return {
            ("GET", "/groups"): lambda r: groups.rows(self._backend, self._consumer(), self._clock, r.page()),
            ("GET", "/lag"): lambda r: self._view().lag(r.query.get("group"), r.page().most),
            ("GET", "/groups/{group}"): self._detail,
            ("POST", "/groups/{group}"): self._create,
            ("DELETE", "/groups/{group}"): self._delete,
            ("POST", "/groups/{group}/topics/{topic}"): self._change,
            ("GET", "/groups/{group}/offsets"): self._offsets,
            ("POST", "/groups/{group}/offsets"): self._reset,
            ("GET", "/groups/{group}/keys"): self._keys,
            ("POST", "/groups/{group}/keys"): self._act,
        }

    def sample(self) -> None:
        """Note how far the counters are; call it every rates.PERIOD_S seconds."""
        self._rates.sample(self._clock.monotonic(), self._consumer().counts())

    def _view(self) -> GroupView:
        return GroupView(self._backend, self._consumer(), self._metrics, self._clock, self._rates)

    def _detail(self, request: AdminRequest) -> Any:
        limit = _limit(request.query, "keys")
        return self._view().detail(request.path["group"], limit)

    def _create(self, request: AdminRequest) -> Any:
        group = request.path["group"]
        done = groups.create(self._consumer(), group, request.body)
        return self._view().detail(group) | done

    def _delete(self, request: AdminRequest) -> Any:
        unknown = sorted(set(request.query) - {"topic"})
        if unknown:
            raise CallerError(f"{unknown[0]!r} says nothing about what to delete; allowed: topic")
        groups.delete(self._consumer(), request.path["group"], request.query.get("topic"))
        return {}

    def _change(self, request: AdminRequest) -> Any:
        group, topic = request.path["group"], request.path["topic"]
        consumer = self._consumer()
        self._catch_up(group, topic)
        return groups.change(consumer, group, topic, request.body)

    def _catch_up(self, group: str, topic: str) -> None:
        """Hear what others have changed by now, which comes before any answer of the writer: a change is made
        to what a subscription sets, and must not take back one that was answered at another proxy."""
        try:
            self._backend.holders(group, topic, self._clock.monotonic() + WAIT_S).wait(WAIT_S + 1)
        except (DdmqError, TimeoutError):
            pass  # the change itself will say so

    def _offsets(self, request: AdminRequest) -> Any:
        return offsets.show(self._backend, request.path["group"], request.query.get("topic"))

    def _reset(self, request: AdminRequest) -> Any:
        body = request.body
        unknown = sorted(set(body) - set(_RESET_KEYS))
        if unknown:
            raise CallerError(f"{unknown[0]!r} is not a key of a reset; known are: {', '.join(_RESET_KEYS)}")
        topic, queue, dry_run = body.get("topic"), body.get("queue"), body.get("dry_run", False)
        if not isinstance(topic, str) or not topic:
            raise CallerError(f"topic is {topic!r}; the name of a topic that the group consumes is wanted")
        if queue is not None and (not isinstance(queue, int) or isinstance(queue, bool)):
            raise CallerError(f"queue is {queue!r}; a queue number, or none for all, is wanted")
        if not isinstance(dry_run, bool):
            raise CallerError(f"dry_run is {dry_run!r}; allowed: true, false")
        return offsets.reset(
            self._backend, self._clock, request.path["group"], topic, body.get("to"), queue, dry_run
        )

    def _keys(self, request: AdminRequest) -> Any:
        return keys.rows(self._consumer(), request.path["group"], _limit(request.query, "limit"))

    def _act(self, request: AdminRequest) -> Any:
        key = request.body.get("key")
        if not isinstance(key, str):
            raise CallerError(f"key is {key!r}; the key as text is wanted, as `ddmq group keys` shows it")
        return keys.act(self._consumer(), request.path["group"], str(request.body.get("action")), key)


def _limit(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, str(keys.LIMIT_DEFAULT))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= keys.LIMIT_MAX:
        raise CallerError(f"{name} is {text!r}; allowed: 1 to {keys.LIMIT_MAX}")
    return int(text)
