"""Who is behind, in which order and in which words; and what a planned restart or a staged loss is not."""

from __future__ import annotations

import re
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from metrics_job.report.core.behind import describe_outlook, sort_worst_first
from metrics_job.report.core.facts import Report, report_of, to_summary
from metrics_job.report.core.health import NOTHING_INTENDED, Intended
from metrics_job.report.core.material import Waiting, build_time_range
from metrics_job.report.reading import Tables
from metrics_job.report.run import build_page
from metrics_job.report.terminal import print_report
from tests.spark.report_tables import Writer, at, ms


def report(writer: Writer, end: int = 70, intended: Intended = NOTHING_INTENDED) -> Report:
    return report_of(Tables(writer.write()).read_material(build_time_range(ms(60), ms(end))), None, intended)


def printed(result: Report) -> str:
    console = Console(file=StringIO(), width=160)
    print_report(result, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def waiting(**other: Any) -> Waiting:
    base: dict[str, Any] = {
        "group": "g", "topic": "t", "lag": 100.0, "lag_age_ms": 7_000.0, "finished_per_s": 286.0,
        "arrived_per_s": 992.0, "time_to_drain_s": None, "blocked_keys": 0.0, "blocked_key_age_ms": 0.0,
        "lag_max": 100.0, "blocked_keys_max": 0.0, "blocked_key_age_ms_max": 0.0,
    }  # fmt: skip
    return Waiting(**(base | other))


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


@pytest.mark.parametrize(
    ("other", "outlook"),
    [
        ({"lag": 0.0}, "empty"),
        ({}, "growing"),
        ({"finished_per_s": 960.0}, "keeps up"),  # equal but for noise
        ({"finished_per_s": 0.0, "arrived_per_s": 0.0}, "stands still"),
        ({"finished_per_s": 0.0, "consumed": False}, "nobody consumes"),
        ({"lag_age_ms": 60_000.0}, "never at present rates"),
        ({"lag_age_ms": 60_000.0, "consumed": False, "finished_per_s": 0.0}, "nobody consumes"),
        ({"time_to_drain_s": 90.0}, "1 m 30 s"),
        ({"lag_age_ms": 60_000.0, "consumed": False, "paused": True}, "paused"),
    ],
)
def test_the_outlook_is_named_by_what_arrives_and_what_is_finished(
    other: dict[str, Any], outlook: str
) -> None:
    assert describe_outlook(waiting(**other)) == outlook


def test_the_worst_subscription_is_the_first_everywhere(tmp_path: Path) -> None:
    writer, minutes = Writer(tmp_path), range(60, 65)
    rows = {  # group: messages, age, whether the group drains
        "few": (20.0, 44_000.0, None),
        "most": (299.0, 3_000.0, 12.0),
        "old": (5.0, 90_000.0, None),
        "none": (0.0, 0.0, 0.0),
    }
    for minute in minutes:
        for group, (lag, age_ms, drain_s) in rows.items():
            writer.lag(at(minute), group, "t", lag, lag_age_ms=age_ms, time_to_drain_s=drain_s)
            writer.counter(at(minute), "ddmq_delivered_total", 1, "t", group)
    result = report(writer)
    order = ["old", "most", "few", "none"]
    assert [row.group for row in sort_worst_first(result.waiting)] == order
    assert [row["group"] for row in to_summary(result)["subscriptions"]] == order
    table = re.findall(r'<section id="waiting".*?</section>', build_page(result, 0), re.S)[0]
    assert re.findall(r'<tr><td data-head="group"><div>(\w+)</div></td>', table) == order[:3]
    assert re.findall(r"^(\w+) +t ", printed(result), re.M) == order[:3]


@pytest.mark.parametrize(
    ("metric", "minute", "consumed"),
    [
        ("ddmq_delivered_total", 64, True),
        ("ddmq_fetched_total", 63, True),
        ("ddmq_delivered_total", 61, False),  # they have gone
        ("ddmq_inflight", 64, True),
        ("ddmq_inflight", 62, False),
        ("", 64, False),
    ],
)
def test_a_group_without_consumers_differs_from_a_slow_one(
    writer: Writer, metric: str, minute: int, consumed: bool
) -> None:
    for each in range(60, 65):
        writer.lag(at(each), "g", "t", 9.0, lag_age_ms=44_000.0, finished_per_s=0.0, time_to_drain_s=None)
    if metric.endswith("_total"):
        writer.counter(at(minute), metric, 3, "t", "g")
    elif metric:
        gauge = {"metric": metric, "process": "p", "topic": "t", "group": "g", "detail": ""}
        writer.add("gauges_minute", {"start": at(minute), **gauge, "last": 1.0, "max": 1.0, "min": 1.0})
    writer.counter(at(64), "ddmq_delivered_total", 3, "t", "other")
    (row,) = report(writer).waiting
    assert row.consumed is consumed
    assert (describe_outlook(row) == "nobody consumes") is not consumed


@pytest.mark.parametrize("last", [1.0, 0.0])
def test_a_paused_group_is_no_finding(writer: Writer, last: float) -> None:
    more = {"finished_per_s": 0.0, "time_to_drain_s": None, "blocked_keys": 2.0}
    for each in range(60, 65):
        writer.lag(at(each), "g", "t", 9.0, lag_age_ms=999_000.0, **more, blocked_key_age_ms=609_000.0)
        gauge = {"metric": "ddmq_subscription_paused", "process": "p", "topic": "t", "group": "g"}
        writer.add(
            "gauges_minute",
            {"start": at(each), **gauge, "detail": "", "last": last, "max": 1.0, "min": last},
        )
    writer.counter(at(64), "ddmq_sends_total", 3, "t", detail="code=0")
    result = report(writer)
    (row,) = result.waiting
    assert (row.paused, describe_outlook(row) == "paused") == (last > 0, last > 0)
    rules = [finding.rule for finding in result.findings]
    assert rules == ([] if last else ["DdmqLagOld", "DdmqKeyBlocked"])


def test_the_finding_reports_that_no_consumer_is_connected(writer: Writer) -> None:
    for each in range(60, 65):
        writer.lag(at(each), "g", "t", 9.0, lag_age_ms=699_000.0, finished_per_s=0.0, time_to_drain_s=None)
    writer.counter(at(64), "ddmq_sends_total", 3, "t", detail="code=0")
    (finding,) = report(writer).findings
    assert finding.text == "9 messages waiting for g on t, the oldest for 11 m 39 s, nobody consumes."
    assert finding.rule == "DdmqNobodyConsumes"


def test_the_tile_counts_waiting_subscriptions_like_the_table(writer: Writer) -> None:
    for number in range(5):
        writer.lag(at(60), f"g{number}", "t", 9.0 * (number < 3), lag_max=9.0)
    text = build_page(report(writer), 0)
    assert re.findall(r"waiting at the end</span><b>27</b><span class=\"note\">([^<]+)<", text) == [
        "in 3 of 5 subscriptions"
    ]
    assert "Messages were waiting at the end in 3 of 5 subscriptions." in text


@pytest.mark.parametrize(("stopped", "dated"), [(64, ""), (90, ""), (4 * 1440, " (as of 2026-11-16 01:04)")])
def test_a_state_sampled_long_before_the_end_shows_its_time(writer: Writer, stopped: int, dated: str) -> None:
    end = 65 + stopped if dated else 66
    for minute in range(60, 65):
        more = {"lag_age_ms": 999_000.0, "time_to_drain_s": None, "blocked_keys": 2.0}
        writer.lag(at(minute), "g", "t", 5.0, **more, blocked_key_age_ms=609_000.0)
    writer.process(at(60), at(65), process="gone@h:1")
    writer.process(at(60), at(end), process="alive@h:2", instance="b" * 16)
    writer.counter(at(end - 1), "ddmq_sends_total", 3, "t", detail="code=0")
    result = report(writer, end)
    findings = [finding.text for finding in result.findings]
    waiting = "5 messages waiting for g on t, the oldest for 16 m 39 s, not getting fewer at present rates"
    assert findings == [
        f"{waiting}{dated}.",
        f"2 order keys blocked at the end (g on t{dated}), the longest for 10 m 9 s.",
    ]
    text = build_page(result, 0)
    assert f"2 at the end{dated}" in text
    assert f'<td class="number" data-head="at the end"><div>5{dated}</div></td>' in text


def test_a_planned_restart_is_no_finding_and_is_counted_apart_from_rejections(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_sends_total", 10_000, "t", detail="code=0")
    writer.counter(at(60), "ddmq_sends_total", 900, "t", detail="code=20")
    result = report(writer)
    assert result.is_well, result.findings
    assert (result.totals.refused, result.totals.sent_elsewhere, result.totals.refused_ratio) == (
        900,
        900,
        0.0,
    )
    assert "10,000 sent (900 refused, 900 of them by a proxy that stops)" in printed(result)
    writer.counter(at(61), "ddmq_sends_total", 111, "t", detail="code=15")
    (finding,) = report(writer).findings
    assert finding.text == "111 sends to t not stored, 1.1 % of all answered."
    assert to_summary(report(writer))["finding_rules"] == ["DdmqSendsFail"]


def test_a_promise_missed_on_one_day_is_shown_although_the_range_kept_it(
    writer: Writer, tmp_path: Path
) -> None:
    writer.counter(at(60), "ddmq_sends_total", 10, "t", detail="code=0")
    writer.slo(date(2026, 11, 16), "sends stored", 9_988, 10_000, 0.999)
    writer.slo(date(2026, 11, 17), "sends stored", 100_000, 100_000, 0.999)
    writer.slo(date(2026, 11, 16), "quick", 5, 10, 0.9, "t")
    result = report(writer, 2880)
    reached = "99.99 %, but 99.88 % on 2026-11-16"
    assert {row.name: row.shown_compliance for row in result.slo} == {
        "sends stored": reached,
        "quick": "50 %",
    }
    assert f">{reached}<" in build_page(result, 0)
    assert reached in printed(result)
    assert "Each UTC day is judged alone" in build_page(result, 0)
    writer = Writer(tmp_path / "one")
    writer.counter(at(60), "ddmq_sends_total", 10, "t", detail="code=0")
    writer.slo(date(2026, 11, 16), "sends stored", 9_988, 10_000, 0.999)
    writer.slo(date(2026, 11, 17), "sends stored", 100_000, 100_000, 0.999)
    assert f"{reached} good, 99.90 % promised" in report(writer, 2880).findings[0].text


def test_intended_actions_are_remarks_and_no_findings(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_sends_total", 60, "t", detail="code=0")
    writer.counter(at(61), "ddmq_dead_letters_total", 5, "t", "g", "reason=attempts")
    writer.process(at(60), at(62), instance="a" * 16, ended="running")
    writer.process(at(63), at(64), instance="b" * 16)
    result = report(writer, intended=Intended([ms(62) + 5_000], {"t": 5}))
    assert result.is_well, result.findings
    assert result.remarks == ["On purpose: 1 process killed, 5 messages made dead letters."]
    for text in (build_page(result, 0), printed(result)):
        assert result.remarks[0] in text
    assert to_summary(result)["remarks"] == result.remarks
    findings = [one.text for one in report(writer, intended=Intended([], {"t": 4, "other": 9})).findings]
    assert findings[0] == "1 message became a dead letter."
    assert findings[1].startswith("1 process ended without a word")


def test_each_time_names_what_it_is_measured_of(writer: Writer) -> None:
    for metric in ("ddmq_send_latency_us", "ddmq_queue_wait_us", "ddmq_process_us", "ddmq_delay_lateness_us"):
        writer.times(at(60), metric, [1000.0], "t", "g")
    writer.slo(date(2026, 11, 16), "quick", 9, 10, 0.9)
    text = build_page(report(writer), 0)
    for unit in (
        "once for each request",
        "once for each answer to a pull",
        "once for each acknowledged lease",
    ):
        assert unit in text, unit
    assert "counted by pulls, leases and requests" in text
