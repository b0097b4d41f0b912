"""Spans of OpenTelemetry that tests look at: made by the SDK, kept in memory when they end."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext

from ddmq_client.opentelemetry import OpenTelemetryObserver


class Spans:
    """Those of one provider, in the order they ended; `observer` makes them."""

    def __init__(self, sampler: Sampler | None = None, **settings: Any) -> None:
        self._ended = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self.tracer = self.provider.get_tracer("test")
        self.observer = OpenTelemetryObserver(self.provider, **settings)

    def all(self, name: str = "") -> list[ReadableSpan]:
        """With this name; without: all of them."""
        return [span for span in self._ended.get_finished_spans() if span.name == name or not name]

    def names(self) -> list[str]:
        return sorted(span.name for span in self.all())

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span


def place(span: ReadableSpan | SpanContext) -> tuple[int, int]:
    """Trace and span id."""
    found = span.get_span_context() if isinstance(span, ReadableSpan) else span
    assert found is not None
    return found.trace_id, found.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    """What it links to."""
    return [place(link.context) for link in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    """What it is a child of."""
    return None if span.parent is None else place(span.parent)


def traceparent(span: ReadableSpan) -> str:
    """As a property names it."""
    found = span.get_span_context()
    assert found is not None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
