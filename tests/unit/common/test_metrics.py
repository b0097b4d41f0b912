"""Metric cells: bounded label sets, honest buckets, Prometheus text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import BUCKETS, TOP, Histogram, bucket_index, upper_edge
from ddmq_common.metrics.registry import HISTOGRAM_LABEL_SETS_MAX, LABEL_SETS_MAX, Registry


@given(st.floats(0, 2**26))
def test_a_value_is_within_its_bucket(value: float) -> None:
    index = bucket_index(value)
    assert value < upper_edge(index) <= value * 1.125 + 1
    assert index == 0 or upper_edge(index - 1) <= int(value) or int(value) < upper_edge(0)


def test_huge_and_negative_values_count_in_the_outer_buckets() -> None:
    assert bucket_index(1e18) == BUCKETS - 1
    assert upper_edge(bucket_index(40 * 86_400e6)) < TOP < upper_edge(bucket_index(1e18)), (
        "days in µs have their bucket"
    )
    assert bucket_index(-5) == 0


def test_percentiles_come_from_the_counts() -> None:
    histogram = Histogram()
    for value in range(1, 1001):
        histogram.observe(value)
    assert histogram.percentile(0.5) == pytest.approx(500, rel=0.13)
    assert histogram.summary()["count"] == 1000
    assert Histogram().percentile(0.99) == 0.0


def test_cells_show_in_prometheus_text_and_in_the_snapshot() -> None:
    registry = Registry()
    registry.cell(catalogue.SENDS, "orders", "0").value += 3
    registry.histogram(catalogue.SEND_LATENCY, "orders").observe(250)
    text = registry.exposition().decode()
    assert 'ddmq_sends_total{code="0",topic="orders"} 3.0' in text
    assert 'ddmq_send_latency_us_bucket{le="256.0",topic="orders"} 1.0' in text
    assert registry.snapshot()["ddmq_sends_total"] == [{"topic": "orders", "code": "0", "value": 3}]


def test_label_sets_are_bounded() -> None:
    registry = Registry()
    for index in range(LABEL_SETS_MAX + 10):
        registry.cell(catalogue.SEND_BYTES, f"t{index}").value += 1
    other = registry.cell(catalogue.SEND_BYTES, "one more")
    assert other is registry.cell(catalogue.SEND_BYTES, "another")
    assert other.value == 10


def test_a_metric_takes_its_own_labels_only() -> None:
    with pytest.raises(ValueError, match="takes labels"):
        Registry().cell(catalogue.SENDS, "orders")


def test_label_sets_of_histograms_have_a_lower_bound() -> None:
    registry = Registry()
    for index in range(HISTOGRAM_LABEL_SETS_MAX + 5):
        registry.histogram(catalogue.PUSH_LATENCY, f"s{index}").observe(1)
    assert sum(registry.histogram(catalogue.PUSH_LATENCY, "one more").counts) == 5


def test_collectors_run_before_every_exposition() -> None:
    registry = Registry()
    looks: list[int] = []

    def fill() -> None:
        looks.append(1)
        registry.cell(catalogue.WAITING_PULLS).value = len(looks)

    registry.add_collector(fill)
    assert b"ddmq_waiting_pulls 1.0" in registry.exposition()
    assert registry.snapshot()["ddmq_waiting_pulls"] == [{"value": 2}]


def test_a_collector_that_fails_is_counted_and_does_not_hide_the_others() -> None:
    registry = Registry()

    def broken() -> None:
        raise RuntimeError("no such group")

    def fill() -> None:
        registry.cell(catalogue.WAITING_PULLS).value = 7

    registry.add_collector(broken)
    registry.add_collector(fill)
    assert b"ddmq_waiting_pulls 7.0" in registry.exposition()
    registry.exposition()
    assert registry.snapshot()["ddmq_collect_failed_total"] == [{"value": 3}]
