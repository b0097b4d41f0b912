"""The rule that every crash run applies to the deliveries of one order key. Pure: times are arguments.

A message is delivered when every earlier one of its key is durably finished. So once a client had a message,
no earlier one of the key may be delivered again: whatever was killed, lost or unanswered in between. This
holds for every delivery, not only for the first one of each message. It does not hold for keys that an
operator replayed or whose offsets were reset, nor between the messages of one answer with `chain_batch` above
1; the runs have neither.

A delivery happened at an unknown time between the request for it and the client's receipt of the answer. It
breaks the rule only if its request left after a client had received a later message of the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class KeyDelivery(NamedTuple):
    """One delivery of the message with the number `index` of its key, in order.

    `requested`: when the pull for it left the client; `received`: when its answer had arrived. `label`: what
    it is, for people.
    """

    index: int
    requested: float
    received: float
    label: str = ""


class Return(NamedTuple):
    """A delivery that breaks the rule, and a delivery of a later message that a client had before it."""

    delivery: KeyDelivery
    later: KeyDelivery


def find_returns(deliveries: Iterable[KeyDelivery]) -> list[Return]:
    """Return the deliveries of one key whose message a later one had already followed."""
    received = sorted(deliveries, key=lambda delivery: delivery.received)
    returns: list[Return] = []
    newest: KeyDelivery | None = None  # of those received before `requested`, the one with the highest index
    at = 0
    for delivery in sorted(received, key=lambda delivery: delivery.requested):
        while at < len(received) and received[at].received <= delivery.requested:
            if newest is None or received[at].index > newest.index:
                newest = received[at]
            at += 1
        if newest is not None and newest.index > delivery.index:
            returns.append(Return(delivery, newest))
    return returns
