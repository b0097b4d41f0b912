"""The states of a job and what may happen to it in each: a table, shown in docs/states.md.

Most messages never become a job: they are read, leased as part of a run of offsets (leases.py) and
acknowledged. A job is made for one that fails or times out, waits in a chain and is read again, is parked or
skipped, or was any of it before a restart. It begins PLAIN (it was only read so far), RECORDED (group
progress knows it) or LEASED (a client gave it back), and ends GONE. What the table does not hold cannot
happen: `after` raises and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class JobState(Enum):
    """The value is what the state means."""

    PLAIN = "read, and nothing else known of it"
    RECORDED = "known from group progress, or back in its chain after a try"
    RELEASED = "its chain came to it, or it is to be judged again: read and delivered next"
    LEASED = "a client has it"
    WAITING = "failed; a retry interval is on"
    READY = "to be read and delivered again"
    PARKED = "an operator has set its key aside"
    SPENT = "on its way to the retry topic or the dead letters"
    GONE = "no job any more"

    __hash__ = object.__hash__  # members are singletons


class JobEvent(Enum):
    """The value is what happened."""

    DELIVERED = "handed to a client"
    FAILED = "failed, or timed out, and has to wait"
    TIMED_OUT = "timed out and comes again at once"
    DUE = "its retry interval is over"
    LET_OUT = "its chain came to it, a client gave it back unread, or it is to be judged again"
    SENT_BACK = "waits in its chain again, tried before"
    FORGOTTEN = "waits in its chain again, never tried"
    PARKED = "its key was set aside"
    REPLAYED = "an operator wants it delivered now"
    SPENT = "its tries are used up, or a client or an operator gave it up"
    FINISHED = "acknowledged, skipped, expired, or stored in its next topic"

    __hash__ = object.__hash__


class IllegalJobEventError(Exception):
    """A bug: this cannot happen to a job in its state. Nothing was changed."""

    def __init__(self, state: JobState, event: JobEvent) -> None:
        super().__init__(f"a job that is {state.name} was {event.name}")


_S, _E = JobState, JobEvent
_BACK = {_E.SENT_BACK: _S.RECORDED, _E.FORGOTTEN: _S.GONE}
_END = {_E.SPENT: _S.SPENT, _E.FINISHED: _S.GONE}
_AGAIN = {_E.DELIVERED: _S.LEASED, _E.PARKED: _S.PARKED, **_BACK, **_END}

TRANSITIONS: Mapping[JobState, Mapping[JobEvent, JobState]] = {
    _S.PLAIN: {_E.LET_OUT: _S.RELEASED, _E.PARKED: _S.PARKED, _E.SPENT: _S.SPENT},
    _S.RECORDED: {_E.LET_OUT: _S.RELEASED, **_AGAIN},
    _S.RELEASED: {_E.FAILED: _S.WAITING, **_AGAIN},
    _S.LEASED: {
        _E.FAILED: _S.WAITING,
        _E.TIMED_OUT: _S.READY,
        _E.LET_OUT: _S.RELEASED,
        _E.PARKED: _S.PARKED,
        **_BACK,
        **_END,
    },
    _S.WAITING: {_E.DUE: _S.READY, _E.PARKED: _S.PARKED, _E.REPLAYED: _S.READY, **_END},
    _S.READY: {_E.FAILED: _S.WAITING, **_AGAIN},
    _S.PARKED: {_E.REPLAYED: _S.READY, **_BACK, **_END},
    _S.SPENT: {_E.FINISHED: _S.GONE},
    _S.GONE: {},
}


def after(state: JobState, event: JobEvent) -> JobState:
    """The state that follows; IllegalJobEventError where the event cannot happen."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise IllegalJobEventError(state, event)
    return following
