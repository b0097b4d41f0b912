"""Our Prometheus page says what prometheus_client would say of the same registry, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from ddmq_common.metrics import catalogue
from ddmq_common.metrics.cells import SUB_BUCKETS, upper_edge
from ddmq_common.metrics.registry import HISTOGRAMS_PER_CHUNK, NUMBERS_PER_CHUNK, Registry

METRICS = [*catalogue.CATALOGUE.values()]
VALUES = st.one_of(st.integers(0, 1 << 60), st.floats(0, 1e18), st.just(float("inf")), st.just(float("nan")))
LABELS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


class Theirs:
    """The cells of a registry of ours, as the library's own registry collects them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Any]:
        for metric, cells in self._registry.numbers():
            kind: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            numbers = kind(metric.name, metric.help, labels=metric.labels)
            for labels, cell in cells.items():
                numbers.add_metric(labels, cell.value)
            yield numbers
        for metric, observed in self._registry.histograms():
            histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, histogram in observed.items():
                if any(histogram.counts):
                    histograms.add_metric(labels, cumulative(histogram.counts), histogram.total)
            yield histograms


def cumulative(counts: list[int]) -> list[tuple[str, float]]:
    last_of_each = range(SUB_BUCKETS - 1, len(counts), SUB_BUCKETS)
    pairs = [(str(upper_edge(last)), float(sum(counts[: last + 1]))) for last in last_of_each]
    return [*pairs, ("+Inf", float(sum(counts)))]


def reference_page(registry: Registry) -> bytes:
    client = CollectorRegistry()
    client.register(Theirs(registry))
    return generate_latest(client)


@given(st.data())
def test_the_page_is_that_of_the_library(data: st.DataObject) -> None:
    registry = Registry()
    for _ in range(data.draw(st.integers(0, 8))):
        metric = data.draw(st.sampled_from(METRICS))
        labels = [data.draw(LABELS) for _ in metric.labels]
        if metric.kind == "histogram":
            histogram = registry.histogram(metric, *labels)
            for value in data.draw(st.lists(st.floats(-1, 1e10), max_size=4)):
                histogram.observe(value)
        else:
            registry.cell(metric, *labels).value = data.draw(VALUES)
    assert registry.exposition() == reference_page(registry)


@pytest.mark.slow
def test_a_page_of_many_label_sets_comes_in_bounded_chunks() -> None:
    registry = Registry()
    for number in range(900):
        registry.histogram(catalogue.QUEUE_WAIT, f"g{number}", "t").observe(number)
        registry.cell(catalogue.ACKED, f"g{number}", "t").value = number
    chunks = list(registry.exposition_chunks())
    assert b"".join(chunks) == reference_page(registry)
    longest = max(chunk.count(b"\n") for chunk in chunks)
    assert longest <= max(NUMBERS_PER_CHUNK, HISTOGRAMS_PER_CHUNK * 44)


def test_a_histogram_that_saw_nothing_is_left_out() -> None:
    registry = Registry()
    registry.histogram(catalogue.QUEUE_WAIT, "g", "t")
    registry.histogram(catalogue.HUB_BLOCKED).observe(0)
    families = {
        family.name: family for family in text_string_to_metric_families(registry.exposition().decode())
    }
    assert families["ddmq_queue_wait_us"].samples == []
    assert [one.value for one in families["ddmq_hub_blocked_us"].samples if one.name.endswith("_count")] == [
        1.0
    ]


def test_cells_created_between_two_chunks_do_no_harm() -> None:
    registry = Registry()
    registry.cell(catalogue.ACKED, "g", "t").value = 1
    page = b""
    for number, chunk in enumerate(registry.exposition_chunks()):
        page += chunk
        registry.cell(catalogue.ACKED, f"g{number}", "t").value = 1
        registry.histogram(catalogue.QUEUE_WAIT, f"g{number}", "t").observe(1)
    assert list(text_string_to_metric_families(page.decode()))
