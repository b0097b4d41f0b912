"""The rule for the deliveries of one key, fed with what clients may see, and with what they may not."""

from __future__ import annotations

import pytest

from tests.crash.kit.key_order import KeyDelivery, find_returns

BEFORE_COMMITS = [0, 1, 3, 2, 4, 5, 1, 2, 3, 4, 5]  # released with the acknowledgement, and a kill -9


def one_after_the_other(indexes: list[int]) -> list[KeyDelivery]:
    """Each answered before the next is asked for."""
    return [KeyDelivery(index, at, at + 0.5) for at, index in enumerate(indexes)]


def returned(deliveries: list[KeyDelivery]) -> list[int]:
    return [each.delivery.index for each in find_returns(deliveries)]


@pytest.mark.parametrize(
    "indexes",
    [[], [0], [0, 1, 2, 3], [0, 0, 0, 1, 2, 2, 3], [2, 3]],
    ids=["nothing", "one", "in order", "each again before the next", "some unseen"],
)
def test_deliveries_in_order_break_no_rule(indexes: list[int]) -> None:
    assert returned(one_after_the_other(indexes)) == []


def test_every_return_after_a_kill_is_reported() -> None:
    returns = find_returns(one_after_the_other(BEFORE_COMMITS))
    assert [each.delivery.index for each in returns] == [2, 1, 2, 3, 4]
    assert {each.later.index for each in returns[1:]} == {5}


def test_a_second_delivery_counts_like_the_first() -> None:
    assert returned(one_after_the_other([0, 1, 2, 1, 3])) == [1]


def test_deliveries_requested_at_the_same_time_prove_nothing() -> None:
    early, late = KeyDelivery(0, 0.0, 9.0), KeyDelivery(1, 1.0, 2.0)
    assert returned([early, late]) == []
    assert returned([late, early._replace(requested=1.9)]) == []


def test_a_delivery_requested_after_a_later_message_arrived_breaks_the_order() -> None:
    early, late = KeyDelivery(0, 2.0, 9.0), KeyDelivery(1, 1.0, 2.0)
    assert returned([early, late]) == [0]


def test_the_order_of_the_records_does_not_matter() -> None:
    deliveries = one_after_the_other([0, 1, 2, 1, 3])
    assert returned(deliveries[::-1]) == [1]
