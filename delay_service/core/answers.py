"""What is answered about an id, by what is known of it."""

from __future__ import annotations

from ddmq_common.delays.command import ADDED, ALREADY_FIRED, CANCELLED, UNKNOWN, DelayCommand
from delay_service.store.port import IdKind, IdState

OVER = (IdKind.FIRED, IdKind.DEAD)


def latest_ms(said: DelayCommand) -> int:
    """The latest time that a command names."""
    return max(said.due_ms, said.timestamp_s * 1_000, said.expire_s * 1_000 if said.times else 0)


def known(state: IdState) -> tuple[int, str]:
    """What an add of a known id is answered, and counted as."""
    if state.kind is IdKind.PENDING:
        return ADDED, "known"
    if state.kind in OVER:
        return ALREADY_FIRED, "known"
    return CANCELLED, "cancelled before"


def known_again(state: IdState) -> tuple[int, str]:
    """What a cancel of an id is answered that does not wait any more."""
    if state.kind in OVER:
        return ALREADY_FIRED, "already fired"
    if state.kind is IdKind.CANCELLED:
        return CANCELLED, "cancelled again"
    return UNKNOWN, "unknown"


def code_of(state: IdState | None, pending: int) -> tuple[int]:
    if state is None or state.kind is IdKind.TOMBSTONE:
        return (UNKNOWN,)
    if state.kind is IdKind.PENDING:
        return (pending,)
    return (ALREADY_FIRED if state.kind in OVER else CANCELLED,)
