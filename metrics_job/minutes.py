"""Minutes: what one process added to one series in one minute, and the intervals it told of.

Every table but `rejects` is made from these rows. A line that was there twice is in them once; a key may come
more than once, because whatever is made from them adds up anyway. Kinds of rows, and the columns they use
beside `kind`, `minute` (since the epoch, of the interval's end) and the names of the series:

    counter     total
    gauge       total, lines, last, max, min, and to_ms and seq of the last value; of those in FOLLOWED
                every value is a row, with its instance
    histogram   total (the sum of what was observed), buckets, counts
    interval    process, instance, seq, from_ms, to_ms, lines (different ones), copies (lines, all), is_last

An interval whose clock stepped back (`to` < `from`) is of 0 s.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from metrics_job.read import KIND, REASON, key_columns
from metrics_job.tables import DOUBLE, INT, LAST, LONG, PROCESS_METRIC, STATE_LABEL, STRING

MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60
INTERVAL = "interval"
NAMES = ("metric", "process", "topic", "group", "detail")
FOLLOWED = ("ddmq_lag", "ddmq_lag_age_ms", "ddmq_blocked_keys", "ddmq_blocked_key_age_ms")
Keep = Callable[[DataFrame], DataFrame]  # persists what is used more than once
LINE_KEY = ("instance", "seq", "metric", "labels")
_COLUMNS: dict[str, T.DataType] = (
    {"kind": STRING, "minute": LONG}
    | dict.fromkeys((*NAMES, "instance"), STRING)
    | dict.fromkeys(("seq", "from_ms", "to_ms", "lines", "copies"), LONG)
    | dict.fromkeys(("total", "last", "max", "min"), DOUBLE)
    | {"buckets": T.ArrayType(INT), "counts": T.ArrayType(LONG), "is_last": T.BooleanType()}
)


def schema() -> T.StructType:
    """The columns of minutes."""
    return T.StructType([T.StructField(name, kind) for name, kind in _COLUMNS.items()])


def minutes(lines: DataFrame, keep: Keep) -> DataFrame:
    """Minutes of the good ones of these lines (metrics_job.read), whatever files they come from."""
    once = keep(_once(lines))
    return _series(once).unionByName(_intervals(once))


def in_range(lines: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Lines whose interval ends in [from_ms, to_ms), and all that cannot be read."""
    end, kept = F.col("to"), F.lit(True)
    if from_ms is not None:
        kept = kept & (end >= from_ms)
    if to_ms is not None:
        kept = kept & (end < to_ms)
    return lines.filter(F.col(REASON).isNotNull() | kept)


def _once(lines: DataFrame) -> DataFrame:
    """Good lines, each once, with the number of its `copies`."""
    good = lines.filter(F.col(REASON).isNull())
    columns = [name for name in good.columns if name not in LINE_KEY]
    one = F.min(F.struct(*columns)).alias("line")
    grouped = good.groupBy(*LINE_KEY).agg(one, F.count(F.lit(1)).alias("copies"))
    return grouped.select(*LINE_KEY, "line.*", "copies")


def _series(once: DataFrame) -> DataFrame:
    """A row for each line about a metric."""
    topic, group, detail = key_columns()
    number = F.when(F.col(KIND) == "histogram", F.col("sum")).otherwise(F.col("value"))
    values = {"seq": F.col("seq"), "to_ms": F.col("to"), "lines": F.lit(1).cast("long")}
    values |= {"minute": _minute(), "topic": topic, "group": group, "detail": detail}
    values |= dict.fromkeys(("total", "last", "max", "min"), number)
    same = ("kind", "metric", "process", "instance", "buckets", "counts")
    values |= {name: F.col(name) for name in same}
    return once.filter(F.col("metric") != PROCESS_METRIC).select(*_whole(values))


def _intervals(once: DataFrame) -> DataFrame:
    said = (F.col("metric") == PROCESS_METRIC) & (F.col("labels")[STATE_LABEL] == LAST)
    sums = {"lines": F.count(F.lit(1)), "copies": F.sum("copies")}
    sums["is_last"] = F.bool_or(F.coalesce(said, F.lit(False)))
    found = once.groupBy("process", "instance", "seq", "from", "to").agg(
        *(value.alias(name) for name, value in sums.items())
    )
    values = {name: F.col(name) for name in ("process", "instance", "seq", *sums)}
    values |= {"kind": F.lit(INTERVAL), "minute": _minute(), "from_ms": F.col("from"), "to_ms": F.col("to")}
    return found.select(*_whole(values))


def _minute() -> Column:
    return F.floor(F.col("to") / MINUTE_MS)


def _whole(values: dict[str, Column]) -> list[Column]:
    """All columns of the schema; null where nothing is given."""
    return [values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS.items()]
