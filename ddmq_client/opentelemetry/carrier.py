"""Contexts of OpenTelemetry in the properties of messages: written by who sends, read by who receives.

Properties come from strangers. What cannot be read there is as if it were absent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ddmq_client.idl.codes import FRAME_BYTES_MAX, SPAN_ID, TRACE_ID
from ddmq_client.outgoing import OutgoingMessage

Propagator = TextMapPropagator
PROPERTIES_BYTES_MAX = 30 * 1024  # of 32 KiB that proxies take: a delay and a transaction add some, too
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX - 64 * 1024
CONTEXT_BYTES_MAX = 1_024  # of what is added, and of what a message has besides body and properties, about
VALUE_CHARS_MAX = 512  # of W3C's two, and
OTHER_CHARS_MAX = 8_192  # of any other that a propagator asks for, as of W3C's baggage
_W3C = frozenset(("traceparent", "tracestate"))
_TRACE_ID, _SPAN_ID = re.compile(r"[0-9a-fA-F]{32}"), re.compile(r"[0-9a-fA-F]{16}")
_log = logging.getLogger("ddmq_client.opentelemetry")


class _Bounded(Getter[Mapping[str, str]]):
    """Reads properties for the propagator, bounded because a value may have any length."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key)
        most = VALUE_CHARS_MAX if key in _W3C else OTHER_CHARS_MAX
        return None if value is None or len(value) > most else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


class ContextCarrier:
    """Writes trace contexts into message properties and reads them, with one propagator."""

    def __init__(self, propagator: Propagator | None) -> None:
        self._propagator = propagator or TraceContextTextMapPropagator()
        self._fields = frozenset(self._propagator.fields)
        self._lock = Lock()
        self.not_carried = 0

    def own_context(self, properties: Mapping[str, str] | None) -> SpanContext | None:
        """Return the span context that the application has put into the properties; None if there is none."""
        if not properties or self._fields.isdisjoint(properties):
            return None
        return self._read(properties, Context())[1]

    def received_context(
        self, properties: Mapping[str, str], around: Context | None = None
    ) -> tuple[Context | None, SpanContext | None]:
        """Return (the context in which to continue a received message, the span that the message names).

        The context is `around` if the message has none. If it has only traceId and spanId, only the span is
        returned: these do not tell whether its trace is recorded, so no span continues it.
        """
        context, span = self._read(properties, around or Context())
        if span is not None:
            return context, span
        trace_id, span_id = properties.get(TRACE_ID, ""), properties.get(SPAN_ID, "")
        if not (_TRACE_ID.fullmatch(trace_id) and _SPAN_ID.fullmatch(span_id)):
            return None, None
        span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags())
        return None, span if span.is_valid else None

    def with_context(
        self, message: OutgoingMessage, context: Context | None, preset: SpanContext | None, fit: bool = True
    ) -> tuple[OutgoingMessage, bool]:
        """Add `context` to the message's properties, with traceId and spanId unless it has one of them.

        With None, `preset`, the span context that the application has set, is used instead. Returns the
        message, and False if it would have become too large and is unchanged. `fit`: whether the request has
        space for the context.
        """
        added: dict[str, str] = {}
        span = preset
        if context is not None:
            self._propagator.inject(added, context)
            span = trace.get_current_span(context).get_span_context()
        assert span is not None
        if not span.is_valid:
            return message, True
        before = message.properties or {}
        ids: dict[str, str] = {}
        if TRACE_ID not in before and SPAN_ID not in before:
            ids = {
                TRACE_ID: trace.format_trace_id(span.trace_id),
                SPAN_ID: trace.format_span_id(span.span_id),
            }
        # Fields of the propagator that name no context are dropped, so that they do not mix with this one.
        retained = before
        if preset is None:
            retained = {name: value for name, value in before.items() if name not in self._fields}
        for more in ({**added, **ids}, added) if fit else ():
            if more and self._fits_limits(message, properties := {**retained, **more}):
                return replace(message, properties=properties), True
        if added:
            self._left_out()
        return message, not added

    @staticmethod
    def fit_together(messages: Sequence[OutgoingMessage]) -> bool:
        """Return whether the messages fit into one request after contexts were added."""
        return sum(map(_message_size, messages)) + CONTEXT_BYTES_MAX * len(messages) <= MESSAGE_BYTES_MAX

    def _read(
        self, properties: Mapping[str, str], around: Context
    ) -> tuple[Context | None, SpanContext | None]:
        try:
            context = self._propagator.extract(properties, around, _Bounded())
        except Exception:  # of a propagator that the application has chosen
            _log.debug("a message's context cannot be read", exc_info=True)
            return None, None
        span = trace.get_current_span(context).get_span_context()
        return (context, span) if span.is_valid else (None, None)

    @staticmethod
    def _fits_limits(message: OutgoingMessage, properties: Mapping[str, str]) -> bool:
        return (
            _properties_size(properties) <= PROPERTIES_BYTES_MAX
            and _message_size(message) + CONTEXT_BYTES_MAX <= MESSAGE_BYTES_MAX
        )

    def _left_out(self) -> None:
        with self._lock:
            self.not_carried += 1
            first = self.not_carried == 1
        if first:
            _log.warning(
                "a message goes without its trace context: its properties would have more than %d bytes, or"
                " its request more than %d (said once; counted in not_carried)",
                PROPERTIES_BYTES_MAX, MESSAGE_BYTES_MAX,
            )  # fmt: skip


def _message_size(message: OutgoingMessage) -> int:
    """Return an upper bound of the message's size in bytes."""
    body: object = message.body
    chars = len(body) if isinstance(body, bytes | str) else 0
    return (chars if isinstance(body, bytes) else 4 * chars) + _properties_size(message.properties or {})


def _properties_size(properties: Mapping[str, str]) -> int:
    """Return the size of the properties in bytes.

    Invalid text counts as too large, and encoding rejects it later.
    """
    try:
        return sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    except (AttributeError, UnicodeEncodeError):
        return MESSAGE_BYTES_MAX
