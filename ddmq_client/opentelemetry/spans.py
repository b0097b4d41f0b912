"""The observer that makes spans, and its ends of them: of a send, of a handler's call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import Token
from functools import wraps
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider

from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_client.observer import HandleCall, ObservedHandling, ObservedSend, SendCall
from ddmq_client.opentelemetry.attributes import (
    got_attributes,
    message_attributes,
    sent_attributes,
    set_error,
    set_result,
    span_name,
)
from ddmq_client.opentelemetry.carrier import ContextCarrier, Propagator
from ddmq_client.outgoing import OutgoingMessage, SendResult
from ddmq_client.received import Message, Outcome

DELAYED_AFTER_MS = 60_000  # between send and store; after that the trace is not continued
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_log = logging.getLogger("ddmq_client.opentelemetry")
F = TypeVar("F", bound=Callable[..., Any])


class OpenTelemetryObserver:
    """Creates spans for the calls of producers and consumers; pass it to them as `observer=`.

    tracer_provider  makes the spans; the application's global one when absent
    propagator       writes contexts into properties and reads them; W3C's traceparent and tracestate when
                     absent (`opentelemetry.propagate.get_global_textmap()`: what the application has set)
    same_trace       the span of a handler that gets one message is a child of the span that sent it (and
                     linked to it), unless it was held on its way for more than a minute, or by the delay
                     service; False: linked only, as those of batches are
    create_spans     send_batch makes a span for each message, too; False: one for all of them
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        propagator: Propagator | None = None,
        same_trace: bool = True,
        create_spans: bool = True,
    ) -> None:
        """Store the options; no span is started."""
        self._tracer = trace.get_tracer("ddmq_client", None, tracer_provider, SCHEMA_URL)
        self._carrier = ContextCarrier(propagator)
        self._same_trace = same_trace
        self._create_spans = create_spans

    @property
    def not_carried(self) -> int:
        """The number of messages sent without their trace context, because it would have made them too
        large."""
        return self._carrier.not_carried

    def sending(self, messages: Sequence[OutgoingMessage], call: SendCall) -> ObservedSend:
        """Begin the span of a send. Called by producers."""
        if not messages:
            return _Unobserved(messages)
        try:
            return self._start_sending(messages, call)
        except Exception:
            _log_failure()
            return _Unobserved(messages)

    def handed_out(self, messages: Sequence[Message], client_id: str, asked_ns: int | None) -> None:
        """Create spans for messages that the application receives. Called by consumers."""
        try:
            now_ns = time.time_ns()
            if asked_ns is not None:
                self._add_receive_span(messages, client_id, asked_ns, now_ns)
            for message in messages if self._same_trace else ():
                self._add_deliver_span(message, client_id, now_ns)
        except Exception:
            _log_failure()

    def handling(self, messages: Sequence[Message], call: HandleCall | None = None) -> ObservedHandling:
        """Create the span for processing messages; it is current while the block runs.

        Consumers call it around their handlers. An application that takes messages by `pull` or a loop may
        call it:

            with observer.handling([message]):
                ...
                message.ack()
        """
        try:
            return self._start_handling(messages, call)
        except Exception:
            _log_failure()
            return _Handling(None, None, messages)

    def _start_sending(self, messages: Sequence[OutgoingMessage], call: SendCall) -> ObservedSend:
        presets = [self._carrier.own_context(message.properties) for message in messages]
        own: list[Span | None] = [None] * len(messages)
        if call.batch and self._create_spans:
            own = [
                self._create_span(message, call) if preset is None else None
                for message, preset in zip(messages, presets, strict=True)
            ]
        creations = [
            preset if span is None else span.get_span_context()
            for preset, span in zip(presets, own, strict=True)
        ]
        attributes = sent_attributes(messages, call, "send", "send")
        span = self._tracer.start_span(
            span_name("send", attributes),
            kind=SpanKind.PRODUCER if None in creations else SpanKind.CLIENT,
            attributes=attributes,
            links=[Link(each) for each in creations if each is not None],
        )
        fit = call.transaction is None or self._carrier.fit_together(messages)
        carried = []
        for message, preset, create in zip(messages, presets, own, strict=True):
            context = None if preset is not None else trace.set_span_in_context(create or span)
            message, fits = self._carrier.with_context(message, context, preset, fit)
            carried.append(message)
            if not fits:
                (create or span).set_attribute("messaging.ddmq.context_left_out", True)
        return _Sending(span, own, carried)

    def _create_span(self, message: OutgoingMessage, call: SendCall) -> Span:
        attributes = sent_attributes((message,), call, "create", "create")
        del attributes["messaging.batch.message_count"]
        return self._tracer.start_span(
            span_name("create", attributes), kind=SpanKind.PRODUCER, attributes=attributes
        )

    def _add_receive_span(
        self, messages: Sequence[Message], client_id: str, asked_ns: int, now_ns: int
    ) -> None:
        attributes = got_attributes(messages, client_id, "receive")
        attributes["messaging.operation.type"] = "receive"
        attributes["messaging.batch.message_count"] = len(messages)
        self._tracer.start_span(
            span_name("receive", attributes),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=_links_to(
                messages, [self._carrier.received_context(each.properties)[1] for each in messages], now_ns
            ),
            start_time=asked_ns,
        ).end(now_ns)

    def _add_deliver_span(self, message: Message, client_id: str, now_ns: int) -> None:
        """Create a span from the message's store time until now, in the trace of the send.

        The two times come from two clocks: if they contradict each other, the span has no length.
        """
        if message.stored_ms is None or _was_delayed(message):
            return
        context, creation = self._carrier.received_context(message.properties)
        if context is None or creation is None:
            return
        attributes = got_attributes((message,), client_id, "deliver")
        self._tracer.start_span(
            span_name("deliver", attributes),
            context,
            attributes={**attributes, **message_attributes(message, now_ns)},
            start_time=min(message.stored_ms * 1_000_000, now_ns),
        ).end(now_ns)

    def _start_handling(self, messages: Sequence[Message], call: HandleCall | None) -> ObservedHandling:
        now_ns = time.time_ns()
        batch = len(messages) != 1 if call is None else call.batch
        attributes = got_attributes(messages, None if call is None else call.client_id, "process")
        attributes["messaging.operation.type"] = "process"
        # A worker of a consumer has the context of whoever started that: nothing that a handler is part of.
        parent = contexts.get_current() if call is None else Context()
        origins = [self._carrier.received_context(message.properties, parent) for message in messages]
        if batch:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= message_attributes(messages[0], now_ns)
            attributes["messaging.message.body.size"] = len(messages[0].body)
            if self._same_trace and not _was_delayed(messages[0]) and not _in_span(parent):
                parent = origins[0][0] or parent
        span = self._tracer.start_span(
            span_name("process", attributes),
            parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links_to(messages, [creation for _, creation in origins], now_ns if batch else None),
            start_time=now_ns,
        )
        return _Handling(span, trace.set_span_in_context(span, parent), messages)


def _links_to(
    messages: Sequence[Message], creations: Sequence[SpanContext | None], now_ns: int | None
) -> list[Link]:
    """Return links to the spans that sent the messages.

    `now_ns`: also describe each message, for a span of several.
    """
    return [
        Link(creation, None if now_ns is None else message_attributes(message, now_ns))
        for message, creation in zip(messages, creations, strict=True)
        if creation is not None
    ]


def _in_span(around: Context) -> bool:
    return trace.get_current_span(around).get_span_context().is_valid


def _was_delayed(message: Message) -> bool:
    """Return whether the message may arrive long after it was sent: delayed, in a transaction, or retried."""
    stored_ms = message.stored_ms
    if stored_ms is not None and stored_ms - (message.born_ms or stored_ms) > DELAYED_AFTER_MS:
        return True
    return FROM_CHRONOS in message.properties


def _log_errors(method: F) -> F:
    """Wrap a method so that its errors are logged and never raised."""

    @wraps(method)
    def logging_method(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception:
            _log_failure()
            return None

    return logging_method  # type: ignore[return-value]


class _Unobserved:
    """The observer of a send that gets no span; does nothing."""

    def __init__(self, messages: Sequence[OutgoingMessage]) -> None:
        self.messages = messages

    def ended(self, results: Sequence[SendResult]) -> None:
        """Do nothing, because no span was started."""

    def failed(self, error: BaseException) -> None:
        """Do nothing, because no span was started."""


class _Sending:
    """Observes a send with its span, and the spans of its messages if it is a batch."""

    def __init__(self, span: Span, own: Sequence[Span | None], messages: Sequence[OutgoingMessage]) -> None:
        self.messages = messages
        self._span = span
        self._own = own
        self._created_ns = time.time_ns()

    @_log_errors
    def ended(self, results: Sequence[SendResult]) -> None:
        """Record each result in its message's span, and errors also in the span of the send."""
        errors = [result.error for result in results if result.error is not None]
        many = len(self.messages) > 1
        for result, span in zip(results, self._own, strict=False):
            if span is not None:
                set_result(span, result)
        if not many and results:
            set_result(self._span, results[0])
        elif errors:
            set_error(self._span, errors[0])
            self._span.set_attribute("messaging.ddmq.batch.failed_count", len(errors))
        self._end()

    @_log_errors
    def failed(self, error: BaseException) -> None:
        """End all spans with the error of the send."""
        for span in self._own:
            if span is not None:
                set_error(span, error)
        set_error(self._span, error)
        self._end()

    def _end(self) -> None:
        for span in self._own:
            if span is not None:
                span.end(self._created_ns)
        self._span.end()


class _Handling:
    """Observes a handler's call with its span, or without one if that could not be created."""

    def __init__(self, span: Span | None, context: Context | None, messages: Sequence[Message]) -> None:
        self._span = span
        self._context = context
        self._messages = messages
        self._error: BaseException | None = None
        self._token: Token[Context] | None = None

    @_log_errors
    def __enter__(self) -> None:
        if self._context is not None:
            self._token = contexts.attach(self._context)

    def raised(self, error: BaseException) -> None:
        """Store the handler's error, to be recorded in the span."""
        self._error = error

    @_log_errors
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if self._span is None:
            return
        try:
            self._set_outcome(self._span, self._error or error)
        finally:
            self._span.end()

    def _set_outcome(self, span: Span, error: BaseException | None) -> None:
        failed = sum(message.outcome is Outcome.FAILED for message in self._messages)
        if error is not None:
            set_error(span, error)
        elif failed:
            span.set_status(Status(StatusCode.ERROR, f"{failed} of {len(self._messages)} messages failed"))
            span.set_attribute("error.type", "failed")
        if len(self._messages) > 1:
            span.set_attribute("messaging.ddmq.batch.failed_count", failed)
        elif self._messages and (outcome := self._messages[0].outcome) is not None:
            span.set_attribute("messaging.ddmq.message.outcome", outcome.value)


_logged_once = Lock()  # acquired by the first failure and never released


def _log_failure() -> None:
    if _logged_once.acquire(blocking=False):
        _log.exception("a span could not be made or ended; the message goes on (said once)")
