"""Rows of several streams come in the order of their log positions, against sorting all of them at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy_consumer.core.order.placing import ReadAhead, merged

positions = st.sets(st.integers(0, 200), min_size=3, max_size=80)


def stream(found: list[int], skipped: int) -> Any:
    """A stream whose feed holds messages at these log positions; the first `skipped` are placed already."""
    deliveries = [b"at %d" % position for position in found]
    run = SimpleNamespace(
        offsets=[number * 2 for number in range(len(found))],
        deliveries=deliveries,
        indexes=range(1, len(found) + 1),
        batch=SimpleNamespace(positions=[-1, *found]),
    )
    feed = SimpleNamespace(current=lambda: (run, skipped))
    return SimpleNamespace(feed=feed, faulty=set(), key_of=None, busy={}, deliverable=[])


@given(positions, st.integers(1, 30), st.data())
def test_pieces_are_the_beginning_of_all_in_order(whole: set[int], count: int, data: st.DataObject) -> None:
    streams = data.draw(st.integers(2, 3))
    state: Any = SimpleNamespace(jobs=SimpleNamespace(out=set()))
    owner = {position: data.draw(st.integers(0, streams - 1)) for position in whole}
    columns = [sorted(p for p in whole if owner[p] == number) for number in range(streams)]
    columns = [column for column in columns if column]
    skips = [data.draw(st.integers(0, len(column) - 1)) for column in columns]
    parts = [ReadAhead(stream(column, skip), state) for column, skip in zip(columns, skips, strict=True)]
    expected = sorted(p for column, skip in zip(columns, skips, strict=True) for p in column[skip:])
    seen: list[int] = []
    while all(part.at < part.end for part in parts):
        rows = merged(parts, count)
        assert rows
        per_part = [sum(row[1] == number for row in rows) for number in range(len(parts))]
        assert max(per_part) <= count
        for position, number, offset, delivery, index in rows:
            part = parts[number]
            assert (offset, index) == (part.run.offsets[part.at], part.run.indexes[part.at])
            assert delivery == b"at %d" % position == b"at %d" % part.batch.positions[index]
            part.at += 1
            seen.append(position)
    assert seen == expected[: len(seen)]
    ended = [number for number, part in enumerate(parts) if part.at == part.end]
    assert seen[-1] == max(columns[number][-1] for number in ended)
