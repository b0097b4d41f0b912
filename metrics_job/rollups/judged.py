"""Judge days against the objectives (conf/slo.yaml), and find hours that deviate from former weeks.

Each hour is compared with the same hour of the same weekday in up to WEEKS former weeks, by topic and group:
the totals of the counters of flow and of failures (FLOWS), and the 99th percentile of every histogram. The
usual value is the median. A deviation is given in robust standard deviations (1.4826 times the median
distance from the median), of at least a tenth of the usual value and at least 1, so that a flat history does
not make every change an anomaly. A flow of former weeks that is missing now counts as 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ddmq_common.config import load, rules
from ddmq_common.errors import ConfigError
from ddmq_common.metrics.catalogue import CATALOGUE
from ddmq_common.metrics.cells import OVERFLOW, upper_edge

SENDS, STORED, NO_TOPIC = "ddmq_sends_total", "code=0", "-"
STOPPING = "code=20"  # a proxy that stops as planned: the client sends to another one, and that is judged
LAG_AGE = "ddmq_lag_age_ms"
MISSES_MIN, LATE_MINUTES_MIN = 10, 2  # fewer are too few to judge: nobody would act on them
ANY = "*"
PER_MS = {"us": 1000.0, "ms": 1.0}  # units of a histogram in which a limit in ms can be said


@dataclass(frozen=True)
class Objective:
    """A service-level objective for one topic and group, or for each of them ("*").

    With a limit, `percent` of the observations of `metric` must be at most `at_most_ms` (of ddmq_lag_age_ms
    each minute is one observation). Without, `percent` of the answered sends must be stored (code 0).
    """

    percent: float = field(metadata=rules(low=0, high=100))
    metric: str = SENDS
    at_most_ms: float | None = field(default=None, metadata=rules(low=0))
    topic: str = ANY
    group: str = ANY

    def __post_init__(self) -> None:
        metric = CATALOGUE.get(self.metric)
        if self.at_most_ms is None:
            if self.metric != SENDS:
                raise ConfigError(f"at_most_ms is missing for {self.metric}; only {SENDS} has no limit")
            return
        if self.metric == LAG_AGE:
            return
        if metric is None or metric.kind != "histogram" or metric.unit not in PER_MS:
            timed = [one.name for one in CATALOGUE.values() if one.kind == "histogram" and one.unit in PER_MS]
            raise ConfigError(f"metric is {self.metric!r}; at_most_ms wants one of: {', '.join(timed)}")

    @property
    def last_good_bucket(self) -> int:
        """Return the highest bucket that lies completely within the limit; -1 if none does."""
        limit = (self.at_most_ms or 0.0) * PER_MS[CATALOGUE[self.metric].unit]
        return max((index for index in range(OVERFLOW) if upper_edge(index) <= limit), default=-1)


Goals = dict[str, Objective]  # by name


def default_objectives() -> Goals:
    """Return the objectives that apply without a configuration file; conf/slo.yaml has the same."""
    return {
        "sends stored": Objective(99.9),
        "send within 50 ms": Objective(99.0, "ddmq_send_latency_us", 50.0),
        "delay at most 1 s late": Objective(99.0, "ddmq_delay_lateness_us", 1000.0),
        "waiting at most 1 s": Objective(95.0, "ddmq_queue_wait_us", 1000.0),
        "oldest waits at most 1 m": Objective(95.0, LAG_AGE, 60_000.0),
    }


@dataclass(frozen=True)
class Objectives:
    """The contents of slo.yaml: name → objective."""

    objectives: dict[str, Objective] = field(default_factory=default_objectives)


def load_objectives(folder: Path | None) -> Goals:
    """Load the objectives from `slo.yaml` in a configuration folder, or the defaults. Raises ConfigError."""
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; --config wants the one with slo.yaml")
    path = None if folder is None else folder / "slo.yaml"
    return default_objectives() if path is None or not path.exists() else load(path, Objectives).objectives


class Observed(NamedTuple):
    """The tables of the days to judge. `sampled`: the `start` of each minute that has any sample."""

    counters_hour: DataFrame
    latencies_hour: DataFrame
    lag_minute: DataFrame
    sampled: DataFrame


def slo_day(observed: Observed, objectives: Goals) -> DataFrame | None:
    """Return one row per day, objective, topic and group that was observed; None without objectives."""
    judged_days = [
        _judge_days(_count_observations(observed, one), name, one) for name, one in objectives.items()
    ]
    return reduce(DataFrame.unionByName, judged_days) if judged_days else None


def _count_observations(observed: Observed, one: Objective) -> DataFrame:
    if one.at_most_ms is None:
        return _count_stored_sends(observed.counters_hour, one)
    if one.metric == LAG_AGE:
        return _count_recent_minutes(observed.lag_minute, observed.sampled, one)
    return _count_quick_ones(observed.latencies_hour, one)


def _count_stored_sends(counters: DataFrame, one: Objective) -> DataFrame:
    """Count stored sends by topic and in total. Only the total includes sends without a topic.

    Answers of a stopping proxy are not counted.
    """
    good = F.when(F.col("detail") == STORED, F.col("total")).otherwise(0.0)
    matches = counters.filter(_is_meant_by(one) & (F.col("detail") != STOPPING))
    if one.topic != ANY:
        return _by_day(matches, good, F.col("total"))
    by_topic = _by_day(matches.filter(F.col("topic") != NO_TOPIC), good, F.col("total"))
    together = matches.withColumn("topic", F.lit("")).withColumn("group", F.lit(""))
    return by_topic.unionByName(_by_day(together, good, F.col("total")))


def _count_recent_minutes(lags: DataFrame, sampled: DataFrame, one: Objective) -> DataFrame:
    """Count the minutes in which the oldest waiting message was young enough, and all sampled minutes since
    the first lag of the day."""
    matches = lags.withColumn("metric", F.lit(LAG_AGE)).filter(_is_meant_by(one))
    late = F.count_if(F.col("lag_age_ms") > F.lit(one.at_most_ms))
    late_minutes = matches.groupBy(F.to_date("start").alias("day"), "topic", "group").agg(
        late.alias("late"), F.min("start").alias("first")
    )
    minutes = sampled.select(F.to_date("start").alias("day"), F.col("start").alias("minute"))
    since = late_minutes.join(F.broadcast(minutes), on="day").filter(F.col("minute") >= F.col("first"))
    counted = since.groupBy("day", "topic", "group").agg(
        F.greatest(F.count(F.lit(1)), F.max("late")).alias("total"), F.max("late").alias("late")
    )
    return counted.select("day", "topic", "group", (F.col("total") - F.col("late")).alias("good"), "total")


def _count_quick_ones(latencies: DataFrame, one: Objective) -> DataFrame:
    within = F.zip_with(
        "buckets", "counts", lambda bucket, n: F.when(bucket <= one.last_good_bucket, n).otherwise(0)
    )
    good = F.aggregate(within, F.lit(0).cast("long"), lambda total, n: total + n)
    return _by_day(latencies.filter(_is_meant_by(one) & (F.col("process") == "")), good, F.col("count"))


def _is_meant_by(one: Objective) -> Column:
    condition = F.col("metric") == one.metric
    for name, value in (("topic", one.topic), ("group", one.group)):
        condition = condition & (F.lit(True) if value == ANY else F.col(name) == value)
    return condition


def _by_day(rows: DataFrame, good: Column, total: Column) -> DataFrame:
    return rows.groupBy(F.to_date("start").alias("day"), "topic", "group").agg(
        F.sum(good).cast("long").alias("good"), F.sum(total).cast("long").alias("total")
    )


def _judge_days(days: DataFrame, name: str, one: Objective) -> DataFrame:
    """Add target, compliance and `met`; `met` is null if the target is missed by too few observations to
    judge.
    """
    target = round(one.percent / 100, 9)
    compliance = F.col("good") / F.col("total")
    few = LATE_MINUTES_MIN if one.metric == LAG_AGE else MISSES_MIN
    missed = F.when(F.col("total") - F.col("good") >= few, False)
    met = F.when(compliance >= target, True).otherwise(missed)
    more = {"slo": F.lit(name), "target": F.lit(target), "compliance": compliance, "met": met}
    return days.filter(F.col("total") > 0).withColumns(more)


WEEKS = 4
WEEKS_MIN = 2  # less history says nothing
STRANGE = 3.5  # robust standard deviations
SPREAD_MIN_SHARE, SPREAD_MIN = 0.1, 1.0
FLOWS = (
    "ddmq_sends_total", "ddmq_delivered_total", "ddmq_acked_total", "ddmq_failed_total",
    "ddmq_redelivered_total", "ddmq_lease_timeouts_total", "ddmq_dead_letters_total",
    "ddmq_delay_fired_total",
)  # fmt: skip
KEY = ("start", "metric", "topic", "group")


def hour_values(counters_hour: DataFrame, latencies_hour: DataFrame) -> DataFrame:
    """Return the hourly values to compare: KEY, value, and whether it is a flow, whose missing values count
    as 0.
    """
    total, worst = F.sum("total").alias("value"), F.max("p99").alias("value")  # of several details
    flows = counters_hour.filter(F.col("metric").isin(*FLOWS)).groupBy(*KEY).agg(total)
    slow = latencies_hour.filter(F.col("process") == "").groupBy(*KEY).agg(worst)
    return flows.withColumn("flow", F.lit(True)).unionByName(slow.withColumn("flow", F.lit(False)))


def anomalies_hour(now: DataFrame, former: DataFrame, hours: DataFrame) -> DataFrame:
    """Return the hours whose values deviate from former weeks.

    `now` and `former`: hour_values of the days to judge and of earlier days. `hours`: the `start` of every
    judged hour, so that a flow that has stopped is noticed.
    """
    week = F.explode(F.sequence(F.lit(1), F.lit(WEEKS)))
    past = (
        former.withColumn("week", week)
        .withColumn("start", F.timestamp_seconds(F.unix_timestamp("start") + F.col("week") * 7 * 86_400))
        .join(F.broadcast(hours), on="start", how="left_semi")
        .groupBy(*KEY, "flow")
        .agg(F.collect_list("value").alias("past"))
        .filter(F.size("past") >= WEEKS_MIN)
        .withColumn("usual", _median_of(F.col("past")))
    )
    distances = F.transform("past", lambda one: F.abs(one - F.col("usual")))
    spread = F.greatest(1.4826 * _median_of(distances), SPREAD_MIN_SHARE * F.abs("usual"), F.lit(SPREAD_MIN))
    return (
        past.join(now.drop("flow"), on=list(KEY), how="left")
        .withColumn("value", F.coalesce("value", F.when(F.col("flow"), 0.0)))
        .withColumn("deviation", (F.col("value") - F.col("usual")) / spread)
        .filter(F.abs("deviation") >= STRANGE)
        .select(*KEY, "value", "usual", "deviation", F.size("past").alias("weeks"))
    )


def _median_of(values: Column) -> Column:
    ordered, size = F.sort_array(values), F.size(values)
    low = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
    return (low + F.get(ordered, F.floor(size / 2).cast("int"))) / 2
