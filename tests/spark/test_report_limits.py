"""Every limit of rows that the job and the report have: nothing behind it is lost in silence.

What a list leaves out is in the sums and in the verdict, or the report says that it was left out, and is then
not "all well". `LIMITS` names the test of each limit; a new one without a test fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from rich.console import Console

import metrics_job
from metrics_job.report import days, html, reading, sections, terminal
from metrics_job.report.core import changes
from metrics_job.report.core.facts import Report, report_of
from metrics_job.report.core.material import build_time_range
from metrics_job.report.reading import Tables
from metrics_job.report.run import build_page
from metrics_job.report.terminal import print_report
from metrics_job.tables import TABLES
from tests.spark.report_tables import MONDAY, Writer, at, ms

HERE = "test_report_limits.py::"
LIMITS = {
    "days.PROMISES_MAX": f"{HERE}test_missed_promises_precede_met_ones_and_all_are_counted",
    "days.STARTS_MAX": f"{HERE}test_starts_that_are_left_out_are_a_finding",
    "days.REJECTS_MAX": f"{HERE}test_rejected_lines_are_all_counted",
    "reading.ANOMALIES_MAX": f"{HERE}test_unusual_hours_are_all_counted",
    "reading.LAGS_SHOWN": f"{HERE}test_subscriptions_without_a_line_of_their_own_are_one_line",
    "html.OTHERS_MAX": "test_report_page.py::test_of_thousands_the_first_are_on_the_page",
    "sections.ROWS_SHOWN": f"{HERE}test_every_table_of_the_page_names_its_omitted_rows",
    "sections.BEHIND_SHOWN": f"{HERE}test_every_table_of_the_page_names_its_omitted_rows",
    "sections.TOPICS_SHOWN": f"{HERE}test_every_table_of_the_page_names_its_omitted_rows",
    "sections.OFFENDERS_SHOWN": "test_report_page.py::test_what_is_left_out_of_a_list_opens_below_it",
    "terminal.ROWS_SHOWN": f"{HERE}test_missed_promises_precede_met_ones_and_all_are_counted",
    "changes.TOPICS_SHOWN": f"{HERE}test_topics_that_changed_less_are_counted",
    "order.KEYS_MAX": "../unit/metrics_job/test_report_order.py::"
    "test_one_failure_blocks_nothing_and_other_keys_share_a_row",
    "read.RETRIES_MAX": "test_arrow_reading.py::test_more_unusual_intervals_than_are_named_are_all_reread",
    "read.FILE_BYTES_MAX": "test_arrow_reading.py::test_long_files_are_read_in_chunks",
    "work.CACHED_SERIES_MAX": "../unit/metrics_job/test_pieces.py::"
    "test_a_worker_that_forgets_the_names_of_series_still_counts_every_line",
}
NO_ROWS = {  # limits of something else than rows
    "figures.NAME_MAX", "material.POINTS_MAX", "health.SILENT_AFTER_MAX_MS", "groups.MINUTES_APART_MAX",
    "processes.VANISHED_AFTER_MAX_S", "terminal.LABEL_MAX",
}  # fmt: skip


def limits() -> Iterator[str]:
    """Module and name of each limit, where it is defined."""
    root = Path(metrics_job.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "sparksource" not in path.parts:
            for name in re.findall(r"^([A-Z_]*(?:_MAX|_SHOWN)[A-Z_]*) = ", path.read_text(), re.M):
                yield f"{path.stem}.{name}"


def test_every_limit_of_rows_has_a_test() -> None:
    assert set(limits()) - NO_ROWS == set(LIMITS)
    for label in LIMITS.values():
        file, _, test = label.partition("::")
        assert f"def {test}(" in (Path(__file__).parent / file).read_text()


def put(folder: Path, table: str, day: date, columns: dict[str, Any]) -> None:
    """Write the rows of a day; a column that is not given is null, a plain value holds in every row."""
    count = max(len(values) for values in columns.values() if isinstance(values, list))
    schema = to_arrow_schema(TABLES[table].schema, timezone="UTC")
    arrays = [
        values if isinstance(values := columns.get(field.name), list) else [values] * count
        for field in schema
    ]
    path = folder / table / f"date={day}"
    path.mkdir(parents=True)
    result = [pa.array(values, field.type) for values, field in zip(arrays, schema, strict=True)]
    rows = pa.Table.from_arrays(result, schema=schema)
    for number, start in enumerate((0, count // 2)):  # several files a date, as the job writes them
        some = rows.slice(start, count // 2 if not number else None)
        pq.write_table(some, path / f"part-{number}.parquet")


def some_traffic(writer: Writer, days_after: int = 0) -> None:
    minute = 60 + days_after * 1440
    writer.counter(at(minute), "ddmq_sends_total", 600, "t", detail="code=0")
    writer.process(at(minute), at(minute + 1), process="alive@h:1")


def report(folder: Path, days: int = 1) -> Report:
    return report_of(Tables(folder).read_material(build_time_range(ms(0), ms(days * 1440))))


def printed(result: Report) -> str:
    console = Console(file=StringIO(), width=160)
    print_report(result, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def promises(folder: Path, day: date, topics: int, missed: range = range(0)) -> None:
    met = [topic not in missed for topic in range(topics)]
    put(
        folder,
        "slo_day",
        day,
        {
            "day": day,
            "slo": "fast",
            "topic": [f"topic-{number:06}" for number in range(topics)],
            "group": "g",
            "target": 0.9,
            "good": [100 if one else 50 for one in met],
            "total": 100,
            "compliance": [1.0 if one else 0.5 for one in met],
            "met": met,
        },
    )


@pytest.mark.parametrize("bound", [None, 8])
def test_missed_promises_precede_met_ones_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: int | None
) -> None:
    if bound is not None:
        monkeypatch.setattr(days, "PROMISES_MAX", bound)
    topics, many, missed = (40, 3, 9) if bound else (30_000, 5, 400)
    for day in range(many):
        last = day == many - 1
        promises(
            tmp_path, MONDAY.date() + timedelta(day), topics, range(20, 20 + missed) if last else range(0)
        )
    some_traffic(writer := Writer(tmp_path), many - 1)
    writer.write()
    result = report(tmp_path, many)
    assert result.findings[0].text.startswith(f"{missed} promises missed (fast)")
    assert (result.tallies.promises_kept, result.tallies.promises_missed) == (topics - missed, missed)
    worst = result.slo[0]
    assert worst.topic == "topic-000020"
    assert (worst.days, worst.days_missed) == (many, [str(MONDAY.date() + timedelta(many - 1))])
    terminal_text = printed(result)
    assert f"promises missed: {missed}" in terminal_text
    assert f"… and {missed - terminal.ROWS_SHOWN} more, on the page" in terminal_text
    assert f"{topics - missed:,} kept, {missed} missed" in build_page(result, 0)
    notice = f"Of {topics:,} promises the {bound} worst are listed; all are counted."
    assert (notice in terminal_text) is (notice in build_page(result, 0)) is (bound is not None)


def test_all_met_promises_are_counted_beyond_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(days, "PROMISES_MAX", 8)
    promises(tmp_path, MONDAY.date(), 40)
    some_traffic(writer := Writer(tmp_path))
    writer.write()
    result = report(tmp_path)
    assert result.is_well
    assert "all 40 promises kept" in printed(result)


def starts(folder: Path, day: date, count: int, vanished: int) -> None:
    first, last = (MONDAY + timedelta(days=(day - MONDAY.date()).days, minutes=m) for m in (0, 1439))
    put(
        folder,
        "processes",
        day,
        {
            "process": [f"producer@host-{number:04}:9813" for number in range(count)],
            "instance": [f"{number:016x}" for number in range(count)],
            "first_seen": first,
            "last_seen": last,
            "samples": 10,
            "files": 10,
            "missing": 0,
            "duplicates": 0,
            "longest_gap_s": 0.0,
            "ended": ["vanished" if number < vanished else "running" for number in range(count)],
            "clock_steps": 0,
            "interval_s": 10.0,
        },
    )


def test_a_thousand_processes_over_a_hundred_days_hide_no_crash_of_today(tmp_path: Path) -> None:
    many, count = 101, 1_000
    for day in range(many):
        starts(tmp_path, MONDAY.date() + timedelta(day), count, 3 if day == many - 1 else 0)
    Writer(tmp_path).write()
    result = report(tmp_path, many)
    assert len(result.processes) == count
    (text,) = (finding.text for finding in result.findings)
    assert text.startswith("3 processes ended without a word")
    assert (result.processes[0].first_ms, result.processes[0].starts) == (ms(0), 1)


def test_a_start_over_several_dates_is_one_with_its_gaps(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for day, missing in ((0, 2), (1, 3)):
        first, last = at(day * 1440 + 60), at(day * 1440 + 1400)
        writer.process(first, last, ended="last" if day else "running", missing=missing, clock_steps=1)
    (process,) = report(writer.write(), 2).processes
    assert (process.starts, process.ended, process.missing, process.clock_steps) == (1, "last", 5, 2)
    assert process.longest_gap_s == 100 * 60
    assert (process.first_ms, process.last_ms) == (ms(60), ms(1440 + 1400))


def test_starts_that_are_left_out_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_traffic(writer := Writer(tmp_path), 1)
    for number in range(4):
        writer.process(at(60 + number), at(70 + number), process=f"p{number}", instance=f"{number:016}")
    writer.write()
    assert report(tmp_path, 2).is_well
    monkeypatch.setattr(days, "STARTS_MAX", 3)
    result = report(tmp_path, 2)
    assert {row.name for row in result.processes} == {"alive@h:1", "p3", "p2"}, "the ones heard last"
    (finding,) = result.findings
    assert finding.text.startswith("2 older starts of processes left out")
    assert "look here" in printed(result)
    assert "All well" not in build_page(result, 0)


def test_rejected_lines_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_traffic(writer := Writer(tmp_path), 1)
    writer.write()
    for day in (0, 1):
        put(
            tmp_path,
            "rejects",
            MONDAY.date() + timedelta(day),
            {
                "file": [f"file-{day}-{number}" for number in range(5)],
                "reason": "corrupt",
                "lines": [1, 2, 3, 4, 5],
                "example": "{",
            },
        )
    monkeypatch.setattr(days, "REJECTS_MAX", 3)
    result = report(tmp_path, 2)
    assert [row["file"] for row in result.rejects] == ["file-1-4", "file-1-3", "file-1-2"]
    (finding,) = result.findings
    assert finding.text == "30 sample lines not understood and left out."
    assert "Of 10 kinds of lines left out the 3 newest are listed; all are counted." in printed(result)


def test_unusual_hours_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some_traffic(writer := Writer(tmp_path))
    for number in range(7):
        row = {"metric": "m", "topic": f"t{number}", "group": "", "value": 9.0, "usual": 1.0, "weeks": 4}
        writer.add("anomalies_hour", {"start": at(60), **row, "deviation": -4.0 - number})
    writer.write()
    monkeypatch.setattr(reading, "ANOMALIES_MAX", 2)
    result = report(tmp_path)
    assert [row["topic"] for row in result.anomalies] == ["t6", "t5"]
    (finding,) = result.findings
    assert finding.text.startswith("7 hours unlike")
    assert "Of 7 unusual hours the 2 furthest from what is usual are listed" in printed(result)


def test_subscriptions_without_a_line_of_their_own_are_one_line(tmp_path: Path) -> None:
    some_traffic(writer := Writer(tmp_path))
    for number in range(reading.LAGS_SHOWN + 3):
        writer.lag(at(60), f"g{number:02}", "t", float(100 - number))
    writer.write()
    result = report(tmp_path)
    assert len(result.waiting) == reading.LAGS_SHOWN + 3
    assert result.lag[-1].name == "3 others together"
    assert max(value or 0 for _, value in result.lag[-1].points) == 92 + 91 + 90


def test_every_table_of_the_page_names_its_omitted_rows(tmp_path: Path) -> None:
    count, writer = 40, Writer(tmp_path)
    for number in range(count):
        writer.counter(at(60), "ddmq_sends_total", 100, f"t{number:02}", detail="code=0")
        writer.lag(at(60), f"g{number:02}", "t", 5.0)
        writer.process(at(60), at(61), process=f"p{number:02}")
        writer.add("rejects", {"file": f"f{number:02}", "reason": "corrupt", "lines": 1, "example": "{"})
        row = {"metric": "m", "topic": f"t{number}", "group": "", "value": 9.0, "usual": 1.0, "weeks": 4}
        writer.add("anomalies_hour", {"start": at(60), **row, "deviation": 5.0})
    writer.write()
    promises(tmp_path, MONDAY.date(), count)
    text = build_page(report(tmp_path), 0)
    for name, listed in (
        ("waiting", sections.BEHIND_SHOWN),
        ("topics", sections.TOPICS_SHOWN),
        *((name, sections.ROWS_SHOWN) for name in ("promises", "changes", "processes", "rejects")),
    ):
        (card,) = re.findall(rf'<section id="{name}".*?</section>', text, re.S)
        assert f"… and {count - listed} more" in card, name
        assert card.count("<tr>") >= count, name
    assert count < html.OTHERS_MAX


def test_topics_that_changed_less_are_counted(tmp_path: Path) -> None:
    writer, week = Writer(tmp_path), 7 * 1440
    for number in range(changes.TOPICS_SHOWN + 4):
        writer.counter(at(60), "ddmq_sends_total", 100, f"t{number}", detail="code=0")
        writer.counter(at(60 + week), "ddmq_sends_total", 101 + number, f"t{number}", detail="code=0")
    result = report_of(Tables(writer.write()).read_material(build_time_range(ms(week), ms(week + 120))))
    of_topics = [row.what for row in result.changes if row.what.startswith("sent to")]
    assert of_topics[-1] == "sent to 4 more topics, each changed by less"
    assert len(of_topics) == changes.TOPICS_SHOWN + 1
