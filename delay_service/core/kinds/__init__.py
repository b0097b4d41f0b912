"""When an order fires, and when again: the occurrences of every kind of delay message. Pure.

Occurrence 0 is the first. A number determines its due time (`due_ms`) and its id (`occurrence_id`), numbers
and due times only grow together, and what comes after one is a function of the order, the number and the
clock (`next_after`), so that whoever knows the last number fired goes on as if nothing had happened. Each
kind counts its own way (loops.py, schedules.py), by large steps too; `delivered_before` says how many fired.
Where a count must rise above 0 with the first occurrence, as attempts do, keep occurrence + 1.

`next_after` costs the same however much was missed: a loop that started in 2001 is not walked through.
"""

from delay_service.core.kinds.occurrences import (
    CATCH_UP_MAX,
    Next,
    delivered_before,
    due_ms,
    last_due_ms,
    next_after,
    occurrence_id,
    to_fire,
)

__all__ = [
    "CATCH_UP_MAX",
    "Next",
    "delivered_before",
    "due_ms",
    "last_due_ms",
    "next_after",
    "occurrence_id",
    "to_fire",
]
