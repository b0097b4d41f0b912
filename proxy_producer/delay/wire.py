"""A wire DelayMessage in our words. The wire's field names end here."""

from __future__ import annotations

from typing import Any

from ddmq_client.idl.codes import DelayAction, DelayType
from ddmq_common.delays.command import Schedule
from proxy_producer.core.delay_checks import DelayRequest
from proxy_producer.core.delay_commands import ANY_QUEUE
from proxy_producer.requests import RequestKind, SendRequest

_OURS = (
    "clientId", "dueMs", "cron", "zone", "delayMs", "periodMs", "repeat", "occurrencesMax", "catchUp", "key",
    "partitionId", "hashId",
)  # fmt: skip
_CRON_CHARACTERS_SHOWN = 256  # longer ones are refused by their length, and need not be kept whole


def delay_request_of(message: Any, born_ms: int, frame_bytes: int) -> SendRequest:
    """What `message` asks for; nothing is refused here. `born_ms`: epoch milliseconds."""
    ours = any(getattr(message, name) is not None for name in _OURS)
    schedule = _schedule(message) if ours and message.dmsgtype == DelayType.SCHEDULE else None
    return SendRequest(
        RequestKind.CHANGE if ours and message.action != DelayAction.ADD else RequestKind.DELAY,
        message.topic or b"",
        (message.key or b"") if schedule is not None else b"",
        message.tags or b"",
        message.body or b"",
        message.properties,
        (ANY_QUEUE if message.partitionId is None else message.partitionId, message.hashId or 0),
        ours,
        born_ms,
        frame_bytes,
        DelayRequest(
            message.action,
            message.uniqDelayMsgId or b"",
            message.timestamp,
            message.dmsgtype,
            message.interval,
            message.expire,
            message.times,
            message.uuid or b"",
            _due_ms(message, born_ms + 1),
            ours,
            schedule,
            bool(message.fresh) or not message.uuid,
        ),
    )


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
