"""The data that an application exchanges with the check of its transactions.

A check is a function of the application. It is given an UndecidedTransaction, one whose end no proxy has
heard, and returns a Decision, by what its own database says. It may be asked about any transaction of its
producer group: of another process, or of one that is long dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from ddmq_client.core.settings import is_text
from ddmq_client.delays import When, to_datetime
from ddmq_client.errors import OptionError
from ddmq_client.outgoing import OutgoingMessage, add_properties

REFERENCE = "transaction-reference"  # property of its messages
REFERENCE_CHARS_MAX = 255


class Decision(Enum):
    """The possible answers of a check about a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    NOT_KNOWN_YET = "not known yet"  # ask again later


@dataclass(frozen=True, slots=True)
class UndecidedTransaction:
    """A transaction that a check is asked about.

    id            what `Transaction.id` was when it was begun
    messages      with their topics, bodies, keys, tags and properties, in the order they were sent
    reference     what was given as `transaction(reference=...)`; None without
    check         how often it is asked with this time: 1 first, 15 last
    prepared_ms   epoch milliseconds when its first message was stored
    """

    id: str
    messages: Sequence[OutgoingMessage]
    reference: str | None
    check: int
    prepared_ms: int
    through_offset: int | None = None  # of the wire

    @property
    def prepared_at(self) -> datetime:
        """The time when the first message of the transaction was stored, in UTC."""
        return to_datetime(self.prepared_ms)


Check = Callable[[UndecidedTransaction], object]


@dataclass(slots=True)
class CheckCounts:
    """Counters of a producer's check since its start."""

    committed: int = 0
    rolled_back: int = 0
    not_known: int = 0  # as the check said
    errors: int = 0  # the check raised, or returned no Decision: told as not known yet
    unanswered: int = 0  # the decision reached no proxy, or came too late: it is asked for again
    poll_errors: int = 0

    def copy(self) -> CheckCounts:
        """Return an independent copy of the counters."""
        return replace(self)


def check_reference(reference: str | None) -> None:
    """Raise OptionError if the reference cannot be a property."""
    if reference is None or (is_text(reference) and 1 <= len(reference) <= REFERENCE_CHARS_MAX):
        return
    raise OptionError(f"reference={reference!r}; allowed: text of 1 to {REFERENCE_CHARS_MAX} characters")


def reference_of(messages: Sequence[OutgoingMessage]) -> str | None:
    """Return the reference with which the messages were sent."""
    return next(
        (reference for each in messages if (reference := (each.properties or {}).get(REFERENCE))), None
    )


def with_reference(message: OutgoingMessage, reference: str | None) -> OutgoingMessage:
    """Add a property with the reference to a message."""
    if reference is None:
        return message
    return replace(message, properties=add_properties(message.properties, {REFERENCE: reference}))


def with_due_time(message: OutgoingMessage, when: When | None) -> OutgoingMessage:
    """Add properties that state the due time to a message, as proxies read them in transactions."""
    if when is None:
        return message
    delays = {
        "deliver-at": when.due_ms,
        "deliver-after": when.delay_ms,
        "deliver-cron": when.cron,
        "deliver-zone": when.zone,
        "deliver-period": when.period_ms,
        "deliver-repeat": when.repeat,
        "deliver-occurrences": when.occurrences_max,
        "deliver-catch-up": when.catch_up,
    }
    properties = {name: str(value) for name, value in delays.items() if value is not None}
    return replace(message, properties=add_properties(message.properties, properties))
