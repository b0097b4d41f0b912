"""Pages of several owners are merged to the list that one owner of all shards would make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.delays.choice import Cursor
from ddmq.server.delays.pages import DelayPage, find_coverage, merge_overviews, merge_pages, position_of

Message = tuple[Cursor, bool]  # its position, and whether it matches


@st.composite
def owners(draw: st.DrawFn) -> list[list[Message]]:
    """The messages of each owner, which has every third shard, by position."""
    positions = draw(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), max_size=40))
    by_owner: list[list[Message]] = [[], [], []]
    for position in sorted(positions):
        by_owner[position[1] % 3].append((Cursor(*position), draw(st.booleans())))
    return by_owner


def list_own(messages: Sequence[Message], after: Cursor | None, size: int, examined_max: int) -> DelayPage:
    """What an owner lists: at most `size` rows, after it has examined at most `examined_max` messages."""
    rows, last = [], None
    behind = [each for each in messages if after is None or each[0] > after]
    for number, (position, matches) in enumerate(behind):
        if len(rows) == size or number == examined_max:
            return DelayPage(rows, last, None)
        last = position
        if matches:
            rows.append({"due_ms": position.due_ms, "shard": position.shard, "offset": position.offset})
    return DelayPage(rows, None, None)


@given(owners(), st.integers(1, 7), st.integers(1, 12))
def test_all_pages_together_are_the_whole_list_in_its_order(
    by_owner: list[list[Message]], size: int, examined_max: int
) -> None:
    listed: list[Cursor] = []
    after: Cursor | None = None
    while True:
        pages = [list_own(messages, after, size, examined_max) for messages in by_owner]
        page = merge_pages(pages, size, [])
        assert len(page.rows) <= size
        listed += map(position_of, page.rows)
        if page.last is None:
            break
        assert after is None or page.last > after
        after = page.last
    assert listed == sorted(position for messages in by_owner for position, matches in messages if matches)


@given(owners(), st.integers(1, 7))
def test_a_shard_that_two_owners_list_is_listed_once(by_owner: list[list[Message]], size: int) -> None:
    pages = [list_own(messages, None, size, 99) for messages in by_owner]
    assert merge_pages([*pages, pages[0]], size, []).rows == merge_pages(pages, size, []).rows


def test_a_page_states_what_it_lacks() -> None:
    pages = [
        DelayPage(total=3, orders_waiting=2, not_open=[4]),
        DelayPage(total=4, not_open=[1], elsewhere=[4]),
    ]
    merged = merge_pages(pages, 9, [7])
    assert merged == DelayPage([], None, 7, 2, [1, 4], [7])
    assert not merged.is_exact
    assert merge_pages([DelayPage(), DelayPage(total=None)], 9, []).total is None


def describe_owner(epochs: dict[int, int], pending: dict[str, int], reason: str = "") -> dict[str, Any]:
    """An overview of one owner: its shards with their epochs, and what waits by topic."""
    shards = [
        {"shard": number, "epoch": epoch, "fires": True, "why": "", "pending": 0, "orders_waiting": 0}
        for number, epoch in epochs.items()
    ]
    return {
        "health": {"ready": not reason, "reason": reason}, "topics": pending, "shards": shards,
        "standbys": [], "set_aside": {"dead": "no leader"} if reason else {}, "held": {},
        "pending": sum(pending.values()),
        "elsewhere": [], "not_open": [],
    }  # fmt: skip


def test_an_overview_adds_up_what_the_owners_say() -> None:
    first = describe_owner({0: 7, 2: 3}, {"orders": 2, "mail": 1})
    other = describe_owner({1: 5, 2: 4}, {"orders": 40}, "delay shard 1 does not fire")
    merged = merge_overviews([first, other], {"mail": 9}, [3])
    assert (merged["topics"], merged["pending"]) == ({"mail": 1, "orders": 42}, 43)
    assert [(row["shard"], row["epoch"]) for row in merged["shards"]] == [(0, 7), (1, 5), (2, 4)]
    assert merged["health"] == {"ready": False, "reason": "delay shard 1 does not fire"}
    assert (merged["set_aside"], merged["held"]) == ({"dead": "no leader"}, {"mail": 9})
    assert (merged["elsewhere"], merged["not_open"]) == ([3], [])


def test_shards_that_move_during_a_request_are_seen() -> None:
    assert find_coverage(4, [[2, 3], [0, 1]]) == ([], True)
    assert find_coverage(4, [[2, 3], [0, 1, 3]]) == ([3], True), "no answer covers it"
    assert find_coverage(4, [[3], [0, 1, 3], [0, 1, 2]]) == ([], False), "two answers cover it"
    assert find_coverage(2, []) == ([0, 1], True)
