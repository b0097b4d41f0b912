"""Metric cells: bounded label sets, honest buckets, Prometheus text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import BUCKETS, LABEL_SETS_MAX, Histogram, Registry, bucket, upper_edge


@given(st.floats(0, 2**26))
def test_a_value_lies_in_its_bucket(value: float) -> None:
    index = bucket(value)
    assert value < upper_edge(index) <= value * 1.125 + 1
    assert index == 0 or upper_edge(index - 1) <= int(value) or int(value) < upper_edge(0)


def test_what_is_huge_or_negative_counts_in_the_outer_buckets() -> None:
    assert bucket(1e18) == BUCKETS - 1
    assert bucket(-5) == 0


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
    registry.histogram(catalogue.SEND_LATENCY).observe(250)
    text = registry.exposition().decode()
    assert 'ddmq_sends_total{code="0",topic="orders"} 3.0' in text
    assert 'ddmq_send_latency_us_bucket{le="256.0"} 1.0' in text
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
