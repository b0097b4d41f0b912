"""Known rows → known numbers, sentences and figures of the report; what is missing is said in words."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.cells import bucket_index
from metrics_job.report.core import words
from metrics_job.report.core.facts import Report, report_of
from metrics_job.report.core.figures import build_figures
from metrics_job.report.core.health import Intended
from metrics_job.report.core.material import DAY_MS, HOUR_MS, WEEK_MS, build_time_range, compute_percentiles
from metrics_job.report.reading import Tables
from tests.spark.report_tables import Writer, at, busy_week, ms


def report(folder: Path, start: int, end: int, sampled: int | None = None) -> Report:
    """Of so many minutes after the first midnight; `sampled`: when the tables were made, of all there was."""
    material = Tables(folder).read_material(build_time_range(ms(start), ms(end)))
    return report_of(material, None if sampled is None else ms(sampled))


@pytest.fixture
def ten_minutes(tmp_path: Path) -> Path:
    """Two topics, a group, a minute with refusals, a dead letter; ten minutes from 01:00."""
    writer = Writer(tmp_path)
    for minute in range(60, 70):
        writer.counter(at(minute), "ddmq_sends_total", 600, "orders", detail="code=0")
        writer.counter(at(minute), "ddmq_sends_total", 60, "bills", detail="code=0", process="other@two:9813")
        writer.counter(at(minute), "ddmq_delivered_total", 630, "orders", "billing")
        writer.counter(at(minute), "ddmq_acked_total", 600, "orders", "billing")
        writer.times(at(minute), "ddmq_send_latency_us", [1000.0] * 98 + [50_000.0] * 2, "orders")
        writer.lag(at(minute), "billing", "orders", float(minute - 60))
    writer.counter(at(65), "ddmq_sends_total", 12, "orders", detail="code=11")
    writer.counter(at(65), "ddmq_dead_letters_total", 3, "orders", "billing", "reason=attempts")
    writer.counter(at(65), "ddmq_redelivered_total", 30, "orders", "billing")
    writer.process(at(60), at(70))
    writer.slo(date(2026, 11, 16), "send latency", 970, 1000, 0.99, "orders")
    writer.slo(date(2026, 11, 16), "availability", 1000, 1000, 0.999)
    return writer.write()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def test_totals_are_the_sums_of_the_rows(ten_minutes: Path) -> None:
    totals = report(ten_minutes, 60, 70).totals
    assert (totals.sent, totals.refused, totals.delivered, totals.acked) == (6600, 12, 6300, 6000)
    assert (totals.dead_lettered, totals.redelivered) == (3, 30)
    topics = report(ten_minutes, 60, 70).topics
    assert {topic: (of.sent, of.refused, of.acked) for topic, of in topics.items()} == {
        "orders": (6000, 12, 6000),
        "bills": (600, 0, 0),
    }


def test_fetched_messages_count_as_delivered(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_fetched_total", 60, "t", "g")
    writer.counter(at(60), "ddmq_acked_total", 60, "t", "g")
    result = report(writer.write(), 60, 61)
    assert result.totals.delivered == 60
    assert {line.name for line in result.throughput} == {"delivered", "acked"}


def test_only_rows_within_the_range_count(ten_minutes: Path) -> None:
    assert report(ten_minutes, 62, 64).totals.sent == 2 * 660
    assert report(ten_minutes, 70, 80).totals.sent == 0


def test_rates_are_totals_over_the_time_that_was_covered(ten_minutes: Path) -> None:
    drawn = build_figures(report(ten_minutes, 60, 70))["throughput"]
    sent = next(trace for trace in drawn["data"] if trace["name"] == "sent")
    assert sent["y"] == [11.0] * 10
    refused = next(trace for trace in drawn["data"] if trace["name"] == "refused")
    assert refused["y"] == [0.0] * 5 + [0.2] + [0.0] * 4


def test_a_run_within_a_minute_is_not_slowed_by_the_rest_of_it(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_sends_total", 600, "orders", detail="code=0")
    writer.process(at(60).replace(second=10), at(60).replace(second=30))
    drawn = build_figures(report(writer.write(), 60, 61))["throughput"]["data"][0]
    assert (drawn["type"], drawn["x"], drawn["y"]) == ("bar", ["01:00"], [30.0])


def test_charts_show_the_complete_range_and_single_points(writer: Writer) -> None:
    for minute in (*range(60, 130), 140, 160):
        writer.lag(at(minute), "billing", "orders", 7.0)
        writer.counter(at(minute), "ddmq_sends_total", 60, "orders", detail="code=0")
        writer.times(at(minute), "ddmq_send_latency_us", [1000.0], "orders")
    drawn = build_figures(report(writer.write(), 60, 180))
    for name in ("throughput", "times-0", "lag"):
        assert drawn[name]["layout"]["xaxis"]["range"] == ["2026-11-16 01:00", "2026-11-16 02:59"], name
    trace = drawn["times-0"]["data"][0]
    dots = [x for x, dot in zip(trace["x"], trace["meta"]["dots"], strict=True) if dot]
    assert (trace["mode"], dots) == ("lines+markers", ["2026-11-16 02:20", "2026-11-16 02:40"])


def test_a_few_moments_stand_in_order_whichever_line_has_them(writer: Writer) -> None:
    for minute, group in ((60, "a"), (62, "a"), (61, "b")):
        writer.lag(at(minute), group, "orders", 7.0)
    axis = build_figures(report(writer.write(), 60, 63))["lag"]["layout"]["xaxis"]
    assert axis["categoryarray"] == ["01:00", "01:01", "01:02"]


def test_percentiles_are_upper_edges_of_merged_buckets(ten_minutes: Path) -> None:
    send = report(ten_minutes, 60, 70).times[0]
    overall = compute_percentiles({bucket_index(1000.0): 980, bucket_index(50_000.0): 20})
    assert send.overall is not None
    assert overall is not None
    assert send.overall.measured == overall.measured == 1000
    assert send.overall.p50 == overall.p50 / 1000 == pytest.approx(1.024)
    assert send.overall.p99 == overall.p99 / 1000 == pytest.approx(53.248)
    assert [line.name for line in send.lines] == ["p50", "p99", "p99.9"]


def test_lag_has_a_line_and_its_last_state(ten_minutes: Path) -> None:
    result = report(ten_minutes, 60, 70)
    assert [value for _, value in result.lag[0].points] == [float(n) for n in range(10)]
    (row,) = result.waiting
    assert (row.lag, row.lag_max, row.time_to_drain_s) == (9.0, 9.0, 9.0)


def test_the_verdict_names_each_problem(ten_minutes: Path) -> None:
    findings_text = "\n".join(finding.text for finding in report(ten_minutes, 60, 70).findings)
    assert (
        "1 promise missed (send latency); worst send latency of orders: 97 % good, 99 % promised"
        in findings_text
    )
    assert "3 messages became dead letters" in findings_text
    assert len(findings_text.splitlines()) == 2, "12 of 6,000 sends are less than the alert has"


def test_a_range_without_problems_is_ok(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_sends_total", 600, "orders", detail="code=0")
    writer.process(at(60), at(61))
    assert report(writer.write(), 60, 61).is_well


def test_a_missing_table_folder_is_reported(tmp_path: Path) -> None:
    assert Tables(tmp_path).read_bounds() is None
    result = report(tmp_path, 60, 70)
    assert not result.is_well
    assert result.findings[0].text.startswith("No samples in this range")
    assert build_figures(result) == {}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"time_to_drain_s": None}, "not getting fewer at present rates"),
        ({"time_to_drain_s": 7200.0}, "2 h to drain"),
        ({"blocked_keys": 2.0, "blocked_key_age_ms": 690_000.0}, "2 order keys blocked at the end (g on t)"),
    ],
)
def test_a_subscription_with_a_problem_is_reported(
    writer: Writer, more: dict[str, float | None], text: str
) -> None:
    for minute in range(60, 64):
        writer.lag(at(minute), "g", "t", 5.0, **({"lag_age_ms": 901_000.0} | more))
        writer.counter(at(minute), "ddmq_delivered_total", 1, "t", "g")
    (finding, *_) = [each for each in report(writer.write(), 60, 64).findings if text in each.text]
    assert finding.rule == ("DdmqKeyBlocked" if "blocked" in text else "DdmqLagOld")
    assert finding.shown_text.endswith(f" ({finding.rule})")


def test_a_key_blocked_for_236_ms_is_no_finding(writer: Writer) -> None:
    for minute in range(60, 64):
        writer.lag(at(minute), "g", "t", 5.0, blocked_keys=1.0, blocked_key_age_ms=236.0)
    assert report(writer.write(), 60, 64).is_well


@pytest.mark.parametrize(
    ("lags", "age_ms"),
    [
        ([0, 0, 9], 15.0),  # what everybody has
        ([9, 9, 9], 59_000.0),  # young
        ([9, 9, 9, 9], 599_000.0),  # for less than the alerts have
        ([90, 20, 30], 61_000.0),  # fewer than some minutes ago
    ],
)
def test_small_lags_are_no_problem(writer: Writer, lags: list[float], age_ms: float) -> None:
    for minute, lag in enumerate(lags, 60):
        writer.lag(at(minute), "g", "t", lag, time_to_drain_s=None, lag_age_ms=age_ms)
    writer.counter(at(60), "ddmq_sends_total", 9, "-", detail="code=30")
    writer.slo(date(2026, 11, 16), "waiting", 1, 2, 0.95, "t", "g", met=None)
    result = report(writer.write(), 60, 64)
    assert result.is_well, result.findings
    assert [row.days_unjudged for row in result.slo] == [1]


def test_a_kill_on_purpose_is_no_crash(writer: Writer) -> None:
    writer.counter(at(60), "ddmq_sends_total", 60, "t", detail="code=0")
    writer.process(at(60), at(62), instance="a" * 16, ended="running")
    writer.process(at(63), at(64), instance="b" * 16)
    material = Tables(writer.write()).read_material(build_time_range(ms(60), ms(65)))
    assert not report_of(material).is_well
    assert report_of(material, intended=Intended([ms(62) + 5_000])).is_well
    assert not report_of(material, intended=Intended([ms(62) + 500_000])).is_well


def test_a_time_above_all_buckets_is_shown_as_at_least(writer: Writer) -> None:
    writer.times(at(60), "ddmq_queue_wait_us", [1e14], "t", "g")
    writer.counter(at(60), "ddmq_sends_total", 60, "t", detail="code=0")
    wait = report(writer.write(), 60, 61).times[1].overall
    assert wait is not None
    assert words.format_ms(wait.max) == "≥ 50 d 21 h"


def test_columns_that_older_tables_lack_are_there_today(writer: Writer) -> None:
    writer.process(at(60), at(62), clock_steps=2, interval_s=1.0)
    folder = writer.write()
    old = folder / "processes" / "date=2026-11-01"
    old.mkdir()
    some = pq.read_table(folder / "processes" / "date=2026-11-16" / "part-0.parquet")
    pq.write_table(some.drop_columns(["clock_steps", "interval_s"]), old / "part-0.parquet")
    assert [row.clock_steps for row in report(folder, 60, 70).processes] == [2]


def test_tables_may_be_a_url_and_have_to_be_there(ten_minutes: Path) -> None:
    time_range = build_time_range(ms(60), ms(70))
    assert (
        Tables(ten_minutes.as_uri()).read_material(time_range).slo
        == Tables(ten_minutes).read_material(time_range).slo
    )
    for url in (str(ten_minutes / "nothing"), f"{ten_minutes.as_uri()}/nothing", "nosuch://host/tables"):
        with pytest.raises(ConfigError, match=r"no such folder|cannot be read"):
            Tables(url)


def test_processes_and_rejects_are_reported(writer: Writer) -> None:
    writer.process(at(60), at(65), ended="vanished", instance="1" * 16)
    writer.process(at(66), at(70), ended="last", instance="2" * 16, missing=2)
    writer.add("rejects", {"file": "f", "reason": "corrupt", "lines": 4, "example": "{"})
    result = report(writer.write(), 60, 70)
    (process,) = result.processes
    assert (process.restarts, process.vanished_count, process.ended, process.missing) == (1, 1, "last", 2)
    findings_text = " ".join(finding.text for finding in result.findings)
    assert "1 process ended without a word" in findings_text
    assert "2 sample files missing" in findings_text
    assert "4 sample lines not understood" in findings_text


def test_a_process_that_restarted_without_a_last_sample_vanished(writer: Writer) -> None:
    writer.process(at(60), at(65), ended="running", instance="1" * 16)
    writer.process(at(66), at(70), ended="running", instance="2" * 16)
    (process,) = report(writer.write(), 60, 70).processes
    assert process.vanished_ms == [ms(65)]


def test_the_time_between_two_starts_is_a_gap(writer: Writer) -> None:
    writer.process(at(1400), at(1440), instance="1" * 16, ended="running", longest_gap_s=20.0)
    writer.process(at(1440), at(1450), instance="1" * 16)
    writer.process(at(1480), at(1500), instance="2" * 16, ended="running")
    (process,) = report(writer.write(), 1400, 1500).processes
    assert (process.restarts, process.longest_gap_s) == (1, 1800.0)


def test_a_process_that_vanished_before_midnight_is_reported_by_the_next_day(writer: Writer) -> None:
    for name in ("dead@h:1", "alive@h:2"):
        writer.process(at(1400), at(1439), ended="running", process=name)
    writer.process(at(1440), at(1500), ended="running", process="alive@h:2")
    alive, dead = report(writer.write(), 1400, 1500, sampled=1501).processes
    assert (dead.ended, dead.vanished_ms) == ("vanished", [ms(1439)])
    assert (alive.ended, alive.vanished_ms) == ("running", [])


def test_the_only_process_is_silent_when_its_samples_stop(writer: Writer) -> None:
    writer.process(at(60), at(70), ended="running")
    tables = writer.write()
    for sampled, ended in ((None, "running"), (71, "running"), (80, "silent")):
        result = report(tables, 60, 70, sampled)
        (process,) = result.processes
        assert (process.ended, process.vanished_count, result.is_well) == (ended, 0, ended == "running")
    assert "Nothing heard of 1 process (all@one:9813) since 2026-11-16 01:10 UTC" in result.findings[0].text


@pytest.mark.parametrize(
    ("interval_s", "sampled", "ended"),
    [
        (300.0, 84, "running"),
        (300.0, 86, "silent"),
        (None, 131, "running"),  # a first file alone does not tell when the next one comes
        (None, 133, "silent"),
    ],
)
def test_a_process_that_writes_seldom_is_waited_for(
    writer: Writer, interval_s: float | None, sampled: int, ended: str
) -> None:
    writer.process(at(60), at(70), ended="running", interval_s=interval_s)
    assert [row.ended for row in report(writer.write(), 60, 70, sampled).processes] == [ended]


def test_a_stopped_process_is_not_missed(writer: Writer) -> None:
    writer.process(at(60), at(70), ended="last")
    assert report(writer.write(), 60, 70, sampled=1000).is_well


def test_a_first_sample_of_no_length_is_no_second_start(writer: Writer) -> None:
    writer.process(at(60), at(60), ended="running")
    (process,) = report(writer.write(), 60, 61).processes
    assert (process.ended, process.vanished_count) == ("running", 0)


def test_a_fast_clock_makes_no_process_vanish(writer: Writer) -> None:
    writer.process(at(60), at(70), ended="running", process="right@h:1")
    writer.process(at(1500), at(1510), ended="running", process="ahead@h:2")
    ahead, right = report(writer.write(), 60, 1510, sampled=71).processes
    assert (ahead.ended, right.ended) == ("running", "running")


def test_a_lag_without_recent_samples_is_none(writer: Writer) -> None:
    gauge = {
        "metric": "ddmq_lag",
        "topic": "t",
        "detail": "",
        "last": 5.0,
        "max": 5.0,
        "min": 5.0,
        "mean": 5.0,
    }
    for group, process, last in (("done", "alive", 70), ("stuck", "dead", 61)):
        writer.lag(at(60), group, "t", 5.0)
        writer.add("gauges_minute", {"start": at(60), "group": group, "process": process, **gauge})
        writer.process(at(60), at(last) if last > 61 else at(60).replace(second=30), process=process)
    lag_of = {row.group: row.lag for row in report(writer.write(), 60, 70).waiting}
    assert lag_of == {"done": 0.0, "stuck": 5.0}


def test_an_instance_has_the_state_of_its_last_day(writer: Writer) -> None:
    writer.process(at(1400), at(1439), ended="running")
    writer.process(at(1440), at(1500), ended="vanished")
    (process,) = report(writer.write(), 1400, 1500).processes
    assert (process.restarts, process.vanished_count, process.ended) == (0, 1, "vanished")


def test_the_week_before_is_compared(writer: Writer, tmp_path: Path) -> None:
    for minute, sent, slow in ((60, 100, 1000.0), (60 + 7 * 1440, 150, 4000.0)):
        writer.counter(at(minute), "ddmq_sends_total", sent, "orders", detail="code=0")
        writer.times(at(minute), "ddmq_send_latency_us", [slow], "orders")
    result = report(writer.write(), 7 * 1440, 7 * 1440 + 120)
    by = {change.what: change for change in result.changes}
    assert by["messages sent"][1:] == ("150", "100", "+50 %", False)
    assert (by["send latency p99"].change, by["send latency p99"].worse) == ("+300 %", True)
    assert by["sent to orders"].change == "+50 %"
    assert report(tmp_path, 60, 61).changes == []


def test_offenders_are_ranked_with_their_share(ten_minutes: Path) -> None:
    by = {offender.title: offender for offender in report(ten_minutes, 60, 70).offenders}
    (refused,) = by["Sends refused"].rows
    assert (refused.name, refused.value_text) == ("orders", "12")
    assert refused.details == "0.2 % of 6,012; code 11: 12"
    (redelivered,) = by["Delivered again"].rows
    assert (redelivered.name, redelivered.value_text) == ("billing on orders", "30")
    assert by["Dead letters"].rows[0].details == "attempts: 3"
    assert by["Failed by consumers"].rows == []


def test_many_groups_are_a_bounded_page(tmp_path: Path) -> None:
    busy_week(tmp_path, topics=30, days=1, every_minutes=240)
    result = report(tmp_path, 0, 1440)
    assert len(result.lag) == 9
    assert result.lag[-1].name.endswith("others together")
    assert result.heat is not None
    assert sum(cell or 0 for row in result.heat.cells for cell in row) == result.totals.sent


@pytest.mark.parametrize("length", [60_000, HOUR_MS, DAY_MS, 3 * DAY_MS, WEEK_MS, 90 * DAY_MS, 3650 * DAY_MS])
def test_a_range_of_any_length_has_at_most_500_steps(length: int) -> None:
    time_range = build_time_range(ms(61), ms(61) + length)
    assert len(time_range.step_starts()) <= 500
    assert time_range.step_starts()[0] <= time_range.start_ms
    assert time_range.step_starts()[-1] + time_range.step_ms >= time_range.end_ms


def test_words() -> None:
    assert [words.format_percent(ratio) for ratio in (0.5, 0.99999, 1.0, 0.00001, None)] == [
        "50 %", "99.999 %", "100 %", "under 0.01 %", "–",
    ]  # fmt: skip
    assert [words.format_ms(value) for value in (0.851, 12.0, 3400.0, 245_000.0)] == [
        "0.851 ms", "12 ms", "3.4 s", "4 m 5 s",
    ]  # fmt: skip
    assert [words.describe_change(*pair) for pair in ((1, 0), (0, 1), (2, 2), (30, 2), (97, 100))] == [
        "new", "gone", "same", "×15", "-3 %",
    ]  # fmt: skip
    assert words.format_plural(1, "process", "processes") == "1 process"
