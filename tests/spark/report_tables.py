"""Tables as the job writes them, made of hand-written rows: what the report is tested with."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from ddmq_common.metrics.cells import bucket_index
from metrics_job.report.core.material import compute_percentiles
from metrics_job.tables import TABLES

Row = Mapping[str, Any]
MONDAY = datetime(2026, 11, 16, tzinfo=UTC)


class Writer:
    """Collects rows, then writes each table's dates."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def counter(
        self, at: datetime, metric: str, total: float, topic: str = "", group: str = "", detail: str = "",
        process: str = "all@one:9813",
    ) -> None:  # fmt: skip
        """A minute and its hour."""
        key = {"metric": metric, "process": process, "topic": topic, "group": group, "detail": detail}
        self.add(
            "counters_minute", {"start": at, **key, "total": total, "seconds": 60.0, "per_s": total / 60}
        )
        hour = at.replace(minute=0)
        self.add(
            "counters_hour", {"start": hour, **key, "total": total, "seconds": 3600.0, "per_s": total / 3600}
        )

    def times(
        self,
        at: datetime,
        metric: str,
        values: Iterable[float],
        topic: str = "",
        group: str = "",
        detail: str = "",
    ) -> None:
        """A minute and its hour, of all processes together and of one."""
        counts: dict[int, int] = {}
        total = 0.0
        for value in values:
            counts[bucket_index(value)] = counts.get(bucket_index(value), 0) + 1
            total += value
        at_values = compute_percentiles(counts)
        assert at_values is not None
        row = {
            "metric": metric, "topic": topic, "group": group, "detail": detail, "count": at_values.measured,
            "sum": total, "buckets": sorted(counts), "counts": [counts[index] for index in sorted(counts)],
            "p50": at_values.p50, "p90": at_values.p99, "p99": at_values.p99, "p999": at_values.p999,
            "max": at_values.max,
        }  # fmt: skip
        for process in ("", "all@one:9813"):
            self.add("latencies_minute", {"start": at, "process": process, **row})
            self.add("latencies_hour", {"start": at.replace(minute=0), "process": process, **row})

    def lag(self, at: datetime, group: str, topic: str, lag: float, **more: Any) -> None:
        row = {
            "lag_age_ms": lag * 10, "finished_per_s": 10.0, "arrived_per_s": 9.0, "time_to_drain_s": lag,
            "blocked_keys": 0.0, "blocked_key_age_ms": 0.0,
        }  # fmt: skip
        row |= {"group": group, "topic": topic, "lag": lag, "lag_max": lag}
        self.add("lag_minute", {"start": at, **row, **more})

    def process(self, first: datetime, last: datetime, **more: Any) -> None:
        row = {
            "process": "all@one:9813", "instance": "a" * 16, "samples": 10, "files": 3, "missing": 0,
            "duplicates": 0, "longest_gap_s": 0.0, "ended": "last", "clock_steps": 0,
            "interval_s": 10.0,
        }  # fmt: skip
        self.add("processes", {**row, "first_seen": first, "last_seen": last, **more})

    def slo(
        self,
        day: date,
        name: str,
        good: int,
        total: int,
        target: float,
        topic: str = "",
        group: str = "",
        **more: Any,
    ) -> None:
        row = {"day": day, "slo": name, "topic": topic, "group": group, "target": target, "good": good}
        self.add(
            "slo_day",
            {**row, "total": total, "compliance": good / total, "met": good / total >= target, **more},
        )

    def add(self, table: str, row: dict[str, Any]) -> None:
        self._rows.setdefault(table, []).append(row)

    def write(self) -> Path:
        """One file a date."""
        for name, rows in self._rows.items():
            by: dict[str, list[dict[str, Any]]] = {}
            for row in rows:
                by.setdefault(_date(row), []).append(row)
            schema = to_arrow_schema(TABLES[name].schema, timezone="UTC")
            for day, of_day in by.items():
                folder = self._folder / name / f"date={day}"
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(of_day, schema=schema), folder / "part-0.parquet")
        return self._folder


def _date(row: Row) -> str:
    if "day" in row:
        return str(row["day"])
    at = row.get("start") or row.get("last_seen") or MONDAY
    return str(at.date())


def at(minute: int) -> datetime:
    """So many minutes after Monday's midnight."""
    return MONDAY + timedelta(minutes=minute)


def ms(minute: int) -> int:
    """The same in epoch ms."""
    return int(at(minute).timestamp() * 1000)


def busy_week(folder: Path, topics: int = 40, days: int = 7, every_minutes: int = 15, seed: int = 7) -> Path:
    """Days of many topics and groups, with a daily rhythm, a slow evening, a stuck group and a crash."""
    chance = random.Random(seed)
    writer = Writer(folder)
    for minute in range(0, days * 1440, every_minutes):
        hour = minute // 60 % 24
        rhythm = 1.2 + (1 if 7 <= hour <= 19 else 0) - (0.6 if minute // 1440 % 7 >= 5 else 0)
        for number in range(topics):
            topic, group = f"topic-{number:02}", f"group-{number % 25:02}"
            sent = int(chance.gauss(1000, 120) * rhythm / (1 + number))
            _topic_minute(writer, at(minute), topic, group, sent, hour, chance)
        if minute % 60 == 0:
            writer.times(
                at(minute),
                "ddmq_delay_lateness_us",
                [chance.lognormvariate(7, 1) for _ in range(50)],
                "later",
            )
            writer.counter(at(minute), "ddmq_delay_fired_total", 50, "later")
            writer.times(at(minute), "ddmq_log_sync_us", [chance.lognormvariate(6.5, 0.4) for _ in range(50)])
    for day in range(days):
        start, end = at(day * 1440), at(day * 1440 + 1439)
        for name in (
            "producer@edge-1:9813",
            "producer@edge-2:9813",
            "consumer@edge-1:9814",
            "delay@edge-1:9815",
        ):
            crashed = name.startswith("consumer") and day == 3
            writer.process(
                start,
                end,
                process=name,
                instance=f"{name}{day // 4}",
                ended="vanished" if crashed else "running",
            )
        for number in range(6):
            writer.slo(
                start.date(),
                "send latency ≤ 50 ms",
                9_990 - (300 if number == 2 and day == 4 else 0),
                10_000,
                0.99,
                f"topic-{number:02}",
            )
        writer.slo(start.date(), "lateness ≤ 1 s", 999, 1_000, 0.99)
    return writer.write()


def _topic_minute(
    writer: Writer, when: datetime, topic: str, group: str, sent: int, hour: int, chance: random.Random
) -> None:
    writer.counter(when, "ddmq_sends_total", sent, topic, detail="code=0")
    if chance.random() < 0.02:
        writer.counter(when, "ddmq_sends_total", 3, topic, detail="code=11")
    writer.counter(when, "ddmq_delivered_total", sent + 2, topic, group)
    writer.counter(when, "ddmq_acked_total", sent, topic, group)
    failed = chance.randrange(4)
    if failed:
        writer.counter(when, "ddmq_failed_total", failed, topic, group)
        writer.counter(when, "ddmq_redelivered_total", failed, topic, group)
    if chance.random() < 0.01:
        writer.counter(when, "ddmq_dead_letters_total", 1, topic, group, "reason=attempts")
    slow = 2.0 if hour == 20 else 0.0
    writer.times(
        when, "ddmq_send_latency_us", [chance.lognormvariate(7.6 + slow, 0.7) for _ in range(20)], topic
    )
    writer.times(
        when, "ddmq_queue_wait_us", [chance.lognormvariate(8 + slow, 1) for _ in range(10)], topic, group
    )
    writer.times(when, "ddmq_process_us", [chance.lognormvariate(9, 0.5) for _ in range(10)], topic, group)
    stuck = group == "group-03" and topic == "topic-03"
    lag = (
        (when - MONDAY).total_seconds() / 60
        if stuck
        else max(0.0, chance.gauss(20, 30)) * (4 if hour == 20 else 1)
    )
    drain = {"time_to_drain_s": None, "finished_per_s": 2.0, "arrived_per_s": 9.0} if stuck else {}
    blocked = {"blocked_keys": 4.0, "blocked_key_age_ms": 3_900_000.0} if group == "group-07" else {}
    writer.lag(when, group, topic, float(int(lag)), **drain, **blocked)
