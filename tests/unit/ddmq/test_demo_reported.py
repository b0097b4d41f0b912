"""What the demo says of its report: equal, or by how much the kill explains, or wrong."""

from __future__ import annotations

import pytest

from ddmq.demo.reported import ClientCounts, Compared, compare_counts, print_comparison
from metrics_job.report.core.facts import Report, report_of
from metrics_job.report.core.material import Counted as Row
from metrics_job.report.core.material import Material, Sums, build_time_range

LAST_SAMPLE_MS, KILLED_MS = 60_500, 61_000


def build_report(**totals: int) -> Report:
    """A report of one topic `t`, in which the server was killed."""
    names = {"sent": "ddmq_sends_total", "delivered": "ddmq_delivered_total", "acked": "ddmq_acked_total"}
    rows = [
        Row(names[name], "t", "" if name == "sent" else "g", "code=0" if name == "sent" else "", float(total))
        for name, total in totals.items()
    ]
    process = {
        "process": "demo", "instance": "a", "first_seen": 60_000, "last_seen": LAST_SAMPLE_MS, "missing": 0,
        "duplicates": 0, "longest_gap_s": 0.0, "ended": "vanished", "clock_steps": 0,
    }  # fmt: skip
    return report_of(Material(build_time_range(60_000, 120_000), now=Sums(rows), processes=[process]))


def counted(**other: int) -> ClientCounts:
    """100 sends, 30 of them answered after the last sample before the kill, 20 after the restart."""
    answered = [60_100] * 50 + [60_800] * 30 + [62_000] * 20
    base = {"acknowledged": 100, "resends": 0, "delivered": 100, "finished": 100, "failed": 0, "dead": 0}
    return ClientCounts("t", answered_ms=answered, **{**base, **other})


@pytest.mark.parametrize(
    ("sent", "resends", "same"),
    [(100, 0, True), (70, 0, True), (69, 0, False), (101, 0, False), (102, 2, True), (103, 2, False)],
)
def test_sends_may_lack_what_the_kill_took_and_no_more(sent: int, resends: int, same: bool) -> None:
    rows = compare_counts(
        build_report(sent=sent, delivered=100, acked=100), [counted(resends=resends)], KILLED_MS
    )
    assert [row.is_same for row in rows] == [same, True, True, True, True]


@pytest.mark.parametrize("differing_total", [{"delivered": 99}, {"delivered": 101}, {"acked": 99}])
def test_everything_else_must_be_equal(
    differing_total: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    totals = {"sent": 100, "delivered": 100, "acked": 100} | differing_total
    assert not print_comparison(compare_counts(build_report(**totals), [counted()], KILLED_MS))
    assert "BUT COUNTED 100" in capsys.readouterr().out


def test_what_is_told_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_comparison(
        [Compared("t: sent", 80, 100, 70, 100), Compared("t: delivered", 101, 100, 100, 102)]
    )
    output = capsys.readouterr().out
    assert "80 of 100 counted: 20 of the 30 answered after the killed server" in output
    assert "101 and 100 counted: 1 more whose answers" in output
    assert "the report's numbers are those the demo counted" in output


def test_a_topic_that_the_report_lacks_is_wrong() -> None:
    assert not print_comparison(compare_counts(build_report(), [counted()], KILLED_MS))
