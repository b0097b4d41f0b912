"""Sample files into rows, good and bad, and into minutes: what one process added to one series in one
minute.

A line is refused entirely: `unknown version` (its `v` is another one than tables.VERSION), `corrupt` (not
a JSON object, or without the fields that say whose it is), `unknown metric` (not in the catalogue), `unknown
label` (one that no metric of the catalogue has: of a newer server), `bad value` (no finite number, a counter
that goes down, buckets that are not the buckets of ddmq_common.metrics.cells, a text instead of a number).
Refused lines are counted by file; none is dropped in silence.

Every table but `rejects` is computed from minutes. They count a repeated line once. A key may come more than
once, because every table sums them. Kinds of rows, and the columns they use beside `kind`, `minute` (since
the epoch, of the interval's end) and the names of the series:

    counter     total
    gauge       total, lines, last, max, min, and to_ms and seq of the last value; of those in FOLLOWED
                `told` is every value with its own two, in order; null: the last one is the only one
    histogram   total (the sum of what was observed), buckets, counts
    interval    process, instance, seq, from_ms, to_ms, lines (different ones), copies (lines, all), is_last

An interval whose clock stepped back (`to` < `from`) is of 0 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS
from metrics_job.tables import (
    CORRUPT,
    DOUBLE,
    INT,
    LAST,
    LONG,
    PROCESS_METRIC,
    SERIES_KEY,
    STATE_LABEL,
    STRING,
    VERSION,
    label_names,
    line_schema,
)

FILE = "file"
TEXT = "text"  # of an undecoded or refused line
REASON = "reason"
KIND = "kind"  # counter, gauge, histogram, or process for the first line of a file
IDENTITY = ("process", "instance", "seq", "from", "to", "metric", "labels")
UNKNOWN_VERSION, CORRUPT_LINE, UNKNOWN_METRIC, BAD_VALUE, UNKNOWN_LABEL = (
    "unknown version",
    "corrupt",
    "unknown metric",
    "bad value",
    "unknown label",
)
READER_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    "pathGlobFilter": "*.jsonl",
    "encoding": "UTF-8",
}


def read_schema() -> T.StructType:
    """Return tables.line_schema for Spark's JSON reader, with all labels of a line, also unknown ones."""
    labels = T.MapType(T.StringType(), T.StringType())
    fields = [(one.name, labels if one.name == "labels" else one.dataType) for one in line_schema()]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def classify_lines(lines: DataFrame) -> DataFrame:
    """Convert lines of read_schema to tables.line_schema, and add the columns `kind` and `reason` (why a line
    is refused, else null)."""
    judged = lines.withColumn(KIND, _kind_column()).withColumn(REASON, _reason_column())
    labels = F.struct(*(F.col("labels")[name].alias(name) for name in label_names()))
    return judged.withColumn("labels", F.when(F.col("labels").isNotNull(), labels))


def key_columns() -> list[Column]:
    """Return the columns topic, group and detail of a line; "" if it has none."""
    labels = F.col("labels")
    others = [name for name in label_names() if name not in ("topic", "group")]
    pairs = [F.concat(F.lit(f"{name}="), labels[name]) for name in others]
    return [
        F.coalesce(labels["topic"], F.lit("")).alias("topic"),
        F.coalesce(labels["group"], F.lit("")).alias("group"),
        F.concat_ws(",", *pairs).alias("detail"),
    ]


def metrics_of(kind: str) -> list[str]:
    """Return the names of the metrics of this kind in the catalogue."""
    return [metric.name for metric in CATALOGUE.values() if metric.kind == kind]


def _kind_column() -> Column:
    metric = F.col("metric")
    return (
        F.when(metric == PROCESS_METRIC, "process")
        .when(metric.isin(metrics_of("counter")), "counter")
        .when(metric.isin(metrics_of("gauge")), "gauge")
        .when(metric.isin(metrics_of("histogram")), "histogram")
    )


def _reason_column() -> Column:
    """Return a column with the first reason why a line is refused, or null."""
    broken, text = F.col(CORRUPT).isNotNull(), F.col(CORRUPT)
    unreadable = broken & F.try_parse_json(text).isNull()
    return (
        F.when(F.col("v").isNotNull() & (F.col("v") != VERSION), UNKNOWN_VERSION)
        .when(unreadable | _any_of(F.col(name).isNull() for name in ("v", *IDENTITY)), CORRUPT_LINE)
        .when(F.col(KIND).isNull(), UNKNOWN_METRIC)
        .when(broken | F.when(F.col(KIND) == "histogram", _bad_buckets()).otherwise(_bad_number()), BAD_VALUE)
        .when(_has_unknown_label(), UNKNOWN_LABEL)
    )


def _has_unknown_label() -> Column:
    catalogue_labels = F.array(*(F.lit(name) for name in label_names()))
    return F.size(F.array_except(F.map_keys("labels"), catalogue_labels)) > 0


def _bad_number() -> Column:
    value = F.col("value")
    falls = F.col(KIND).isin("counter", "process") & (value < 0)
    return value.isNull() | F.isnan(value) | falls | (F.abs(value) == float("inf"))


def _bad_buckets() -> Column:
    buckets, counts, total = F.col("buckets"), F.col("counts"), F.col("sum")
    sizes = total.isNull() | buckets.isNull() | counts.isNull() | (F.size(buckets) != F.size(counts))
    out_of_range = (F.array_min(buckets) < 0) | (F.array_max(buckets) >= BUCKETS) | (F.array_min(counts) <= 0)
    return sizes | F.isnan(total) | (F.size(buckets) == 0) | out_of_range


def _any_of(conditions: Iterable[Column]) -> Column:
    return reduce(lambda left, right: left | right, conditions)


MINUTE_MS = 60_000
DAY_MINUTES = 24 * 60
INTERVAL = "interval"
FOLLOWED = ("ddmq_lag", "ddmq_lag_age_ms", "ddmq_blocked_keys", "ddmq_blocked_key_age_ms")
VALUE_FIELDS: dict[str, T.DataType] = {"to_ms": LONG, "seq": LONG, "value": DOUBLE}
Keep = Callable[[DataFrame], DataFrame]  # keeps what is used more than once
LINE_KEY = ("instance", "seq", "metric", "labels")
_COLUMNS: dict[str, T.DataType] = (
    {"kind": STRING, "minute": LONG}
    | dict.fromkeys((*SERIES_KEY, "instance"), STRING)
    | dict.fromkeys(("seq", "from_ms", "to_ms", "lines", "copies"), LONG)
    | dict.fromkeys(("total", "last", "max", "min"), DOUBLE)
    | {"buckets": T.ArrayType(INT), "counts": T.ArrayType(LONG), "is_last": T.BooleanType()}
    | {"told": T.ArrayType(T.StructType([T.StructField(name, kind) for name, kind in VALUE_FIELDS.items()]))}
)


@contextmanager
def caching_rows() -> Iterator[Keep]:
    """Context manager that yields a function to cache rows, and unpersists all of them at the end."""
    cached: list[DataFrame] = []

    def cache(rows: DataFrame) -> DataFrame:
        cached.append(rows.cache())
        return rows

    try:
        yield cache
    finally:
        for rows in cached:
            rows.unpersist()


def minutes_schema() -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in _COLUMNS.items()])


def to_minutes(lines: DataFrame, keep: Keep) -> DataFrame:
    """Aggregate the valid lines into rows of minutes."""
    once = keep(_merge_copies(lines))
    return _series_rows(once).unionByName(_interval_rows(once))


def in_range(lines: DataFrame, from_ms: int | None, to_ms: int | None) -> DataFrame:
    """Return the lines whose interval ends in [from_ms, to_ms), and all refused lines."""
    end, in_days = F.col("to"), F.lit(True)
    if from_ms is not None:
        in_days = in_days & (end >= from_ms)
    if to_ms is not None:
        in_days = in_days & (end < to_ms)
    return lines.filter(F.col(REASON).isNotNull() | in_days)


def _merge_copies(lines: DataFrame) -> DataFrame:
    """Return each valid line once, with the number of its `copies`."""
    good = lines.filter(F.col(REASON).isNull())
    columns = [name for name in good.columns if name not in LINE_KEY]
    one = F.min(F.struct(*columns)).alias("line")
    grouped = good.groupBy(*LINE_KEY).agg(one, F.count(F.lit(1)).alias("copies"))
    return grouped.select(*LINE_KEY, "line.*", "copies")


def _series_rows(once: DataFrame) -> DataFrame:
    """Return one row for each line that has a metric."""
    topic, group, detail = key_columns()
    number = F.when(F.col(KIND) == "histogram", F.col("sum")).otherwise(F.col("value"))
    values = {"seq": F.col("seq"), "to_ms": F.col("to"), "lines": F.lit(1).cast("long")}
    values |= {"minute": _minute_column(), "topic": topic, "group": group, "detail": detail}
    values |= dict.fromkeys(("total", "last", "max", "min"), number)
    same = ("kind", "metric", "process", "instance", "buckets", "counts")
    values |= {name: F.col(name) for name in same}
    return once.filter(F.col("metric") != PROCESS_METRIC).select(*_fill_columns(values))


def _interval_rows(once: DataFrame) -> DataFrame:
    stops = (F.col("metric") == PROCESS_METRIC) & (F.col("labels")[STATE_LABEL] == LAST)
    sums = {"lines": F.count(F.lit(1)), "copies": F.sum("copies")}
    sums["is_last"] = F.bool_or(F.coalesce(stops, F.lit(False)))
    intervals = once.groupBy("process", "instance", "seq", "from", "to").agg(
        *(value.alias(name) for name, value in sums.items())
    )
    values = {name: F.col(name) for name in ("process", "instance", "seq", *sums)}
    values |= {
        "kind": F.lit(INTERVAL),
        "minute": _minute_column(),
        "from_ms": F.col("from"),
        "to_ms": F.col("to"),
    }
    return intervals.select(*_fill_columns(values))


def _minute_column() -> Column:
    return F.floor(F.col("to") / MINUTE_MS)


def _fill_columns(values: dict[str, Column]) -> list[Column]:
    """Return a column for each name in the schema; those without a value are null."""
    return [values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _COLUMNS.items()]
