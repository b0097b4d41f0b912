"""A snapshot combines the shares of processes: rates and counts are summed, and what is missing is named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddmq.server.live.core.series import (
    BY_NAME,
    IN,
    LAG,
    OF_SUBSCRIPTION,
    OF_TOPIC,
    OLDEST_WAIT,
    TOTALS,
    combine_steps,
    series_of,
)
from ddmq.server.live.core.snapshot import (
    TAIL_S,
    VERSIONS,
    Behind,
    ProcessShare,
    build_snapshot,
    combine_shares,
    round_value,
)
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

VALUES = st.lists(st.one_of(st.none(), st.integers(0, 1_000).map(float)), max_size=8)
STEPS = st.tuples(st.integers(0, 5).map(lambda step: 100 + step * 10), VALUES)


def families_of(registry: Registry) -> dict[str, object]:
    return {metric.name: cells for metric, cells in registry.numbers()}


def test_a_series_reads_its_cells() -> None:
    registry = Registry()
    registry.cell(catalogue.SENDS, "orders", "0").value = 5
    registry.cell(catalogue.SENDS, "orders", "15").value = 100
    registry.cell(catalogue.SENDS, "mails", "0").value = 7
    registry.cell(catalogue.LAG_AGE, "g", "orders").value = 1_500
    registry.cell(catalogue.LAG_AGE, "g", "mails").value = 500
    families = families_of(registry)
    assert IN.read(families) == 12
    assert IN.read(families, ("mails",)) == 7
    assert IN.read(families, ("unknown",)) is None
    assert OLDEST_WAIT.read(families) == 1.5
    assert OLDEST_WAIT.read(families, ("g", "mails")) == 0.5
    assert LAG.read(families) is None


@given(st.lists(STEPS, max_size=4), st.integers(8, 16), st.integers(0, 12))
def test_steps_of_processes_are_combined_where_they_lie_in_time(
    processes: list[tuple[int, list[float | None]]], first: int, count: int
) -> None:
    times_s = range(first * 10, (first + count) * 10, 10)
    for series in (IN, OLDEST_WAIT, BY_NAME["disk_free_bytes"]):
        expected: dict[int, list[float]] = {}
        for start_s, numbers in processes:
            for index, number in enumerate(numbers):
                expected.setdefault(start_s + index * 10, []).extend([] if number is None else [number])
        combined = combine_steps(series, times_s.start, len(times_s), 10, processes)
        assert combined == [series.combine_values(expected.get(at_s, [])) for at_s in times_s]


def share(
    totals: dict[str, float | None], from_s: int, tail: list[float | None], version: int
) -> ProcessShare:
    return ProcessShare(totals, from_s, {"in_per_s": tail}, dict.fromkeys(VERSIONS, version))


def test_shares_of_processes_are_one() -> None:
    producer = share({"in_per_s": 5.0, "lag": None, "disk_free_bytes": 9.0}, 100, [1.0, 2.0], 10)
    consumer = share({"in_per_s": 0.0, "lag": 7.0, "disk_free_bytes": None}, 101, [None, 4.0], 5)
    combined = combine_shares([producer, consumer])
    assert combined.totals["in_per_s"] == 5
    assert combined.totals["lag"] == 7
    assert combined.totals["disk_free_bytes"] == 9
    assert combined.totals["log_bytes"] is None
    assert combined.tails_from_s == 103 - TAIL_S
    assert combined.tails["in_per_s"] == [None] * (TAIL_S - 3) + [1.0, 2.0, 4.0]
    assert combined.tails["lag"] == [None] * TAIL_S, "all tails have the same length"
    assert combined.versions["topics"] == 15


def test_a_process_that_has_just_started_has_no_tails_yet() -> None:
    """Nor does its clock decide where the others' tails begin."""
    started = ProcessShare({}, -59, {"in_per_s": []}, {})
    running = share({"in_per_s": 5.0}, 1_700_000_000, [1.0, 2.0], 1)
    assert combine_shares([started, running]).tails["in_per_s"][-2:] == [1.0, 2.0]
    assert combine_shares([started]).tails == {series.name: [] for series in TOTALS}
    far_away = share({"in_per_s": 5.0}, 1, [1.0], 1)
    assert len(combine_shares([far_away, running]).tails["lag"]) == TAIL_S


def test_a_snapshot_names_what_is_missing() -> None:
    combined = combine_shares([share({"in_per_s": 2.0}, 100, [1.0, None], 1)])
    snapshot = build_snapshot(
        100_500, {"ready": True}, combined, Behind([], 99_000, "no answer"), {"producer": "127.0.0.1:9913"}
    )
    assert snapshot["missing"] == {"producer": "127.0.0.1:9913", "behind": "no answer"}
    assert snapshot["totals"].keys() == {series.name for series in TOTALS}
    assert snapshot["tails"]["from_ms"] == (102 - TAIL_S) * 1000
    assert snapshot["tails"]["values"]["in_per_s"][-2:] == [1, None]
    assert snapshot["findings"] is None
    assert snapshot["due_next_hour"] is None


def test_the_series_of_a_topic_and_of_a_subscription() -> None:
    assert series_of("", "") is TOTALS
    assert series_of("", "orders") is OF_TOPIC
    assert series_of("billing", "orders") is OF_SUBSCRIPTION


def test_values_are_short() -> None:
    assert [round_value(value) for value in (None, 3.0, 0.12345, 1e12)] == [None, 3, 0.123, 10**12]
    assert str(round_value(3.0)) == "3"
