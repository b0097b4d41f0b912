"""Sample files into rows: good ones, and bad ones with the reason why they are bad.

A line is refused as a whole: `unknown version` (its `v` is another one than tables.VERSION), `corrupt` (not a
JSON object, or without the fields that say whose it is), `unknown metric` (not in the catalogue),
`unknown label` (one that no metric of the catalogue has: of a newer server), `bad value`
(no finite number, a counter that goes down, buckets that are not the buckets of ddmq_common.metrics.cells,
a text where a number is wanted). What is refused is counted by file; nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812

from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import BUCKETS
from metrics_job.tables import CORRUPT, PROCESS_METRIC, VERSION, label_names, line_schema

FILE = "file"
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
    """tables.line_schema as Spark's reader is given it: with every label that a line has, known or not."""
    labels = T.MapType(T.StringType(), T.StringType())
    fields = [(one.name, labels if one.name == "labels" else one.dataType) for one in line_schema()]
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


def classified(lines: DataFrame) -> DataFrame:
    """Lines (read_schema) as tables.line_schema has them, with `kind` and `reason`; for files and streams."""
    judged = lines.withColumn(KIND, _kind()).withColumn(REASON, _reason())
    named = F.struct(*(F.col("labels")[name].alias(name) for name in label_names()))
    return judged.withColumn("labels", F.when(F.col("labels").isNotNull(), named))


def key_columns() -> list[Column]:
    """topic, group and detail of a line: "" where it has none."""
    labels = F.col("labels")
    others = [name for name in label_names() if name not in ("topic", "group")]
    parts = [F.concat(F.lit(f"{name}="), labels[name]) for name in others]
    return [
        F.coalesce(labels["topic"], F.lit("")).alias("topic"),
        F.coalesce(labels["group"], F.lit("")).alias("group"),
        F.concat_ws(",", *parts).alias("detail"),
    ]


def metrics_of(kind: str) -> list[str]:
    """The names of the catalogue's metrics of that kind."""
    return [metric.name for metric in CATALOGUE.values() if metric.kind == kind]


def _kind() -> Column:
    metric = F.col("metric")
    return (
        F.when(metric == PROCESS_METRIC, "process")
        .when(metric.isin(metrics_of("counter")), "counter")
        .when(metric.isin(metrics_of("gauge")), "gauge")
        .when(metric.isin(metrics_of("histogram")), "histogram")
    )


def _reason() -> Column:
    """The first thing that is wrong with a line, or null."""
    broken, text = F.col(CORRUPT).isNotNull(), F.col(CORRUPT)
    unreadable = broken & F.try_parse_json(text).isNull()
    return (
        F.when(F.col("v").isNotNull() & (F.col("v") != VERSION), UNKNOWN_VERSION)
        .when(unreadable | _any(F.col(name).isNull() for name in ("v", *IDENTITY)), CORRUPT_LINE)
        .when(F.col(KIND).isNull(), UNKNOWN_METRIC)
        .when(broken | F.when(F.col(KIND) == "histogram", _bad_buckets()).otherwise(_bad_number()), BAD_VALUE)
        .when(_has_unknown_label(), UNKNOWN_LABEL)
    )


def _has_unknown_label() -> Column:
    known = F.array(*(F.lit(name) for name in label_names()))
    return F.size(F.array_except(F.map_keys("labels"), known)) > 0


def _bad_number() -> Column:
    value = F.col("value")
    falls = F.col(KIND).isin("counter", "process") & (value < 0)
    return value.isNull() | F.isnan(value) | falls | (F.abs(value) == float("inf"))


def _bad_buckets() -> Column:
    buckets, counts, total = F.col("buckets"), F.col("counts"), F.col("sum")
    sizes = total.isNull() | buckets.isNull() | counts.isNull() | (F.size(buckets) != F.size(counts))
    wrong = (F.array_min(buckets) < 0) | (F.array_max(buckets) >= BUCKETS) | (F.array_min(counts) <= 0)
    return sizes | F.isnan(total) | (F.size(buckets) == 0) | wrong


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(lambda left, right: left | right, conditions)
