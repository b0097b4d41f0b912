"""The order of all subscriptions by lag, which is kept between requests, is the one that was read last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddmq.server.admin.lag.order import FRESH_S, LagOrder
from ddmq_common.clock import ManualClock
from ddmq_common.errors import RemoteError

NAMES = [("a", "t"), ("b", "t"), ("c", "t")]


class LagSource:
    """LagSource with one subscription each, to the topic t. `silent`: those whose lag cannot be read."""

    def __init__(self, **lags: int) -> None:
        self.lags = lags
        self.silent: set[str] = set()

    def read_group(self, group: str) -> list[Any]:
        if group in self.silent:
            raise RemoteError("no answer")
        return [SimpleNamespace(group=group, topic="t", lag=self.lags[group])]


@pytest.fixture
def groups() -> LagSource:
    return LagSource(a=3, b=1, c=2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def order(groups: LagSource, clock: ManualClock) -> LagOrder:
    return LagOrder(groups.read_group, clock)


def test_the_smallest_lag_is_first(order: LagOrder) -> None:
    assert order.read_order(NAMES) == ([(1, "b", "t"), (2, "c", "t"), (3, "a", "t")], True)


def test_lags_are_read_again_after_a_while(order: LagOrder, groups: LagSource, clock: ManualClock) -> None:
    order.read_order(NAMES)
    groups.lags["b"] = 9
    assert order.read_order(NAMES)[0][0] == (1, "b", "t")
    clock.advance(FRESH_S)
    assert order.read_order(NAMES) == ([(2, "c", "t"), (3, "a", "t"), (9, "b", "t")], True)


def test_a_new_subscription_is_in_the_next_order(order: LagOrder, groups: LagSource) -> None:
    order.read_order(NAMES)
    groups.lags["d"] = 7
    assert order.read_order([*NAMES, ("d", "t")])[0][-1] == (7, "d", "t")


def test_a_lag_that_cannot_be_read_stays_and_makes_the_order_inexact(
    order: LagOrder, groups: LagSource, clock: ManualClock
) -> None:
    order.read_order(NAMES)
    groups.silent.add("a")
    groups.lags["b"] = 9
    clock.advance(FRESH_S)
    assert order.read_order(NAMES) == ([(2, "c", "t"), (3, "a", "t"), (9, "b", "t")], False)
    groups.silent.clear()
    assert order.read_order(NAMES)[1]


def test_a_group_is_read_at_each_request(order: LagOrder, groups: LagSource) -> None:
    order.read_order(NAMES)
    groups.lags["a"] = 5
    assert order.read_order_of_group("a", NAMES[:1]) == ([(5, "a", "t")], True)
    groups.silent.add("a")
    assert order.read_order_of_group("a", NAMES[:1]) == ([(5, "a", "t")], False)
