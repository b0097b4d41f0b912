"""The strategies by themselves: who gets what, and that little moves where that is promised."""

from __future__ import annotations

import pytest

from backend.ownership.group import averagely, by_circle, consistent_hash

QUEUES = [f"orders/{number}" for number in range(400)]


@pytest.mark.parametrize(
    ("queues", "members", "owners"),
    [
        (5, 1, [0, 0, 0, 0, 0]),
        (8, 3, [0, 0, 0, 1, 1, 1, 2, 2]),
        (6, 3, [0, 0, 1, 1, 2, 2]),
        (2, 4, [0, 1]),
        (0, 3, []),
    ],
)
def test_averagely(queues: int, members: int, owners: list[int]) -> None:
    assert averagely(queues, members) == owners


def test_by_circle() -> None:
    assert by_circle(7, 3) == [0, 1, 2, 0, 1, 2, 0]
    assert by_circle(1, 3) == [0]


def test_consistent_hash_is_the_same_in_every_process() -> None:
    assert consistent_hash(QUEUES[:8], ["10.0.0.1:9713", "10.0.0.2:9713"]) == [0, 0, 0, 0, 0, 1, 0, 1]


def test_consistent_hash_moves_queues_only_to_the_new_member() -> None:
    names = [f"10.0.0.{n}:9713" for n in range(5)]
    before, after = consistent_hash(QUEUES, names[:4]), consistent_hash(QUEUES, names)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {4}
    assert 20 < len(moved) < 160, "about a fifth"


def test_consistent_hash_shares_about_evenly() -> None:
    owners = consistent_hash(QUEUES, [f"10.0.0.{n}:9713" for n in range(4)])
    assert all(50 < owners.count(member) < 180 for member in range(4))


def test_members_of_one_name_share_too() -> None:
    assert set(consistent_hash(QUEUES, ["", ""])) == {0, 1}
