"""The batch job on what is not a plain day of samples: each has an outcome that is written down.

Every case has a day of its own and one run computes them all, line by line (a file has a strange name), in a
session of another time zone and beside another run. Minute 0 of a day is 10:00 UTC.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import SampleName, interval_name
from metrics_job.batch import run_batch
from tests.spark import tables_read

MINUTE = 60_000
SENDS = {"metric": "ddmq_sends_total", "labels": {"topic": "t", "code": "0"}}
MONDAY = datetime(2026, 1, 5, 10, tzinfo=UTC)
CLOCK, LONG, STOPPED, COPIES, LAG, BAD, SLOW, FIRST, STEP = (
    MONDAY + timedelta(days=day) for day in (1, 2, 3, 4, 5, 6, 8, 9, 10)
)
ZONE, LATE = "Asia/Kolkata", 9 * 60 + 30  # the session's zone; a minute at which the next day has begun there
STAGING = "anomalies_hour/.spark-staging-other"  # what a killed run had begun to write
WEEKS = [MONDAY + timedelta(weeks=week) for week in range(4)]


def ms(day: datetime, minute: float = 0) -> int:
    return int(day.timestamp() * 1000 + minute * MINUTE)


def run(name: str) -> str:
    """An instance that can be told from others."""
    return name.encode().hex().zfill(16)


def line(seq: int, from_ms: int, to_ms: int, value: float, of: dict[str, Any], instance: str) -> str:
    head = {"v": 1, "process": "p@h", "instance": run(instance), "seq": seq, "from": from_ms, "to": to_ms}
    return json.dumps(head | of | {"value": value}, separators=(",", ":"))


def interval(seq: int, from_ms: int, to_ms: int, instance: str, state: str, *lines: Any) -> list[str]:
    """The lines of one file; `lines` are pairs of a metric with its labels and a value."""
    first = {"metric": "ddmq_process", "labels": {"state": state}}
    pairs = [(first, len(lines) + 1), *lines]
    return [line(seq, from_ms, to_ms, value, of, instance) for of, value in pairs]


def put(samples: Path, at_ms: int, instance: str, seq: int, lines: Iterable[str]) -> Path:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    folder = samples / f"date={moment:%Y-%m-%d}" / f"hour={moment:%H}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / str(interval_name(run(instance), seq))
    path.write_text("".join(f"{one}\n" for one in lines))
    return path


def sends(
    samples: Path, to_ms: int, instance: str, seq: int, value: float, state: str = "running", s: int = 10
) -> Path:
    """A file that says how much was sent in the `s` seconds before."""
    return put(
        samples, to_ms, instance, seq, interval(seq, to_ms - s * 1000, to_ms, instance, state, (SENDS, value))
    )


def clock_steps_back(samples: Path) -> None:
    sends(samples, ms(CLOCK, 0.5), "clock", 0, 60)
    back = ms(CLOCK, 0.5) - 10_000  # the end, before the beginning
    put(samples, back, "clock", 1, interval(1, ms(CLOCK, 0.5), back, "clock", "running", (SENDS, 7)))


def some_end(samples: Path) -> None:
    sends(samples, ms(STOPPED), "stopped", 0, 1, "last")
    sends(samples, ms(STOPPED, 1), "gone", 0, 1)
    for seq in (0, 1, 4):  # 2 and 3 never came
        sends(samples, ms(STOPPED, 5 + seq), "alive", seq, 1)


def slow_intervals(samples: Path) -> None:
    """Files every 5 minutes, told 4 minutes before those of another process."""
    for seq in (0, 1, 2):
        sends(samples, ms(SLOW, 5 * seq), "slow", seq, 1, s=300)
        sends(samples, ms(SLOW, 5 * seq + 4), "slower", seq, 1, s=300)
    sends(samples, ms(SLOW, 10), "young", 0, 1, s=0)
    sends(samples, ms(SLOW, -3), "mute", 1, 1, s=300)


def first_files(samples: Path) -> None:
    """Of two processes that started 3 minutes apart, and have written nothing more."""
    sends(samples, ms(FIRST), "elder", 0, 1, s=0)
    sends(samples, ms(FIRST, 3), "younger", 0, 1, s=0)


def copies(samples: Path) -> None:
    file = sends(samples, ms(COPIES, 59), "twice", 0, 5)
    (file.parent / str(SampleName(run("twice"), 0, 0, merged=True))).write_bytes(file.read_bytes())
    (file.parent / "copy.jsonl").write_bytes(file.read_bytes())  # by no name the job knows
    sends(samples, ms(COPIES, 59.5), "twice", 1, 2)
    late = samples / f"date={COPIES:%Y-%m-%d}" / "hour=11" / file.name  # sent again an hour later
    late.parent.mkdir()
    late.write_bytes(file.read_bytes())


def no_time(samples: Path) -> None:
    """A clock that steps back into a minute of its own, in which messages are sent and finished."""
    to_ms, of = ms(STEP, 20), {"labels": {"group": "g", "topic": "t"}}
    values = (SENDS, 7), ({"metric": "ddmq_acked_total"} | of, 5), ({"metric": "ddmq_lag"} | of, 2)
    put(samples, to_ms, "step", 4, interval(4, ms(STEP, 40), to_ms, "step", "running", *values))


def lag(samples: Path) -> None:
    of = {"labels": {"group": "g", "topic": "t"}}
    for minute, lag_left, acked in ((0, 600, 0), (1, 540, 120), (2, 540, 120), (3, 0, 600)):
        end = ms(LAG, minute)
        values = ({"metric": "ddmq_lag"} | of, lag_left), ({"metric": "ddmq_acked_total"} | of, acked)
        put(samples, end, "lag", minute, interval(minute, end - MINUTE, end, "lag", "running", *values))


def lag_twice_a_minute(samples: Path) -> None:
    for seq, lag_left in enumerate((900, 10)):
        end, value = (
            ms(LAG, 10 + seq / 2),
            ({"metric": "ddmq_lag", "labels": {"group": "g", "topic": "u"}}, lag_left),
        )
        put(samples, end, "lag2", seq, interval(seq, end - 30_000, end, "lag2", "running", value))


def lag_with_a_gap(samples: Path) -> None:
    for seq, minute in enumerate((30, 34)):
        end, of = ms(LAG, minute), {"labels": {"group": "g", "topic": "v"}}
        lines = interval(seq, end - 4 * MINUTE, end, "gap", "running", ({"metric": "ddmq_lag"} | of, 5))
        put(samples, end, "gap", seq, lines)


def bad_lines(samples: Path) -> None:
    negative = line(0, 0, ms(BAD), -1, SENDS, "bad")
    put(samples, ms(BAD), "bad", 0, ["{", "[1]", negative.replace('"v":1', '"v":9'), negative])


def newer_labels(samples: Path) -> None:
    of = {"metric": "ddmq_acked_total"}
    values = [(of | {"labels": {"group": "g", "topic": "t", "zone": zone}}, 10) for zone in "ab"]
    lines = interval(0, ms(WEEKS[1]) - 10_000, ms(WEEKS[1]), "new", "running", (SENDS, 1), *values)
    put(samples, ms(WEEKS[1]), "new", 0, lines)


def no_consumers(samples: Path) -> None:
    of = {"labels": {"group": "gone", "topic": "t"}}
    for seq in range(8):
        end = ms(WEEKS[2], seq)
        lag = ({"metric": "ddmq_lag"} | of, 100 * seq), ({"metric": "ddmq_lag_age_ms"} | of, 60_000 * seq)
        refused = ({"metric": "ddmq_sends_total", "labels": {"topic": "-", "code": "13"}}, 1)
        values = (*lag, (SENDS, 10_000), *([refused] if seq == 3 else []))
        put(samples, end, "idle", seq, interval(seq, end - MINUTE, end, "idle", "running", *values))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("edges") / "samples"
    for case in (
        clock_steps_back,
        some_end,
        slow_intervals,
        first_files,
        no_time,
        copies,
        lag,
        lag_twice_a_minute,
        lag_with_a_gap,
        bad_lines,
    ):
        case(folder)
    for name in ("date=2026-13-45/hour=03", f"date={BAD:%Y-%m-%d}/hour=99", "date=9999-12-31/hour=23"):
        (folder / name).mkdir(parents=True)  # days and hours that there are not
        (folder / name / str(interval_name(run("nowhere"), 0))).write_text("{}\n")
    sends(folder, ms(LONG, 1.5), "long", 0, 180, s=90)
    sends(folder, ms(LONG, LATE), "long", 1, 5)
    for week, value in enumerate((100, 104, 96, 1000)):
        sends(folder, ms(WEEKS[week]), f"week{week}", 0, value)
    return folder


@pytest.fixture(scope="module")
def out(spark: SparkSession, samples: Path) -> Path:
    """The tables of one run over all."""
    out = samples.parent / "out"
    (out / STAGING).mkdir(parents=True)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    try:
        days = run_batch(samples, out, spark=spark)
        assert spark.conf.get("spark.sql.session.timeZone") == ZONE
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert len(days) == 13
    return out


@pytest.fixture(scope="module")
def plain(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with samples of three days, whose names tell what is in them, and their tables; not to be
    changed."""
    folder = tmp_path_factory.mktemp("plain")
    sends(folder / "samples", ms(WEEKS[0]), "one", 0, 5)
    sends(folder / "samples", ms(WEEKS[0], 120), "one", 1, 7)
    newer_labels(folder / "samples")
    no_consumers(folder / "samples")
    assert len(run_batch(folder / "samples", folder / "out")) == 3
    return folder


def of_day(rows: tables_read.Rows, day: datetime) -> tables_read.Rows:
    return {key: row for key, row in rows.items() if ms(day) <= key[0] < ms(day) + 4 * 60 * MINUTE}


def test_an_empty_folder_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    assert run_batch(tmp_path / "samples", tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        run_batch(tmp_path / "samples", tmp_path / "out")


@pytest.mark.parametrize("moment_ms", [10**18, -1, -(10**18)])
def test_a_time_that_is_none_is_an_error(spark: SparkSession, tmp_path: Path, moment_ms: int) -> None:
    for range_ms, option in (((moment_ms, None), "--from"), ((None, moment_ms), "--to")):
        with pytest.raises(ConfigError, match=f"{option} {moment_ms}: allowed: times from 1970 to 9998"):
            run_batch(tmp_path, tmp_path / "out", *range_ms)


def test_a_day_of_only_bad_lines_has_rejects_alone(out: Path) -> None:
    name = str(interval_name(run("bad"), 0))
    expected = {(name, "corrupt"): 2, (name, "unknown version"): 1, (name, "bad value"): 1}
    assert {key: lines for key, lines in tables_read.rejects(out).items() if key[0] == name} == expected
    assert [path.name for path in out.iterdir() if (path / f"date={BAD:%Y-%m-%d}").exists()] == ["rejects"]


def test_a_clock_that_steps_back_counts_and_covers_no_time(out: Path) -> None:
    rows = of_day(tables_read.counters(out, "minute"), CLOCK)
    assert list(rows.values()) == [(67.0, 10.0, 6.7)]
    steps = {key[2]: row[-1] for key, row in tables_read.processes(out).items() if row[-1]}
    assert steps == {run("clock"): 1, run("step"): 1}


def test_an_interval_over_a_minute_belongs_to_the_minute_of_its_end(out: Path) -> None:
    rows = of_day(tables_read.counters(out, "minute"), LONG)
    assert {key[0]: row for key, row in rows.items()} == {ms(LONG, 1): (180.0, 90.0, 2.0)}


def test_ended_distinguishes_a_stop_from_a_vanished_process(out: Path) -> None:
    values = ("ended", "missing", "longest_gap_s")
    rows = tables_read.rows(out, "processes", ("instance",), values)
    assert {name: rows[(run(name),)] for name in ("stopped", "gone", "alive")} == {
        "stopped": ("last", 0, 0.0),
        "gone": ("vanished", 0, 0.0),
        "alive": ("running", 2, 170.0),
    }


def test_a_process_that_writes_seldom_has_not_vanished(out: Path) -> None:
    rows = tables_read.rows(out, "processes", ("instance",), ("ended", "interval_s"))
    assert {name: rows[(run(name),)] for name in ("slow", "slower", "young", "mute")} == {
        "slow": ("running", 300.0),
        "slower": ("running", 300.0),
        "young": ("running", 300.0),
        "mute": ("vanished", 300.0),
    }
    assert {rows[(run(name),)] for name in ("elder", "younger")} == {("running", None)}


def test_what_is_counted_in_no_time_has_no_rate(out: Path) -> None:
    counted = of_day(tables_read.counters(out, "minute"), STEP)
    assert sorted(counted.values()) == [(5.0, 0.0, None), (7.0, 0.0, None)]
    values = ("lag", "finished_per_s", "arrived_per_s", "time_to_drain_s")
    rows = of_day(tables_read.rows(out, "lag_minute", ("start", "group", "topic"), values), STEP)
    assert list(rows.values()) == [(2.0, 0.0, 0.0, None)]


def test_copies_under_other_names_and_folders_count_once(out: Path) -> None:
    assert sum(row[0] for row in of_day(tables_read.counters(out, "minute"), COPIES).values()) == 7
    dropped = {key[2]: row[3] for key, row in tables_read.processes(out).items() if row[3]}
    assert dropped == {run("twice"): 6}


def test_an_hour_unlike_former_weeks_is_an_anomaly(out: Path) -> None:
    anomalies = tables_read.rows(
        out, "anomalies_hour", ("start", "metric", "topic"), ("value", "usual", "weeks")
    )
    assert anomalies == {(ms(WEEKS[3]), "ddmq_sends_total", "t"): (1000.0, 100.0, 3)}


def test_lag_has_the_time_until_it_is_drained(out: Path) -> None:
    values = ("finished_per_s", "arrived_per_s", "time_to_drain_s")
    rows = tables_read.rows(out, "lag_minute", ("start", "topic"), values)
    assert [rows[(ms(LAG, minute), "t")] for minute in range(4)] == [
        (0.0, 0.0, None),  # nothing moves
        (2.0, 1.0, 540.0),  # one a second less
        (2.0, 2.0, None),  # as much comes as goes
        (10.0, 1.0, 0.0),  # there is none
    ]


def test_lag_of_a_minute_is_its_last_and_its_highest(out: Path) -> None:
    rows = tables_read.rows(out, "lag_minute", ("start", "topic"), ("lag", "lag_max"))
    assert rows[(ms(LAG, 10), "u")] == (10.0, 900.0)


def test_lag_without_samples_keeps_its_value_and_has_no_rate(out: Path) -> None:
    values = ("lag", "arrived_per_s", "time_to_drain_s")
    rows = tables_read.rows(out, "lag_minute", ("start", "topic"), values)
    selected = {key[0]: row for key, row in rows.items() if key[1] == "v"}
    assert selected == {ms(LAG, minute): (5.0, 0.0, None) for minute in range(30, 35)}


def test_objectives_are_judged_by_day(out: Path) -> None:
    rows = tables_read.rows(out, "slo_day", ("slo", "topic", "date"), ("good", "total", "met"))
    long = (LONG.date() - date(1970, 1, 1)).days
    assert rows[("sends stored", "t", long)] == (185, 185, True)


def test_days_are_those_of_utc_whatever_the_zone_of_the_session(out: Path) -> None:
    rows = tables_read.rows(out, "counters_minute", ("date", *tables_read.KEY), ("total",))
    day = (LONG.date() - date(1970, 1, 1)).days
    selected = {start: total for (of, start, *_), (total,) in rows.items() if of == day}
    assert selected == {ms(LONG, 1): 180.0, ms(LONG, LATE): 5.0}


def test_what_a_killed_run_had_begun_to_write_is_deleted(out: Path) -> None:
    assert (out / STAGING).parent.is_dir()
    assert not list(out.rglob(".spark-staging-*"))


def test_labels_of_a_newer_server_are_rejected_and_counted(plain: Path) -> None:
    assert set(tables_read.rejects(plain / "out").items()) == {
        ((str(interval_name(run("new"), 0)), "unknown label"), 2)
    }
    rows = tables_read.counters(plain / "out", "hour")
    assert [key[1] for key in of_day(rows, WEEKS[1])] == ["ddmq_sends_total"]


def test_a_group_without_consumers_breaks_a_promise(plain: Path) -> None:
    rows = tables_read.rows(
        plain / "out", "slo_day", ("slo", "topic", "group", "date"), ("good", "total", "met")
    )
    selected = {
        key[:3]: row for key, row in rows.items() if key[3] == (WEEKS[2].date() - date(1970, 1, 1)).days
    }
    assert selected["oldest waits at most 1 m", "t", "gone"] == (2, 8, False)
    assert selected["sends stored", "", ""] == (80_000, 80_001, True)
    assert ("sends stored", "-", "") not in selected


def test_a_run_replaces_its_days_and_keeps_those_that_lost_samples(
    spark: SparkSession, plain: Path, tmp_path: Path
) -> None:
    samples, out = tmp_path / "samples", tmp_path / "out"
    for name in ("samples", "out"):
        shutil.copytree(plain / name, tmp_path / name)
    files = sorted((out / "counters_hour").rglob("*.parquet"))
    assert len(run_batch(samples, out)) == 3
    assert sorted((out / "counters_hour").rglob("*.parquet")) == files, "nothing is new"
    one = put(samples, ms(WEEKS[0]), "one", 0, ["{"])  # what it had is gone
    two = sends(samples, ms(WEEKS[1]), "two", 0, 1000)  # not in the range
    before, first = tables_read.counters(out, "minute"), (ms(WEEKS[0]), ms(WEEKS[0]) + 1)
    assert run_batch(samples, out, *first) == [WEEKS[0].date()]
    lost_row = (ms(WEEKS[0]), "ddmq_sends_total", "p@h", "t", "", "code=0")
    assert tables_read.counters(out, "minute") == {key: row for key, row in before.items() if key != lost_row}
    tables = tables_read.everything(out)
    for path in (one, two):
        path.unlink()
    for range_ms in ((None, None), first):
        run_batch(samples, out, *range_ms)
        assert tables_read.everything(out) == tables, "samples of the first day are gone"
