"""Finds why a subscription has unfinished messages: the first known condition that holds them up. Pure.

docs/operating-groups.md has the same conditions as a table, with what to do about each.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

RATE_SHARE = 0.95  # of `rate_max` from which on the limit counts as reached


class LagCause(StrEnum):
    """A condition that keeps messages from being finished, in the order in which they are considered."""

    PAUSED = "paused"  # by an operator
    NOBODY_CONSUMES = "nobody-consumes"  # no client pulls here, and no other proxy holds a queue
    TOPIC_CLOSED = "topic-closed"  # the topic is not readable
    PUSH_HELD_BACK = "push-held-back"
    OTHER_PROXY = "other-proxy"  # other proxies hold all queues with unfinished messages
    STALLED = "stalled"  # clients wait, and some queues make no progress
    CONCURRENCY = "concurrency"
    RETRYING_MAX = "retrying-max"
    ACK_SPAN_MAX = "ack-span-max"
    RATE_MAX = "rate-max"
    CLIENTS_DIFFER = "clients-differ"  # clients of the group state other filters or topics
    SLOWER_THAN_ARRIVALS = "slower-than-arrivals"  # fewer messages are finished than stored
    KEYS_BLOCKED = "keys-blocked"  # the head of an order key has failed


class LagFacts(NamedTuple):
    """The facts about one subscription at one proxy; None: not known.

    `held_elsewhere`: other proxies hold all queues that have unfinished messages. `ordered`: it has an order
    key. Rates are per second.
    """

    unfinished: int | None
    concurrency: int
    retrying_max: int
    ack_span_max: int
    rate_max: int = 0  # 0: no limit
    ordered: bool = False
    readable: bool = True
    paused: bool = False
    consumed: bool | None = None
    held_elsewhere: bool | None = None
    push_held_back: bool = False
    stalled: bool = False
    clients_differ: bool = False
    in_flight: int = 0
    retrying: int = 0
    ack_span: int = 0
    delivered_per_s: float | None = None
    arriving_per_s: float | None = None
    finished_per_s: float | None = None


def find_lag_cause(facts: LagFacts) -> LagCause | None:
    """Return the first cause that is known to apply; None without unfinished messages, or if none is
    known."""
    if not facts.unfinished:
        return None
    applies = {
        LagCause.PAUSED: facts.paused,
        LagCause.NOBODY_CONSUMES: facts.consumed is False,
        LagCause.TOPIC_CLOSED: not facts.readable,
        LagCause.PUSH_HELD_BACK: facts.push_held_back,
        LagCause.OTHER_PROXY: facts.held_elsewhere is True,
        LagCause.STALLED: facts.stalled,
        LagCause.CONCURRENCY: facts.in_flight >= facts.concurrency,
        LagCause.RETRYING_MAX: facts.retrying >= facts.retrying_max,
        LagCause.ACK_SPAN_MAX: facts.ack_span >= facts.ack_span_max,
        LagCause.RATE_MAX: _is_rate_reached(facts),
        LagCause.CLIENTS_DIFFER: facts.clients_differ,
        LagCause.SLOWER_THAN_ARRIVALS: _is_slower(facts),
        LagCause.KEYS_BLOCKED: facts.ordered and facts.retrying > 0,
    }
    return next((cause for cause in LagCause if applies[cause]), None)


def _is_rate_reached(facts: LagFacts) -> bool:
    delivered = facts.delivered_per_s
    return bool(facts.rate_max) and delivered is not None and delivered >= RATE_SHARE * facts.rate_max


def _is_slower(facts: LagFacts) -> bool:
    arriving, finished = facts.arriving_per_s, facts.finished_per_s
    return arriving is not None and finished is not None and finished < arriving


def drain_seconds(
    unfinished: int | None, arriving_per_s: float | None, finished_per_s: float | None
) -> float | None:
    """Return how long it takes at these rates until no message is unfinished; None if it is not known, or if
    the number does not fall."""
    if unfinished == 0:
        return 0.0
    if unfinished is None or arriving_per_s is None or finished_per_s is None:
        return None
    falling_per_s = finished_per_s - arriving_per_s
    seconds = unfinished / falling_per_s if falling_per_s > 0 else math.inf
    return seconds if math.isfinite(seconds) else None
