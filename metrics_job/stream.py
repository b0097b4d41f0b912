"""Structured Streaming over arriving sample files: the same tables as the batch job, brought up to date.

Spark's file source finds the new files and records them in the checkpoint; a batch that did not finish is
repeated with the same files. Every batch goes through three steps, with the functions of the batch job:

1. It is read, classified and turned into minutes.
2. Its rows are stored by arrived.py under its number, replacing those of an interrupted attempt.
3. The tables of the hours that it touches are computed from all kept rows (metrics_job.stream_tables).

Each step gives the same result when it is repeated, so the tables count every line once, wherever the job
was killed.

An interval is identified by its process's instance and its sequence number. A stored interval is complete: if
a later batch repeats it, only the repetition is counted.

Late lines: a line whose `to` is more than `late_hours` behind the latest one of the batches before is not
counted; it is a reject with the reason `late`, on the day it came. A clock that runs ahead cannot make other
lines late: a `to` in the future does not advance the watermark.

Merged hours (`hour-*`) repeat lines that were already read. Only their intervals that are not stored yet are
read; a job needs these if it was stopped while its files were merged.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import FrameType

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql.streaming.query import StreamingQuery

from ddmq_common.errors import ConfigError
from ddmq_common.metrics.samples import HOUR_MS
from metrics_job.arrived import NEVER, Arrived, utc_date
from metrics_job.folders import Folders
from metrics_job.lock import locked_folder
from metrics_job.minutes import (
    FILE,
    INTERVAL,
    READER_OPTIONS,
    REASON,
    caching_rows,
    classify_lines,
    read_schema,
    to_minutes,
)
from metrics_job.rollups import processes
from metrics_job.session import session
from metrics_job.stream_tables import OF_DAY, RollUp, find_touched, roll_up, rows_to_keep, stored_schema
from metrics_job.tables import HOUR, PARTITION

LATE = "late"
INTERVAL_KEY = ("instance", "seq")
_DAY_FOLDER = r"/date(?:=|%3D)(\d{4}-\d\d-\d\d)/"
KEEP_DAYS = 2  # before the oldest line that still counts: merged hours are compared with the kept rows
POLL_S = 1  # between two checks of the stop signal
STOP_S = 300.0  # for the batch that runs when the signal comes; after that it is left to the next start


@dataclass(frozen=True)
class Streaming:
    """The options of the streaming job. Folders are paths or URLs; `every_s` is the time between two
    polls."""

    samples: str
    out: str
    checkpoint: str = ""  # "": <out>/stream/checkpoint
    late_hours: float = 6.0
    every_s: float = 60.0
    once: bool = False  # take what is there, then end
    files_max: int = 100_000  # of one batch

    @property
    def stream_folder(self) -> str:
        return f"{self.out.rstrip('/')}/stream"


class BatchTaker:
    """Adds batches of arriving lines to the tables. `take_batch` may be repeated with the same number and
    files."""

    def __init__(
        self, spark: SparkSession, what: Streaming, roll_up: RollUp, now_ms: Callable[[], int]
    ) -> None:
        self._what, self._roll_up, self._now_ms = what, roll_up, now_ms
        self._arrived = Arrived(spark, f"{what.stream_folder}/minutes", stored_schema())

    def take_batch(self, lines: DataFrame, batch: int) -> None:
        """Add one batch, as foreachBatch passes it: lines of minutes.read_schema with their file."""
        newest = self._arrived.newest_ms(batch)
        if newest != NEVER:
            self._arrived.tidy_folders(batch, self._keep_from(newest))
        with caching_rows() as keep:
            judged = keep(lines.transform(classify_lines))
            dated = self._add_dates(self._without_repeats(judged, batch), newest)
            rows_to_add = self._without_recorded(to_minutes(dated, keep), batch)
            limit_ms = self._now_ms() + HOUR_MS
            rows = self._arrived.write(
                batch, rows_to_keep(rows_to_add, processes.refused_lines(dated)), limit_ms
            )
        which = find_touched(rows)
        if which.days:
            self._roll_up(self._arrived.read(batch), which)

    def _recorded_intervals(self, batch: int) -> DataFrame:
        """Return `instance` and `seq` of all intervals in the earlier batches."""
        of_days = self._arrived.read(batch - 1).filter(F.col(HOUR) == OF_DAY)
        return of_days.filter(F.col("kind") == INTERVAL).select(*INTERVAL_KEY).distinct()

    def _without_recorded(self, minutes: DataFrame, batch: int) -> DataFrame:
        """Drop the intervals that earlier batches contain; of the dropped ones, only the number of copies
        remains."""
        recorded = self._recorded_intervals(batch)
        new = minutes.join(recorded, list(INTERVAL_KEY), "left_anti")
        repeated = minutes.filter(F.col("kind") == INTERVAL).join(recorded, list(INTERVAL_KEY), "left_semi")
        return new.unionByName(repeated.withColumn("lines", F.lit(0).cast("long")))

    def _watermark_ms(self, newest_ms: int) -> int:
        """Return the interval end before which a line is late; NEVER before the first line."""
        return NEVER if newest_ms == NEVER else newest_ms - int(self._what.late_hours * HOUR_MS)

    def _keep_from(self, newest_ms: int) -> date:
        return utc_date(self._watermark_ms(newest_ms)) - timedelta(KEEP_DAYS)

    def _without_repeats(self, judged: DataFrame, batch: int) -> DataFrame:
        """Drop from the files of merged hours the intervals that also arrive in other files. Refused lines
        remain only for merged files that still have an interval."""
        merged = F.element_at(F.split(FILE, "/"), -1).startswith("hour-")
        hours = judged.filter(merged)
        if hours.isEmpty():
            return judged
        unmerged, interval = judged.filter(~merged), list(INTERVAL_KEY)
        arriving = unmerged.filter(F.col(REASON).isNull()).select(*interval)
        recorded = self._recorded_intervals(batch).union(arriving).distinct()
        new = hours.filter(F.col(REASON).isNull()).join(recorded, interval, "left_anti")
        files = new.select(FILE).distinct()
        bad = hours.filter(F.col(REASON).isNotNull()).join(files, [FILE], "left_semi")
        return unmerged.unionByName(new).unionByName(bad)

    def _add_dates(self, judged: DataFrame, newest_ms: int) -> DataFrame:
        """Add the column of the day that each line belongs to, and refuse late lines."""
        if newest_ms == NEVER:
            return judged.withColumn(PARTITION, _day_of_line())
        is_late = F.col(REASON).isNull() & (F.col("to") < self._watermark_ms(newest_ms))
        reason = F.when(is_late, LATE).otherwise(F.col(REASON))
        today, oldest = F.lit(utc_date(newest_ms)), F.lit(utc_date(self._watermark_ms(newest_ms)))
        day = F.when(is_late, today).otherwise(F.greatest(_day_of_line(), oldest))
        return judged.withColumn(PARTITION, day).withColumn(REASON, reason)


def _day_of_line() -> Column:
    """Return a column with the day of `to`; for a refused line, that of its folder."""
    line_day = F.when(F.col(REASON).isNull(), F.to_date(F.timestamp_millis("to")))
    folder = F.try_to_date(F.regexp_extract(FILE, _DAY_FOLDER, 1))
    return F.coalesce(line_day, folder, F.lit(date(1970, 1, 1)))


def open_lines(spark: SparkSession, what: Streaming) -> DataFrame:
    """Open the stream of lines in arriving files, with their file.

    Raises ConfigError if the folder does not exist.
    """
    options = READER_OPTIONS | {
        "recursiveFileLookup": "true",
        "ignoreMissingFiles": "true",  # merged between being listed and being read: the hour's file has it
        "maxFilesPerTrigger": str(what.files_max),
    }
    try:
        lines = spark.readStream.schema(read_schema()).options(**options).json(what.samples)
    except AnalysisException as error:
        raise ConfigError(
            f"cannot watch {what.samples!r} for samples: {error}; give the folder the servers write to "
            "(samples.dir of their configuration)"
        ) from error
    return lines.withColumn(FILE, F.col("_metadata.file_path"))


def start(spark: SparkSession, what: Streaming, roll_up: RollUp) -> StreamingQuery:
    taking = BatchTaker(spark, what, roll_up, lambda: int(time.time() * 1000))
    writer = open_lines(spark, what).writeStream.queryName("ddmq-metrics").foreachBatch(taking.take_batch)
    writer = writer.option("checkpointLocation", what.checkpoint or f"{what.stream_folder}/checkpoint")
    if what.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{what.every_s} seconds").start()


def run(spark: SparkSession, what: Streaming, roll_up: RollUp, stopping: threading.Event) -> None:
    """Run the stream until `stopping` is set or, with `once`, until all files are processed. A running batch
    is finished.

    Raises StreamingQueryException if a batch failed; the next start repeats it.
    """
    query = start(spark, what, roll_up)
    while not stopping.is_set():
        if query.awaitTermination(POLL_S):
            return
    give_up = time.monotonic() + STOP_S
    while query.status["isTriggerActive"] and time.monotonic() < give_up:
        if query.awaitTermination(POLL_S):
            return
    query.stop()


def stop_on_signals(stopping: threading.Event) -> None:
    """Let SIGTERM and SIGINT set the event (main thread only).

    A new Spark session replaces the handler of SIGINT, so call this again after creating one.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        print("stopping after this batch", file=sys.stderr, flush=True)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def run_stream(what: Streaming, config: Path | None) -> int:
    """Run the stream until SIGTERM, SIGINT or, with `once`, the last file.

    Return the exit code: 1 if a batch failed.
    """
    stopping = threading.Event()
    stop_on_signals(stopping)
    spark = session("ddmq-metrics-stream")
    stop_on_signals(stopping)
    try:
        with locked_folder(Folders(spark).find_local_path(what.out), "metrics_job stream"):
            run(spark, what, roll_up(spark, what.out, config), stopping)
    except StreamingQueryException as error:
        print(f"a batch failed and is repeated at the next start: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()
    return 0
