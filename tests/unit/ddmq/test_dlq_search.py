"""A search of dead letters finds in pages, in either order, what a list of all of them has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.records import StoredRecord
from ddmq.cli.admin_client import AdminClient
from ddmq.cli.operate.dead_letters import dlq as dlq_command
from ddmq.cli.root import run
from ddmq.server.admin import dlq
from ddmq.server.admin.contract.queries import DeadLetterFacetsQuery
from ddmq.server.admin.dlq import DeadLetterFilter
from ddmq.server.admin.search import dead_letters as dlq_search
from ddmq.server.admin.search import facets
from ddmq.server.admin.search.error_classes import CLASS_CHARS_MAX, classify_error
from ddmq.server.admin.search.facets import HOUR_MS, FacetCounts
from ddmq.server.http.parameters import read_query
from ddmq_common.clock import ManualClock
from ddmq_common.errors import CallerError
from tests.support.dead_letters import DeadLettersRig

HOSTILE = "\x1b[2J\u202e'\"; DROP <script>\n"


@pytest.fixture
def rig() -> Iterator[DeadLettersRig]:
    rig = DeadLettersRig()
    yield rig
    rig.backend.close()


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        ("", ""),
        ("ValueError: customer a has no address", "ValueError"),
        ("ValueError('customer a')", "ValueError"),
        ("java.lang.IllegalStateException: broken: 7", "java.lang.IllegalStateException"),
        ("KeyError", "KeyError"),
        ("no answer within ack_timeout_ms, 3 times", "no answer within ack_timeout_ms"),
        ("timed out after 30 s", "timed out after # s"),
        ("  HTTP 503\nServer: x", "HTTP #"),
        ("Größe: 7", "Größe"),
        (": odd", ""),
        ("x" * 5_000, "x" * CLASS_CHARS_MAX),
        ("a b" * 5_000, ("a b" * 5_000)[:CLASS_CHARS_MAX]),
    ],
)
def test_an_error_has_a_class(text: str, error_class: str) -> None:
    assert classify_error(text) == error_class


@given(st.text(max_size=300))
def test_a_class_is_short_and_on_one_line(text: str) -> None:
    error_class = classify_error(text)
    assert len(error_class) <= CLASS_CHARS_MAX
    assert not set("\r\n") & set(error_class)


LETTERS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "timed-out", ""]),
        st.sampled_from(["", "ValueError: 1", "ValueError: 2", "KeyError: x", "no 7", HOSTILE]),
        st.sampled_from(["T", "U", ""]),
        st.integers(0, 5 * HOUR_MS),
    ),
    max_size=40,
)


@given(LETTERS, st.integers(1, 4), st.integers(1, 4))
def test_facets_as_naive_counts_have_them(
    letters: list[tuple[str, str, str, int]], values_max: int, hours_max: int
) -> None:
    counts = FacetCounts()
    for each in letters:
        counts.add(*each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facets, "VALUES_MAX", values_max)
        patch.setattr(facets, "HOURS_MAX", hours_max)
        rows = counts.as_rows()
    model: dict[str, Counter[Any]] = {
        "by_reason": Counter(reason for reason, _, _, _ in letters),
        "by_error": Counter(classify_error(error) for _, error, _, _ in letters),
        "by_topic": Counter(topic for _, _, topic, _ in letters),
        "by_hour": Counter(time_ms // HOUR_MS * HOUR_MS for _, _, _, time_ms in letters),
    }
    assert counts.total == len(letters)
    for name, expected in model.items():
        listed = {row["value"]: row["letters"] for row in rows[name]}
        assert (
            len(listed)
            == len(rows[name])
            == min(len(expected), hours_max if name == "by_hour" else values_max)
        )
        assert listed.items() <= expected.items()
        assert rows["others"][name] == sum(expected.values()) - sum(listed.values())
        if name == "by_hour":
            assert list(listed) == sorted(expected)[-hours_max:]
        else:
            assert sorted(listed.values()) == sorted(expected.values())[-values_max:]


KINDS = st.sampled_from([("T", "failed", b"one"), ("U", "timed-out", b"two"), ("T", "failed", b"three")])
STEPS = st.lists(st.tuples(KINDS, st.integers(1, 7)), max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    STEPS,
    st.sets(st.integers(0, 60)),
    st.integers(1, 9),
    st.sampled_from([{}, {"topic": "U"}, {"reason": "failed"}, {"text": "t"}, {"text": "k3"}]),
    st.booleans(),
    st.integers(1, 8),
    st.integers(1, 5),
)
def test_pages_are_the_whole_list_in_either_order(
    steps: list[tuple[tuple[str, str, bytes], int]],
    closed: set[int],
    count: int,
    choice: dict[str, Any],
    newest: bool,
    scanned_max: int,
    batch: int,
) -> None:
    rig, model = DeadLettersRig(), []
    for (topic, reason, body), many in steps:
        rig.die(many, topic, reason, body=body)
        model += [(topic, reason, f"k{number}", body.decode()) for number in range(many)]
    closed = {offset for offset in closed if offset < len(model)}
    rig.close(*sorted(closed))
    matches = {
        "topic": lambda row, value: row[0] == value,
        "reason": lambda row, value: row[1] == value,
        "text": lambda row, value: value in row[2] or value in row[3],
    }
    expected = [
        offset
        for offset, row in enumerate(model)
        if offset not in closed and all(matches[name](row, value) for name, value in choice.items())
    ]
    shown: list[int] = []
    start: int | None = None
    pages = scanned = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dlq_search, "SCANNED_MAX", scanned_max)
        patch.setattr(dlq_search, "BATCH", batch)
        patch.setattr(dlq, "BATCH", batch)
        patch.setattr(dlq, "READ_BYTES_MAX", 500)  # a read has two letters or so
        while pages == 0 or start is not None:
            page = rig.show(count, newest=newest, start=start, **choice)
            shown += [row["offset"] for row in page["shown"]]
            scanned += page["scanned"]
            assert page["letters"] == len(model) - len(closed)
            assert len(page["shown"]) <= count
            assert page["scanned"] < scanned_max + batch
            start = page["next"]
            pages += 1
            assert pages <= 2 * len(model) + 2
    rig.backend.close()
    assert shown == (expected[::-1] if newest else expected)
    assert scanned == len(model) - len(closed), "each is examined once"


def test_show_continues_and_examines_a_bounded_number(
    rig: DeadLettersRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.die(300)
    first = rig.show(150)
    assert (len(first["shown"]), first["next"], first["letters"]) == (150, 150, 300)
    rest = rig.show(1_000, start=first["next"])
    assert (len(rest["shown"]), rest["next"]) == (150, None)
    monkeypatch.setattr(dlq_search, "SCANNED_MAX", 200)
    none = rig.show(10, reason="timed-out")
    assert (none["shown"], none["next"], none["scanned"]) == ([], 200, 200)
    none = rig.show(10, newest=True, reason="timed-out")
    assert (none["shown"], none["next"], none["scanned"]) == ([], 99, 200)


class HurriedClock(ManualClock):
    """A clock on which a second passes with each look."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def test_a_search_ends_after_its_time_and_continues(rig: DeadLettersRig) -> None:
    rig.die(1_000)
    rig.clock = HurriedClock()
    page = rig.show(10, text="nothing of the kind")
    assert (page["shown"], page["scanned"], page["next"]) == ([], 200, 200)
    counts = rig.facets(start=page["next"])
    assert (counts["counted"], counts["next"], counts["exact"]) == (200, 400, False)


def test_a_text_is_searched_in_key_error_and_body(rig: DeadLettersRig) -> None:
    rig.die(1, error="ValueError: Müller", body=b"first")
    rig.die(1, error="KeyError: x", body="Müller".encode())
    rig.die(1, error=HOSTILE, body=b"\xff\x00binary")
    found = {
        text: [row["offset"] for row in rig.show(text=text)["shown"]] for text in ("Müller", "k0", "binary")
    }
    assert found == {"Müller": [0, 1], "k0": [0, 1, 2], "binary": [2]}
    assert [row["offset"] for row in rig.show(text=HOSTILE)["shown"]] == [2]
    assert rig.show(text="müller")["shown"] == [], "case matters"
    assert [row["offset"] for row in rig.show(error="ValueError")["shown"]] == [0]
    assert rig.show(error="")["shown"] == []


def test_a_letter_that_cannot_be_parsed_is_searched_too(rig: DeadLettersRig) -> None:
    record = StoredRecord("%DLQ%G", 0, 0, 0, bytes(16), 1, 1, 0, 0, b"\xff needle", {})
    letter = dlq.read_dead_letter(record)
    assert letter.content is None
    assert DeadLetterFilter(text="needle").matches(letter)
    assert not DeadLetterFilter(text="thread").matches(letter)


def test_the_time_of_death_is_a_range_without_its_end(rig: DeadLettersRig) -> None:
    times = []
    for _ in range(3):
        times.append(rig.clock.wall_ms())
        rig.die(1)
        rig.clock.advance(1.0)
    for newest in (False, True):
        page = rig.show(since_ms=times[1], until_ms=times[2], newest=newest)
        assert [row["offset"] for row in page["shown"]] == [1]
    assert rig.show(since_ms=times[2], until_ms=times[2])["shown"] == []


def test_facets_of_all_and_of_a_choice(rig: DeadLettersRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.die(3, error="ValueError: 1")
    rig.clock.advance(3_600)
    rig.die(2, "U", "timed-out", error="KeyError: x")
    rig.close(0)
    counts = rig.facets()
    assert (counts["letters"], counts["counted"], counts["scanned"]) == (4, 4, 4)
    assert (counts["exact"], counts["next"]) == (True, None)
    assert counts["by_reason"] == [{"value": "failed", "letters": 2}, {"value": "timed-out", "letters": 2}]
    assert counts["by_error"] == [{"value": "KeyError", "letters": 2}, {"value": "ValueError", "letters": 2}]
    assert counts["by_topic"] == [{"value": "T", "letters": 2}, {"value": "U", "letters": 2}]
    hours = [row["value"] for row in counts["by_hour"]]
    assert hours[1] - hours[0] == HOUR_MS
    assert rig.facets(error="KeyError")["by_topic"] == [{"value": "U", "letters": 2}]
    monkeypatch.setattr(dlq_search, "SCANNED_MAX", 2)
    monkeypatch.setattr(dlq, "BATCH", 2)
    first = rig.facets()
    assert (first["exact"], first["counted"], first["next"]) == (False, 2, 3)
    rest = rig.facets(start=3)
    assert (rest["exact"], rest["counted"], rest["next"]) == (False, 2, None)


def test_the_command_adds_up_the_facets_of_all_requests(
    rig: DeadLettersRig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.die(150, error="ValueError: 1")
    rig.clock.advance(3_600)
    rig.die(100, "U", "timed-out", error="KeyError: x")
    monkeypatch.setattr(dlq_search, "SCANNED_MAX", 100)
    requests: list[int | None] = []

    def get(_: AdminClient, *path: str, **query: Any) -> Any:
        requests.append(query["from"])
        return rig.facets(start=query["from"])

    monkeypatch.setattr(AdminClient, "get", get)
    run(["dlq", "facets", "G"])
    captured = capsys.readouterr()
    assert requests == [None, 100, 200]
    words = captured.out.split()
    for value, count in (("ValueError", "150"), ("KeyError", "100"), ("T", "150"), ("timed-out", "100")):
        assert words[words.index(value) + 1] == count
    assert "go on with" not in captured.err
    monkeypatch.setattr(dlq_command, "REQUESTS_MAX", 2)
    run(["dlq", "facets", "G"])
    assert "counted 200 of 250 dead letters; go on with --from 200" in capsys.readouterr().err


def test_what_a_search_may_have_in_its_query() -> None:
    def read(**query: str) -> DeadLetterFacetsQuery:
        return read_query(DeadLetterFacetsQuery, query)

    assert dlq_search.filter_of(read(since_ms="12", until_ms="13", error="", text="x")) == DeadLetterFilter(
        since_ms=12, until_ms=13, error="", text="x"
    )
    assert dlq_search.order_of(read(order="newest", **{"from": "0"})) == (True, 0, None)
    assert dlq_search.order_of(read()) == (False, None, None)
    for query, error in (
        ({"order": "down"}, "order is 'down'; allowed: oldest, newest"),
        ({"from": "-1"}, "from is '-1'"),
        ({"text": ""}, "text is ''; allowed: a text of 1 to 200 characters"),
        ({"text": "x" * 201}, "text is 'xxx"),
        ({"until_ms": "soon"}, "until_ms is 'soon'"),
    ):
        with pytest.raises(CallerError, match=error):
            read(**query)
