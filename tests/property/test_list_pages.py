"""Pages of a list, put together, contain every item that was there all the time once, whatever comes and goes
between them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.http.paging import PageRequest, select_page, slice_page
from ddmq_common.errors import CallerError

NAMES = st.text("abcé\x00", max_size=4)
Item = tuple[int, str]


@given(
    stable=st.sets(st.tuples(st.integers(0, 3), NAMES), max_size=20),
    volatile=st.lists(st.sets(st.tuples(st.integers(0, 3), NAMES), max_size=6), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=10),
    descending=st.booleans(),
    text=st.none() | st.sampled_from(["a", "b"]),
)
def test_a_walk_lists_what_was_there_all_the_time_once(
    stable: set[Item], volatile: list[set[Item]], sizes: list[int], descending: bool, text: str | None
) -> None:
    listed: list[Item] = []
    after = ""
    request = PageRequest(sort="rank", descending=descending, text=text)
    for step in range(100):
        others = volatile[step % len(volatile)]
        items = [item for item in stable | others if request.matches(item[1])]
        random.Random(step).shuffle(items)
        request = request._replace(size=sizes[step % len(sizes)], after=after)
        page = select_page(items, lambda item: item, tuple[int, str], request)
        assert len(page.items) <= request.size
        assert page.total == len(items)
        listed += page.items
        if page.next is None:
            break
        after = page.next
    assert page.next is None, "the walk ends"
    assert listed == sorted(set(listed), reverse=descending), "each once, in order"
    assert {item for item in stable if request.matches(item[1])} <= set(listed)


@given(
    items=st.sets(st.tuples(st.integers(0, 3), NAMES), max_size=20),
    after=st.none() | st.tuples(st.integers(0, 3), NAMES),
    size=st.integers(1, 5),
    descending=st.booleans(),
)
def test_a_slice_of_sorted_items_is_the_page_that_is_selected_from_all(
    items: set[Item], after: Item | None, size: int, descending: bool
) -> None:
    request = PageRequest(size, "rank", descending)
    if after is not None:
        request = request._replace(after=request.encode_position(after))
    selected = select_page(items, lambda item: item, tuple[int, str], request)
    assert slice_page(sorted(items), tuple[int, str], request) == selected


@pytest.mark.parametrize("after", ["x", "", "bm9uZQ", "WyJyYW5rIiwxXQ", "é", "W10"])
def test_what_is_no_cursor_is_rejected(after: str) -> None:
    request = PageRequest(sort="rank", after=after or "?")
    with pytest.raises(CallerError, match="after is"):
        request.decode_position(tuple[int, str])


def test_a_cursor_is_for_one_order() -> None:
    first = PageRequest(sort="rank", size=1)
    page = select_page([(1, "a"), (2, "b")], lambda item: item, tuple[int, str], first)
    assert page.next is not None
    with pytest.raises(CallerError, match="after is of a page with sort=rank; here sort=-rank"):
        first._replace(descending=True, after=page.next).decode_position(tuple[int, str])
