"""Samples → tables → report: run the job over the dates of the report, read the tables, write the page.

The job is a parameter, so that this runs without Spark where the tables are there already. It is run over
entire UTC dates, because a date is what it replaces: those of the range, and those of the week before that
have samples and no tables yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import day_of
from metrics_job.lock import check_unlocked
from metrics_job.report import sections
from metrics_job.report.core import words
from metrics_job.report.core.facts import Report, report_of
from metrics_job.report.core.figures import build_figures
from metrics_job.report.core.health import NOTHING_INTENDED, Intended
from metrics_job.report.core.material import DAY_MS, Material, build_time_range, date_of
from metrics_job.report.reading import Tables

READS = 3  # of tables that a run replaces at the same time
Job = Callable[[Path, Path, int, int], None]  # samples, tables, from ms, to ms (exclusive)


def make_tables(job: Job, samples: Path, tables: Path, since_ms: int | None, now_ms: int) -> None:
    """Update `tables` for a report from `since_ms` (None: from the first sample) to now.

    Raises ConfigError if there are no samples, or `tables` cannot be written.
    """
    dates = sample_dates(samples)
    if not dates:
        raise ConfigError(
            f"no samples in {samples}: servers write them there while they run (samples in conf/ddmq.yaml); "
            "--samples names another folder"
        )
    _check_writable(tables)
    check_unlocked(tables)
    first = dates[0] if since_ms is None else max(dates[0], date_of(since_ms))
    last = dates[-1]
    if since_ms is not None:
        week = range(since_ms - 7 * DAY_MS, now_ms - 7 * DAY_MS + DAY_MS, DAY_MS)
        absent = [
            date
            for date in map(date_of, week)
            if date in dates and date < first and not _has_tables(tables, date)
        ]
        if absent:
            job(samples, tables, _start_of(absent[0]), _start_of(absent[-1]) + DAY_MS)
    if first <= last:
        job(samples, tables, _start_of(first), _start_of(last) + DAY_MS)


def read_report(
    tables: Path | str,
    since_ms: int | None,
    now_ms: int,
    *,
    up_to_date: bool = False,
    intended: Intended = NOTHING_INTENDED,
) -> Report:
    """Return the report from `since_ms` (None: the first row) to now, or to the last row if that is earlier.

    `up_to_date`: the tables contain all samples that exist, so a process without recent rows is silent.
    """
    material = _read_material(tables, since_ms, now_ms)
    return report_of(material, now_ms if up_to_date else None, intended)


def _read_material(tables: Path | str, since_ms: int | None, now_ms: int) -> Material:
    """Read the report's data, again if a run replaces files meanwhile.

    Raises ConfigError if that happens each time.
    """
    for _ in range(READS):
        try:
            opened = Tables(tables)
            bounds = opened.read_bounds()
            if since_ms is not None:
                time_range = build_time_range(since_ms, now_ms)
            else:
                time_range = (
                    build_time_range(*bounds) if bounds else build_time_range(now_ms - DAY_MS, now_ms)
                )
            return opened.read_material(time_range)
        except FileNotFoundError as error:
            missing = error
    raise ConfigError(
        f"the tables in {tables} are being replaced by a run of the job: {missing}; run it again when that "
        "has ended"
    ) from missing


def write_page(report: Report, out: Path, created_ms: int) -> None:
    """Write the report page atomically. Raises ConfigError with the reason if that fails."""
    text = build_page(report, created_ms)
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(
            f"the page cannot be written to {out}: {error.strerror}; name another file"
        ) from error


def sample_dates(samples: Path) -> list[str]:
    """Return the UTC dates that have a folder of samples, in order."""
    if not samples.is_dir():
        return []
    return sorted(day.isoformat() for entry in samples.iterdir() if (day := day_of(entry.name)))


def _check_writable(tables: Path) -> None:
    """Raise ConfigError if the folder is not writable, before Spark would print 300 lines about it."""
    try:
        tables.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=tables):
            pass
    except OSError as error:
        raise ConfigError(
            f"tables cannot be written to {tables}: {error.strerror}; --tables names another folder"
        ) from error


def _has_tables(tables: Path, date: str) -> bool:
    return (tables / "counters_hour" / f"date={date}").is_dir()


def _start_of(date: str) -> int:
    return int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()) * 1000


_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def build_page(report: Report, created_ms: int) -> str:
    """Return the page's HTML, with `created_ms`, the creation time, in its footer.

    Raises ImportError without plotly.
    """
    drawn = build_figures(report)
    title = "ddmq report"
    if report.covered:
        title += f", {words.format_range(*report.covered)}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_read_text('page.css')}</style></head><body><main>",
            sections.build_head(report),
            '<div class="grid">',
            *sections.build_cards(report, drawn),
            "</div>",
            sections.build_foot(created_ms),
            "</main>",
            *(_script_tags(drawn) if drawn else ()),
            "</body></html>",
        ]
    )


def _script_tags(drawn: dict[str, Any]) -> list[str]:
    from plotly.offline import get_plotlyjs

    return [
        f'<script type="application/json" id="figures">{_to_json(drawn)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{_read_text('page.js')}</script>",
    ]


def _to_json(value: Any) -> str:
    """Convert a value to JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read_text(name: str) -> str:
    return files("metrics_job.report").joinpath(name).read_text(encoding="utf-8")
