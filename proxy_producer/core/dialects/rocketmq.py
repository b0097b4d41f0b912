"""RocketMQ 5's arbitrary delays: TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS.

Seconds from now, milliseconds from now, epoch milliseconds; of several the first in this order holds. A
moment that has passed is no delay. (RocketMQ rounds down to its timer's precision, which may be early by a
second; here the millisecond counts.)
"""

from __future__ import annotations

from collections.abc import Mapping

from ddmq_common.delays.command import Schedule
from proxy_producer.core.dialects.parsed import ParsedSchedule, whole

DELAY_SEC = b"TIMER_DELAY_SEC"
DELAY_MS = b"TIMER_DELAY_MS"
DELIVER_MS = b"TIMER_DELIVER_MS"
PROPERTIES = frozenset((DELAY_SEC, DELAY_MS, DELIVER_MS))


def read(properties: Mapping[bytes, bytes], now_ms: int) -> ParsedSchedule | None:
    """Raises WrongValueError."""
    seconds = whole(properties, DELAY_SEC)
    delay = whole(properties, DELAY_MS)
    moment = whole(properties, DELIVER_MS)
    if seconds is not None:
        return ParsedSchedule(Schedule(), now_ms + seconds * 1_000, relative=True)
    if delay is not None:
        return ParsedSchedule(Schedule(), now_ms + delay, relative=True)
    return None if moment is None else ParsedSchedule(Schedule(), moment)
