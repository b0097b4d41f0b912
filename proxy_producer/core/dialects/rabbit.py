"""RabbitMQ's delayed message exchange: header x-delay, milliseconds.

As that plugin does it, a delay holds from 1 to 2³²−1 ms (49.7 days); anything outside is no delay, and so a
message that the plugin delayed before, which carries its delay negated, goes out at once. A fraction is cut.
What is no number the plugin cannot read either; here it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddmq_common.delays.command import Schedule
from proxy_producer.core.dialects.parsed import ParsedSchedule, number

DELAY = b"x-delay"
PROPERTIES = frozenset((DELAY,))
DELAY_MS_MAX = (1 << 32) - 1


def read(properties: Mapping[bytes, bytes], now_ms: int) -> ParsedSchedule | None:
    """Raises WrongValueError."""
    delay = number(properties, DELAY)
    if delay is None or not 0 < delay <= DELAY_MS_MAX:
        return None
    return ParsedSchedule(Schedule(delay_ms=delay))
