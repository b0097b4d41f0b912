"""Which settings a move copies."""

from __future__ import annotations

from ddmq.move.core.scope import Scope
from proxy_consumer.groups.group import encode_subscription

SETTINGS = {
    "group/g": b"{}",
    "subscription/g/orders": encode_subscription({}, 1, "log", 2),
    "subscription/g/others": encode_subscription({}, 1, "log"),
    "hold/orders": b"3",
    "hold/others": b"4",
}


def test_a_pause_and_a_hold_move_with_their_group_and_topic() -> None:
    assert Scope().select_settings(SETTINGS) == SETTINGS
    assert Scope(("ord*",)).select_settings(SETTINGS).keys() == {
        "group/g",
        "subscription/g/orders",
        "hold/orders",
    }
