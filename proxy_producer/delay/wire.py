"""A wire DelayMessage in our words. The wire's field names end here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ddmq_client.idl.codes import DelayAction, DelayType
from ddmq_common.delay_command import Schedule
from ddmq_common.schedules import first_due_ms
from proxy_producer.core.delay_checks import DelayRequest
from proxy_producer.core.delay_commands import ANY_QUEUE

_OURS = (
    "clientId", "dueMs", "cron", "zone", "delayMs", "periodMs", "repeat", "occurrencesMax", "catchUp", "key",
    "partitionId", "hashId",
)  # fmt: skip
_CRON_CHARACTERS_SHOWN = 256  # longer ones are refused by their length, and need not be kept whole


class Asked(NamedTuple):
    """One delay request. `request.due_ms` is set when the caller gave milliseconds in any way.

    `schedule`: of an add of type 5. Strings are bytes that nobody has checked, but for those of the schedule.
    """

    request: DelayRequest
    topic: bytes
    body: bytes
    tags: bytes
    properties: Mapping[bytes, bytes] | None
    key: bytes
    place: tuple[int, int]
    schedule: Schedule | None
    fresh: bool  # an add whose uuid nobody can know yet

    @property
    def ours(self) -> bool:
        """The caller knows fields of ours."""
        return self.request.ours

    @property
    def adds(self) -> bool:
        """It adds a message; everything else changes one."""
        return self.request.action == DelayAction.ADD

    @property
    def topic_name(self) -> str:
        """Of a checked request; empty where a change of ours names none."""
        return self.topic.decode()


def asked_of(message: Any, now_ms: int) -> Asked:
    """What `message` asks for; nothing is refused here."""
    ours = any(getattr(message, name) is not None for name in _OURS)
    schedule = _schedule(message) if ours and message.dmsgtype == DelayType.SCHEDULE else None
    request = DelayRequest(
        message.action,
        message.uniqDelayMsgId or b"",
        message.timestamp,
        message.dmsgtype,
        message.interval,
        message.expire,
        message.times,
        message.uuid or b"",
        _due_ms(message, now_ms),
        ours,
    )
    return Asked(
        request,
        message.topic or b"",
        message.body or b"",
        message.tags or b"",
        message.properties,
        (message.key or b"") if schedule is not None else b"",
        (ANY_QUEUE if message.partitionId is None else message.partitionId, message.hashId or 0),
        schedule,
        bool(message.fresh) or not message.uuid,
    )


def with_due(asked: Asked, now_ms: int) -> Asked:
    """A checked schedule that says no moment of its own: its first one."""
    if asked.schedule is None or asked.request.due_ms is not None:
        return asked
    due_ms = first_due_ms(asked.schedule, now_ms)
    return asked._replace(request=asked.request._replace(due_ms=due_ms))


def _due_ms(message: Any, now_ms: int) -> int | None:
    """Epoch milliseconds, or None where the timestamp (or the schedule itself) says when."""
    if message.dueMs is not None:
        due_ms: int = message.dueMs
        return due_ms
    if message.dmsgtype == DelayType.SCHEDULE and message.action == DelayAction.ADD:
        timestamp = message.timestamp
        return None if not timestamp or message.delayMs is not None else int(timestamp) * 1_000
    return None if message.delayMs is None else now_ms + int(message.delayMs)


def _schedule(message: Any) -> Schedule:
    text = {name: _text(getattr(message, name)) for name in ("cron", "zone", "catchUp")}
    return Schedule(
        message.delayMs or 0,
        message.periodMs or 0,
        message.repeat or 0,
        text["cron"],
        text["zone"] or "UTC",
        message.occurrencesMax or 0,
        text["catchUp"] or "fire_once",
    )


def _text(given: bytes | None) -> str:
    return (given or b"")[:_CRON_CHARACTERS_SHOWN].decode("utf-8", "backslashreplace")
