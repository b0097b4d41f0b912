"""Our own words for everything a schedule can say, for clients that can only set properties.

`deliver-at`: epoch seconds (with a fraction, as the score of a sorted set), epoch milliseconds or ISO 8601;
not before 1970 (the zero time of some languages), and where it repeats not before 2001, as for sendDelaySync.
`deliver-after`: a wait, `90s`, `1h30m`, `250ms`, or milliseconds. `deliver-cron` with `deliver-zone`: five
fields and an IANA zone. `deliver-period`, `deliver-repeat`: n more, so far apart (-1: without end).
`deliver-occurrences`: deliveries in all. `deliver-catch-up`: fire_once, all or skip.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddmq_common.delays.command import Schedule
from proxy_producer.core.delay_checks import TIMESTAMP_S_MIN
from proxy_producer.core.dialects.parsed import (
    ParsedSchedule,
    WrongValueError,
    duration_ms,
    moment_ms,
    text,
    whole,
    wrong,
)

AT = b"deliver-at"
AFTER = b"deliver-after"
CRON = b"deliver-cron"
ZONE = b"deliver-zone"
PERIOD = b"deliver-period"
REPEAT = b"deliver-repeat"
OCCURRENCES = b"deliver-occurrences"
CATCH_UP = b"deliver-catch-up"
PROPERTIES = frozenset((AT, AFTER, CRON, ZONE, PERIOD, REPEAT, OCCURRENCES, CATCH_UP))


def read(properties: Mapping[bytes, bytes], now_ms: int) -> ParsedSchedule | None:
    """Raises WrongValueError."""
    at, after = moment_ms(properties, AT), duration_ms(properties, AFTER)
    repeat = whole(properties, REPEAT) or 0
    if at is not None and at < (TIMESTAMP_S_MIN * 1_000 if repeat else 0):
        allowed = f"from 1970 on; with deliver-repeat from second {TIMESTAMP_S_MIN} (2001) on"
        raise wrong(properties, AT, allowed)
    cron, zone = text(properties, CRON), text(properties, ZONE)
    if at is not None and (after is not None or cron):
        raise WrongValueError(
            "deliver-at stands beside deliver-after or deliver-cron", "allowed: one first delivery"
        )
    if zone and not cron:
        raise WrongValueError("deliver-zone stands without deliver-cron", "allowed: both or none")
    schedule = Schedule(
        after or 0,
        duration_ms(properties, PERIOD) or 0,
        repeat,
        cron,
        zone or "UTC",
        whole(properties, OCCURRENCES) or 0,
        text(properties, CATCH_UP) or "fire_once",
    )
    return ParsedSchedule(schedule, at)
