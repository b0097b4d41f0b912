"""The kinds of conditions under which something is wrong, as data.

The table of rules (table.py) is made of these. A server compares them with its own metrics, and
tools/alerts.py writes each as PromQL, so both judge by the same threshold.

`by`: the labels that tell two findings of a rule apart. INSTANCE stands for the process, which no metric has
as a label: Prometheus adds it. `window_s`: the time over which counters and histograms are compared.
`unless`: a gauge with the labels `by`; a set of labels for which it is above 0 does not fulfil the condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ddmq_common.metrics.metric import Metric

INSTANCE = "instance"
NOTHING: Mapping[str, tuple[str, ...]] = {}


class Selector(NamedTuple):
    """The series of a metric whose label values are among `only`, and none of `without`."""

    metric: Metric
    only: Mapping[str, tuple[str, ...]] = NOTHING
    without: Mapping[str, tuple[str, ...]] = NOTHING


class GaugeAbove(NamedTuple):
    """A gauge is above a threshold. `total`: add its series up; otherwise the highest one counts."""

    metric: Metric
    above: float
    by: tuple[str, ...] = ()
    total: bool = False
    unless: Metric | None = None


class NoneOwned(NamedTuple):
    """No process owns any of what the gauge counts."""

    metric: Metric
    by: tuple[str, ...] = ()


class Grown(NamedTuple):
    """Counters have grown within the window.

    `rare`: the rule must see the first event, with which the series begins. `steady`: the events are many,
    and Prometheus compares their rate.
    """

    series: tuple[Selector, ...]
    window_s: int
    by: tuple[str, ...] = ()
    rare: bool = False
    steady: bool = False


class ShareAbove(NamedTuple):
    """`part` grew by more than the share `above` of the growth of `whole` within the window."""

    part: Selector
    whole: Selector
    above: float
    window_s: int
    by: tuple[str, ...] = ()


class QuantileAbove(NamedTuple):
    """A quantile of what a histogram counted within the window is above a threshold."""

    metric: Metric
    quantile: float
    above: float
    window_s: int
    by: tuple[str, ...] = ()


class NotConsumed(NamedTuple):
    """`lag` is above 0, and none of `flows` has grown within the window."""

    lag: Metric
    flows: tuple[Metric, ...]
    window_s: int
    by: tuple[str, ...] = ()
    unless: Metric | None = None


class FallsBelow(NamedTuple):
    """A gauge falls below a threshold within `ahead_s`, if the trend of the window continues."""

    metric: Metric
    below: float
    ahead_s: int
    window_s: int
    by: tuple[str, ...] = ()


class OnlyPrometheus(NamedTuple):
    """A condition that a process cannot judge from its own metrics. `reason`: why not."""

    expression: str
    reason: str
    by: tuple[str, ...] = ()


Condition = (
    GaugeAbove | NoneOwned | Grown | ShareAbove | QuantileAbove | NotConsumed | FallsBelow | OnlyPrometheus
)
