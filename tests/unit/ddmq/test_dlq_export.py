"""The export of dead letters: every open one once, with its body, in bounded pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddmq.server.admin.dlq import DeadLetterFilter
from ddmq.server.admin.search import export
from ddmq_common.errors import CallerError
from tests.examples import examples
from tests.support.dead_letters import DeadLettersRig


def pages(rig: DeadLettersRig, after: str | None = None, **choice: Any) -> list[list[dict[str, Any]]]:
    """The documents of each page, without their last lines."""
    found: list[list[dict[str, Any]]] = []
    while True:
        text = export.export_page(rig.backend, rig.clock, "G", DeadLetterFilter(**choice), after)
        assert text.content_type == "application/x-ndjson"
        *rows, end = [json.loads(line) for line in text.payload.splitlines()]
        assert end["exported"] == len(rows)
        found.append(rows)
        after = end["next"]
        if after is None:
            return found


@given(
    st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["T", "U"])), min_size=1, max_size=5),
    st.sets(st.integers(0, 30), max_size=5),
    st.sampled_from([None, "T"]),
    st.integers(1, 4),
)
@settings(max_examples=examples(50), deadline=None)
def test_all_that_match_are_exported_once_in_order(
    dying: list[tuple[int, str]], closed: set[int], topic: str | None, page: int
) -> None:
    rig = DeadLettersRig()
    largest, export.LETTERS_MAX = export.LETTERS_MAX, page
    try:
        kinds: list[str] = []
        for count, name in dying:
            rig.die(count, name)
            kinds += [name] * count
        closed = {offset for offset in closed if offset < len(kinds)}
        if closed:
            rig.resend(offsets=sorted(closed))
        expected = [
            offset for offset, name in enumerate(kinds) if offset not in closed and topic in (None, name)
        ]
        found = pages(rig, topic=topic)
        assert [row["offset"] for rows in found for row in rows] == expected
        assert all(len(rows) <= page for rows in found)
        assert all("body" in row and "preview" not in row for rows in found for row in rows)
        cut = len(expected) // 2
        if cut:
            rest = pages(rig, f"0.{expected[cut - 1] + 1}", topic=topic)
            assert [row["offset"] for rows in rest for row in rows] == expected[cut:], "as --resume goes on"
    finally:
        export.LETTERS_MAX = largest
        rig.backend.close()


def test_a_page_ends_with_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DeadLettersRig()
    monkeypatch.setattr(export, "BYTES_MAX", 1)
    rig.die(3)
    assert [len(rows) for rows in pages(rig)] == [1, 1, 1, 0]
    rig.backend.close()


@pytest.mark.parametrize("after", ["", "0", "0.", "a.1", "0.1.2", "-1.0", "0.²", "0." + "9" * 30])
def test_a_wrong_cursor_is_rejected(after: str) -> None:
    rig = DeadLettersRig()
    rig.die(1)
    with pytest.raises(CallerError, match="allowed: the `next` of an earlier answer"):
        export.export_page(rig.backend, rig.clock, "G", DeadLetterFilter(), after)
    rig.backend.close()
