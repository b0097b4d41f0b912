"""Spans of OpenTelemetry, recorded by the SDK and kept in memory when they end."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext

from ddmq_client.opentelemetry import OpenTelemetryObserver


class Spans:
    """The spans of one provider, in the order of their ends; `observer` creates them."""

    def __init__(self, sampler: Sampler | None = None, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.observer = OpenTelemetryObserver(self.provider, **settings)

    def all(self, name: str = "") -> list[ReadableSpan]:
        """Return the ended spans with this name, or all of them."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name or not name]

    def names(self) -> list[str]:
        return sorted(span.name for span in self.all())

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span


def span_ids(span: ReadableSpan | SpanContext) -> tuple[int, int]:
    """Return (trace id, span id)."""
    context = span.get_span_context() if isinstance(span, ReadableSpan) else span
    assert context is not None
    return context.trace_id, context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    """Return the ids of the spans that it links to."""
    return [span_ids(link.context) for link in span.links]


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    """Return the ids of its parent, or None."""
    return None if span.parent is None else span_ids(span.parent)


def traceparent(span: ReadableSpan) -> str:
    """Return the W3C traceparent of the span."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
