"""From samples to a file: which dates the job runs over, the command line, the short form, programs' form."""

from __future__ import annotations

import importlib.util
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from ddmq.cli.root import run
from ddmq_common.errors import ConfigError
from metrics_job.report.core.material import DAY_MS, HOUR_MS
from metrics_job.report.run import make_tables, read_report, sample_dates, write_page
from metrics_job.report.terminal import print_report
from tests.spark.report_tables import Writer, at, ms

MIDNIGHT = ms(0)


class Job:
    """Notes the days it is run over, from the first midnight on, and makes their tables."""

    def __init__(self) -> None:
        self.days: list[tuple[int, int]] = []

    def __call__(self, samples: Path, tables: Path, from_ms: int, to_ms: int) -> None:
        self.days.append(((from_ms - MIDNIGHT) // DAY_MS, (to_ms - MIDNIGHT) // DAY_MS))


def samples_of(folder: Path, *days: int) -> Path:
    for day in days:
        (folder / f"date={at(day * 1440).date()}").mkdir(parents=True)
    return folder


def test_without_a_range_the_job_runs_over_all_dates(tmp_path: Path) -> None:
    job, samples = Job(), samples_of(tmp_path / "metrics", 0, 2, 9)
    for other in ("date=none", "date=2026-13-45", "date=9999-12-31"):
        (samples / other).mkdir()
    make_tables(job, samples, tmp_path / "tables", None, ms(10 * 1440))
    assert job.days == [(0, 10)]
    assert sample_dates(samples) == ["2026-11-16", "2026-11-18", "2026-11-25"]


def test_a_range_runs_its_full_dates_and_the_week_before_once(tmp_path: Path) -> None:
    job, samples = Job(), samples_of(tmp_path / "metrics", *range(10))
    now = ms(9 * 1440) + 12 * HOUR_MS
    make_tables(job, samples, tmp_path / "tables", now - HOUR_MS, now)
    assert job.days == [(2, 4), (9, 10)]
    job.days.clear()
    for day in (2, 3):
        (tmp_path / "tables" / "counters_hour" / f"date={at(day * 1440).date()}").mkdir(parents=True)
    make_tables(job, samples, tmp_path / "tables", now - HOUR_MS, now)
    assert job.days == [(9, 10)]


def test_a_range_after_the_last_sample_runs_nothing_of_it(tmp_path: Path) -> None:
    job, samples = Job(), samples_of(tmp_path / "metrics", 0)
    make_tables(job, samples, tmp_path / "tables", ms(5 * 1440), ms(5 * 1440 + 60))
    assert job.days == []


def test_missing_samples_are_reported_with_their_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no samples in .*nowhere"):
        make_tables(Job(), tmp_path / "nowhere", tmp_path / "tables", None, 0)


def test_unwritable_tables_are_reported_before_anything_runs(tmp_path: Path) -> None:
    job, samples, occupied = Job(), samples_of(tmp_path / "metrics", 0), tmp_path / "file"
    occupied.touch()
    with pytest.raises(ConfigError, match=r"tables cannot be written to .*/file/tables: .*--tables"):
        make_tables(job, samples, occupied / "tables", None, ms(100))
    assert job.days == []


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "tables")
    for minute in (60, 61, 62):
        sent = 500 if minute < 62 else 0
        writer.counter(at(minute), "ddmq_sends_total", sent, "orders [bold]", detail="code=0")
        writer.lag(at(minute), "billing", "orders [bold]", 7.0, time_to_drain_s=None, lag_age_ms=960_000.0)
    writer.process(at(60), at(62))
    return writer.write()


def test_the_short_form_tells_the_same_and_reads_no_markup(tables: Path) -> None:
    console = Console(file=StringIO(), width=160)
    print_report(read_report(tables, None, ms(100)), console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1,000 sent (0 refused)" in output
    assert "look here" in output
    assert "orders [bold]" in output
    assert "never" in output


def test_without_a_range_the_report_is_of_all_tables(tables: Path) -> None:
    result = read_report(tables, None, ms(9999))
    assert (result.time_range.start_ms, result.time_range.end_ms) == (ms(60), ms(63))


def test_the_command_writes_the_file_and_prints(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "report.html"
    assert run(["report", "--no-job", "--tables", str(tables), "--out", str(out)]) == 0
    assert "1,000 sent" in capsys.readouterr().out
    assert "1,000" in out.read_text()
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_programs_get_one_document(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    assert run(["report", "--no-job", "--tables", str(tables), "--out", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["ok"] is False
    assert summary["totals"]["sent"] == summary["topics"]["orders [bold]"]["sent"] == 1000
    assert summary["subscriptions"][0]["time_to_drain_s"] is None
    assert summary["html"] == str(out)


def test_a_missing_package_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else find_spec(name)
    )
    assert run(["report", "--out", str(tmp_path / "report.html")]) == 1
    output = capsys.readouterr().err
    assert output.startswith("Error: the report needs pyspark, not installed here; in the source tree: pip ")


def test_an_invalid_duration_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--since", "yesterday"]) == 2
    assert "--since 'yesterday'" in capsys.readouterr().err


def test_an_unwritable_page_leaves_no_temporary_file(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "occupied").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(read_report(tables, None, 0), tmp_path / "occupied", 0)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--samples", "s3a://bucket/metrics"], "ddmq report --no-job --tables URL"),
        (["--tables", "hdfs:///tables"], "ddmq report --no-job --tables URL"),
        (["--no-job", "--tables", "/no/such/folder"], "no such folder"),
    ],
)
def test_unreadable_tables_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["report", "--out", str(tmp_path / "report.html"), *arguments]) != 0
    output = capsys.readouterr().err
    assert says in output.replace("\n", " ")
    assert "Traceback" not in output


def test_tables_at_a_url_are_read(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert run(["report", "--no-job", "--tables", tables.as_uri(), "--out", str(out)]) == 0
    assert "orders [bold]" in out.read_text()
