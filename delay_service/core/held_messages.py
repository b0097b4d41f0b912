"""Holds of single messages. A held message does not fire, whatever its due time is, until it is released.

A held message stays in the due order of its store, HELD_FROM_MS later than it is due: behind every message
that can ever be due. So nothing that fires messages knows of holds, and held messages are sorted by their due
times, too. Everything that shows a due time, or computes with it, uses `plain_due_ms`.
"""

from __future__ import annotations

from delay_service.store.port import Pending

HELD_FROM_MS = 1 << 60  # due times of commands end at 2^53


def is_held_ms(due_ms: int) -> bool:
    """Return whether a stored due time is that of a held message."""
    return due_ms >= HELD_FROM_MS


def plain_due_ms(due_ms: int) -> int:
    """Return the due time without the hold."""
    return due_ms - HELD_FROM_MS if due_ms >= HELD_FROM_MS else due_ms


def released_message(message: Pending) -> Pending:
    """Return the message without its hold."""
    return message._replace(due_ms=plain_due_ms(message.due_ms))


def held_message(message: Pending) -> Pending:
    """Return the message with a hold."""
    return message._replace(due_ms=plain_due_ms(message.due_ms) + HELD_FROM_MS)


def with_hold_of(message: Pending, other: Pending) -> Pending:
    """Return `message` held or not, as `other` is."""
    return held_message(message) if is_held_ms(other.due_ms) else released_message(message)
