"""ActiveMQ's scheduler: AMQ_SCHEDULED_DELAY, _PERIOD, _REPEAT, _CRON; and AMQ_SCHEDULED_ZONE, which is ours.

Delay and period are milliseconds. A message is scheduled if it has a delay, a period or a cron, and no
`scheduledJobId` (a message that ActiveMQ's scheduler delivered before has one, and goes out at once). The
first delivery comes after the delay, without one (or with 0) after the period; _REPEAT n lets n more follow,
_PERIOD apart; −1 without end. With a cron that series starts at each of its times. ActiveMQ reads crons in
the broker's own time zone; here it is UTC unless _ZONE says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddmq_common.delays.command import Schedule
from proxy_producer.core.dialects.parsed import ParsedSchedule, WrongValueError, text, whole

DELAY = b"AMQ_SCHEDULED_DELAY"
PERIOD = b"AMQ_SCHEDULED_PERIOD"
REPEAT = b"AMQ_SCHEDULED_REPEAT"
CRON = b"AMQ_SCHEDULED_CRON"
ZONE = b"AMQ_SCHEDULED_ZONE"
PROPERTIES = frozenset((DELAY, PERIOD, REPEAT, CRON, ZONE))
DELIVERED_BEFORE = b"scheduledJobId"


def read(properties: Mapping[bytes, bytes], now_ms: int) -> ParsedSchedule | None:
    """Raises WrongValueError."""
    delay, period, repeat = (whole(properties, name) for name in (DELAY, PERIOD, REPEAT))
    cron, zone = text(properties, CRON), text(properties, ZONE)
    if zone and not cron:
        raise WrongValueError(f"{ZONE.decode()} stands without a cron", f"allowed: with {CRON.decode()}")
    if DELIVERED_BEFORE in properties or (delay is None and period is None and not cron):
        return None
    first = delay if delay is not None and delay > 0 else period or 0
    return ParsedSchedule(Schedule(first, period or 0, repeat or 0, cron, zone or "UTC"))
