"""Pages of keys, put together, are the list of all keys; so are their counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq.cli.operate.groups import keys as keys_command
from ddmq.cli.operate.groups.keys import merge_counts
from ddmq.server.admin.contract.queries import KeysQuery, KeyState
from ddmq.server.admin.search import keys as all_keys
from ddmq.server.admin.search.error_classes import classify_error
from ddmq.server.admin.search.keys import (
    ErrorCounts,
    KeyPosition,
    KeySelection,
    collect_page,
    decode_position,
    position_of,
    selection_of,
)
from ddmq.server.http.parameters import read_query
from ddmq_common.errors import CallerError
from proxy_consumer.groups.blocked_keys import STATES, BlockedKey

HOSTILE = "\x1b[2J\u202e'\"; DROP <script>\n"


@dataclass(frozen=True)
class FakeKey:
    """A key at a position, with everything stated."""

    position: KeyPosition
    is_blocked: bool
    state: str
    error: str
    waiting: int
    failing_since_ms: int | None
    has_more: bool = False

    @property
    def key(self) -> str:
        return f'"k{self.position.offset}"'

    def describe_key(self) -> BlockedKey:
        return BlockedKey(
            self.key, "T", 0, self.position.offset, 0, 1, self.state, self.error, self.waiting, False
        )


KEYS = st.lists(
    st.builds(
        FakeKey,
        st.builds(
            KeyPosition,
            st.sampled_from("ab"),
            st.just(0),
            st.sampled_from("TU"),
            st.just(0),
            st.integers(0, 30),
        ),
        st.booleans(),
        st.sampled_from(["retrying", "parked"]),
        st.sampled_from(["", "ValueError: 1", "ValueError: 2", "KeyError", HOSTILE]),
        st.integers(0, 3),
        st.none() | st.integers(1, 9),
    ),
    unique_by=lambda key: key.position,
    max_size=30,
).map(lambda keys: sorted(keys, key=lambda key: key.position))
SELECTIONS = st.builds(
    KeySelection,
    state=st.sampled_from([None, "parked"]),
    error=st.sampled_from([None, "", "ValueError"]),
    text=st.sampled_from([None, "1", "k2", "DROP"]),
)


def walk(keys: list[FakeKey], after: KeyPosition | None) -> Iterator[FakeKey | None]:
    for key in keys:
        yield None
        if after is None or key.position > after:
            yield key


def matches(key: FakeKey, selection: KeySelection) -> bool:
    return (
        key.is_blocked
        and (selection.state is None or selection.state == key.state)
        and (selection.error is None or selection.error == classify_error(key.error))
        and (selection.text is None or selection.text in key.key + "\x00" + key.error)
    )


@given(KEYS, SELECTIONS, st.integers(0, 5), st.integers(1, 8))
def test_pages_put_together_are_the_list(
    keys: list[FakeKey], selection: KeySelection, count: int, examined_max: int
) -> None:
    expected = [key for key in keys if matches(key, selection)]
    listed: list[KeyPosition] = []
    counted: list[int] = []
    after: KeyPosition | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_keys, "EXAMINED_MAX", examined_max)
        for pages in range(1, 100):
            page = collect_page(walk(keys, after), selection, count)
            behind = [key for key in keys if after is None or key.position > after]
            rest = [key for key in behind[:examined_max] if matches(key, selection)]
            assert page.counts.total == len(rest), "those of this request"
            assert page.complete == (len(behind) <= examined_max)
            assert [position for position, _, _ in page.rows] == [key.position for key in rest[:count]]
            listed += [position for position, _, _ in page.rows]
            counted.append(page.counts.total)
            after = page.next
            if after is None:
                break
            assert pages < len(keys) + 1, "each page makes progress"
    if count:
        assert listed == [key.position for key in expected]
    else:
        assert sum(counted) == len(expected), "pages without rows count each key once"


@given(KEYS)
def test_error_counts_as_naive_counts_have_them(keys: list[FakeKey]) -> None:
    counts = ErrorCounts()
    for key in keys:
        counts.add(key)
    model: dict[str, list[FakeKey]] = {}
    for key in keys:
        model.setdefault(classify_error(key.error), []).append(key)
    rows = counts.as_rows()
    assert {row["error"]: row["keys"] for row in rows} == {name: len(some) for name, some in model.items()}
    for row in rows:
        some = model[row["error"]]
        assert row["waiting"] == sum(key.waiting for key in some)
        times = [key.failing_since_ms for key in some if key.failing_since_ms is not None]
        assert row["failing_since_ms"] == min(times, default=None)
    assert counts.total == len(keys)
    assert [row["keys"] for row in rows] == sorted((row["keys"] for row in rows), reverse=True)


@given(
    st.builds(
        KeyPosition, st.text(max_size=9), st.integers(0, 1), st.text(max_size=9), key=st.text(max_size=9)
    )
)
def test_a_cursor_is_the_position(position: KeyPosition) -> None:
    assert decode_position(position.encode()) == position


@pytest.mark.parametrize(
    "text", ["", "x", "é", "W10", "bnVsbA", "!" * 5_000, KeyPosition().encode()[:-2], "WyJhIl0"]
)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(CallerError, match="allowed: `next` of an earlier answer"):
        decode_position(text)


@given(KEYS, st.integers(1, 8))
def test_the_command_adds_up_the_counts_of_all_requests(keys: list[FakeKey], examined_max: int) -> None:
    blocked = [key for key in keys if key.is_blocked]
    answers: list[dict[str, Any]] = []
    after: KeyPosition | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(all_keys, "EXAMINED_MAX", examined_max)
        while not answers or after is not None:
            page = collect_page(walk(keys, after), KeySelection(), 0)
            rows = page.counts.as_rows()
            answers.append({"total": page.counts.total, "complete": page.complete, "by_error": rows})
            after = page.next
    counts = ErrorCounts()
    for key in blocked:
        counts.add(key)
    merged = merge_counts(answers)
    assert merged == {"total": len(blocked), "complete": True, "by_error": counts.as_rows()}


def test_what_a_listing_may_have_in_its_query() -> None:
    query = read_query(KeysQuery, {"state": "in flight", "error": "", "text": "x", "group": "G"})
    assert selection_of(query) == KeySelection("G", "in flight", "", "x")
    assert position_of(query) == KeyPosition()
    position = KeyPosition("a", 0, "T", 0, 5)
    assert position_of(read_query(KeysQuery, {"after": position.encode()})) == position
    for texts, error in (
        ({"state": "stuck"}, "state is 'stuck'; allowed: ready, in flight, retrying, parked, "),
        ({"text": ""}, "text is ''; allowed: a text of 1 to 200 characters"),
        ({"after": ""}, "after is ''; allowed: `next` of an earlier answer"),
    ):
        with pytest.raises(CallerError, match=error):
            position_of(read_query(KeysQuery, texts))


def test_the_command_and_the_query_know_all_states() -> None:
    assert get_args(KeyState) == keys_command.STATES == STATES


def test_positions_are_in_the_order_of_the_listing() -> None:
    positions: list[Any] = [
        KeyPosition("a"),
        KeyPosition("a", 0, "T", 0, 5),
        KeyPosition("a", 0, "T", 1, 0),
        KeyPosition("a", 0, "U", 0, 0),
        KeyPosition("a", 1, key='"x"'),
        KeyPosition("b"),
    ]
    assert positions == sorted(positions)
