"""What the observer of OpenTelemetry makes of sends and messages, without a server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind

from ddmq_client import (
    Consumer,
    Message,
    NotStoredError,
    OptionError,
    Outcome,
    OutgoingMessage,
    Producer,
    SendResult,
)
from ddmq_client.aio import AsyncConsumer, AsyncProducer
from ddmq_client.core.sending import result_of
from ddmq_client.observer import HandleCall, SendCall
from ddmq_client.opentelemetry import OpenTelemetryObserver
from ddmq_client.opentelemetry import spans as span_module
from ddmq_client.received import DeliveryContext, NothingToSettle, Origin
from tests.support.spans import Spans, linked, parent, span_ids, traceparent

SINGLE, BATCH = SendCall("me"), SendCall("me", batch=True)
PRESET = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
PRESET_CONTEXT = (int("1" * 32, 16), int("2" * 16, 16))
NAMES = st.sampled_from(["traceparent", "tracestate", "traceId", "spanId", "from_chronos"])
HEX = st.text("0123456789abcdefABCDEF- \t=,٣", max_size=60)


def received(
    properties: Mapping[str, str], stored_ms: int | None = None, queue: str = "R_default_a_3", **fields: Any
) -> Message:
    message = Message()
    message.properties, message.body, message.message_id = properties, b"body", "id-7"
    message.stored_ms, message.offset = stored_ms, 12
    for name, value in fields.items():
        setattr(message, name, value)
    message.delivery = DeliveryContext(Origin("billing", "orders", queue), 0.0, None, NothingToSettle())
    return message


def carried(spans: Spans, message: OutgoingMessage, call: SendCall = SINGLE) -> dict[str, str]:
    """The properties of what is sent; the send ends well."""
    send = spans.observer.sending((message,), call)
    send.ended((SendResult(),))
    return dict(send.messages[0].properties or {})


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_the_application_s_own_message_stays_as_it_is() -> None:
    message = OutgoingMessage("orders", b"x", properties={"p": "1"})
    assert set(carried(Spans(), message)) == {"p", "traceparent", "traceId", "spanId"}
    assert message == OutgoingMessage("orders", b"x", properties={"p": "1"})


def test_a_context_that_the_application_gave_stays_and_is_linked(spans: Spans) -> None:
    properties = {"traceparent": PRESET, "tracestate": "a=b"}
    properties_sent = carried(spans, OutgoingMessage("orders", b"x", properties=properties))
    assert properties_sent == properties | {"traceId": "1" * 32, "spanId": "2" * 16}
    (span,) = spans.all()
    assert (span.kind, linked(span)) == (SpanKind.CLIENT, [PRESET_CONTEXT])


def test_properties_without_a_valid_context_are_replaced(spans: Spans) -> None:
    properties_sent = carried(
        spans, OutgoingMessage("o", b"x", properties={"traceparent": "odd", "tracestate": "a=b"})
    )
    assert properties_sent.pop("traceparent") == traceparent(spans.one("send o"))
    assert set(properties_sent) == {"traceId", "spanId"}


@pytest.mark.parametrize("name", ["traceId", "spanId"])
def test_ids_that_the_application_gave_stay(name: str) -> None:
    properties_sent = carried(Spans(), OutgoingMessage("o", b"x", properties={name: "mine"}))
    assert set(properties_sent) == {name, "traceparent"}
    assert properties_sent[name] == "mine"


def test_a_batch_of_one_trace_and_of_several_topics() -> None:
    spans = Spans(create_spans=False)
    messages = [OutgoingMessage("a", b"x"), OutgoingMessage("b", b"x", properties={"traceparent": PRESET})]
    send = spans.observer.sending(messages, BATCH)
    send.ended([SendResult(), SendResult()])
    span = spans.one("send")
    assert [(each.properties or {})["traceparent"] for each in send.messages] == [traceparent(span), PRESET]
    assert (span.kind, linked(span)) == (SpanKind.PRODUCER, [PRESET_CONTEXT])
    assert "messaging.destination.name" not in (span.attributes or {})


def test_each_message_of_a_batch_has_its_own_result(spans: Spans) -> None:
    send = spans.observer.sending([OutgoingMessage("o", b"x")] * 3, BATCH)
    stored = SendResult()
    stored.message_id, stored.queue_id, stored.offset, stored.proxy = "id", 3, 7, "[::1]:9613"
    send.ended([stored, result_of(NotStoredError("no room", 15, "p:1")), result_of(NotStoredError("no"))])
    created = [dict(span.attributes or {}) for span in spans.all("create o")]
    assert created[0]["messaging.message.id"] == "id"
    assert (created[0]["server.address"], created[0]["server.port"]) == ("::1", 9613)
    error = "ddmq_client.errors.NotStoredError"
    assert [attributes.get("error.type") for attributes in created] == [None, error, error]
    send_span = spans.one("send o")
    assert (send_span.attributes or {})["messaging.ddmq.batch.failed_count"] == 2
    assert not send_span.status.is_ok


@pytest.mark.parametrize("observer", [OpenTelemetryObserver, "me", object()])
def test_an_observer_is_an_object_with_its_methods(observer: Any) -> None:
    for make in (Producer, AsyncProducer, partial(Consumer, group="g"), partial(AsyncConsumer, group="g")):
        with pytest.raises(OptionError, match=r"observer=.* allowed: an object with the methods sending"):
            make("h:1", observer=observer)


def test_nothing_is_sent_with_nothing(spans: Spans) -> None:
    send = spans.observer.sending([], BATCH)
    send.ended([])
    assert (list(send.messages), spans.all()) == ([], [])


def test_what_is_not_sampled_says_so_to_those_who_receive_it() -> None:
    spans, others = Spans(ALWAYS_OFF), Spans()
    properties_sent = carried(spans, OutgoingMessage("o", b"x"))
    assert properties_sent["traceparent"].endswith(("-00", "-02"))
    with others.observer.handling([received(properties_sent)], HandleCall("you")):
        pass
    assert (spans.all(), others.all()) == ([], []), "the sampler's decision goes with the trace"


def test_without_an_sdk_messages_go_as_they_are() -> None:
    observer = OpenTelemetryObserver(trace.NoOpTracerProvider())
    message = OutgoingMessage("o", b"x")
    send = observer.sending((message,), SINGLE)
    send.ended((SendResult(),))
    assert send.messages[0] is message
    with observer.handling([received({})], HandleCall("you")):
        pass
    assert observer.not_carried == 0


# --- bounds


@pytest.mark.parametrize(("size", "left"), [(30_000, 3), (30_600, 1), (30_700, 0), (32_767, 0)])
def test_a_context_is_added_as_far_as_it_fits(spans: Spans, size: int, left: int) -> None:
    """All of it, traceparent alone, nothing."""
    properties_sent = carried(spans, OutgoingMessage("o", b"x", properties={"p": "x" * size}))
    assert len(properties_sent) == 1 + left
    assert spans.observer.not_carried == (not left)
    assert (spans.one("send o").attributes or {}).get("messaging.ddmq.context_left_out", False) is not left


@pytest.mark.parametrize("body", [b"x" * 4_990_000, "ü" * 1_300_000])
def test_a_context_makes_no_frame_too_large(spans: Spans, body: bytes | str) -> None:
    assert carried(spans, OutgoingMessage("o", body)) == {}
    assert spans.observer.not_carried == 1


def test_a_context_makes_no_request_of_a_transaction_too_large(spans: Spans) -> None:
    call = SendCall("me", batch=True, transaction="tx")
    send = spans.observer.sending([OutgoingMessage("o", b"x" * 2_470_000)] * 2, call)
    assert [message.properties for message in send.messages] == [None, None]
    send.ended([SendResult(), SendResult()])
    assert spans.observer.not_carried == 2
    assert (spans.all("create o")[0].attributes or {})["messaging.ddmq.transaction.id"] == "tx"


@pytest.mark.parametrize("properties", [{"p": "\ud800"}, {"p": 7}, {7: "p"}, ["p"], 7])
def test_what_no_message_can_have_is_left_to_who_encodes_it(properties: Any) -> None:
    message = OutgoingMessage("o", b"x", properties=properties)
    send = Spans().observer.sending((message,), SINGLE)
    assert send.messages[0].properties == properties
    send.failed(ValueError("as the encoder says"))


# --- handlers


def test_a_span_of_one_trace_or_of_its_own() -> None:
    message = received({"traceparent": PRESET}, stored_ms=1)
    for same, above in ((True, PRESET_CONTEXT), (False, None)):
        spans = Spans(same_trace=same)
        spans.observer.handed_out([message], "you", None)
        with spans.observer.handling([message], HandleCall("you")):
            pass
        handled = spans.one("process orders")
        assert (parent(handled), linked(handled)) == (above, [PRESET_CONTEXT])
        assert len(spans.all("deliver orders")) == same


@pytest.mark.parametrize(
    ("delay_ms", "properties", "continued"),
    [(60_000, {}, True), (60_001, {}, False), (10, {"from_chronos": "from_chronos"}, False), (-5, {}, True)],
)
def test_a_delayed_message_has_a_trace_of_its_own(
    spans: Spans, delay_ms: int, properties: dict[str, str], continued: bool
) -> None:
    message = received(
        properties | {"traceparent": PRESET}, stored_ms=1_000_000, born_ms=1_000_000 - delay_ms
    )
    spans.observer.handed_out([message], "you", None)
    with spans.observer.handling([message], HandleCall("you")):
        pass
    handled = spans.one("process orders")
    assert (parent(handled), linked(handled)) == (PRESET_CONTEXT if continued else None, [PRESET_CONTEXT])
    assert len(spans.all("deliver orders")) == continued


def test_the_block_of_an_application_continues_the_span_around_it(spans: Spans) -> None:
    with (
        spans.tracer.start_as_current_span("request"),
        spans.observer.handling([received({"traceparent": PRESET})]),
    ):
        pass
    handled = spans.one("process orders")
    assert (parent(handled), linked(handled)) == (span_ids(spans.one("request")), [PRESET_CONTEXT])


def test_a_handler_does_not_continue_the_span_that_started_the_consumer(spans: Spans) -> None:
    with (
        spans.tracer.start_as_current_span("main"),
        spans.observer.handling([received({})], HandleCall("you")),
    ):
        pass
    assert parent(spans.one("process orders")) is None


def test_what_raises_in_the_block_is_an_error_and_goes_on(spans: Spans) -> None:
    with pytest.raises(KeyError), spans.observer.handling([received({})]):
        raise KeyError("k")
    span = spans.one("process orders")
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_of_a_batch_it_counts_what_failed(spans: Spans) -> None:
    messages = [received({}, outcome=outcome) for outcome in (Outcome.ACKED, Outcome.FAILED, None)]
    with spans.observer.handling(messages, HandleCall("you", batch=True)):
        pass
    span = spans.one("process orders")
    assert (span.attributes or {})["messaging.ddmq.batch.failed_count"] == 1
    assert (span.attributes or {})["messaging.batch.message_count"] == 3
    assert span.status.description == "1 of 3 messages failed"


def test_the_time_from_the_store_to_the_hand_out(spans: Spans) -> None:
    """Where the clocks disagree it has no length; what the messages say stands in the attributes."""
    now_ms = time.time_ns() // 1_000_000
    for stored_ms in (now_ms - 5_000, now_ms + 3_600_000, None):
        message = received({"traceparent": PRESET}, stored_ms=stored_ms)
        spans.observer.handed_out([message], "you", None)
    before, ahead = spans.all("deliver orders")
    assert before.start_time == (now_ms - 5_000) * 1_000_000
    assert ahead.start_time == ahead.end_time
    waited = [(span.attributes or {})["messaging.ddmq.message.waited_ms"] for span in (before, ahead)]
    assert isinstance(waited[0], int)
    assert isinstance(waited[1], int)
    assert waited[0] >= 5_000
    assert waited[1] < 0


@pytest.mark.parametrize(
    ("queue", "partition"),
    [("R_default_a_3", "3"), ("R_default_%RETRY%_0", "R_default_%RETRY%_0"), ("odd", "odd"), ("", "")],
)
def test_a_queue_is_named_as_producers_hear_it(spans: Spans, queue: str, partition: str) -> None:
    with spans.observer.handling([received({}, queue=queue)]):
        pass
    assert (spans.one("process orders").attributes or {})["messaging.destination.partition.id"] == partition


@given(st.dictionaries(NAMES, st.one_of(st.text(max_size=1_000), HEX, st.just(PRESET))))
def test_whatever_strangers_write_is_handled(properties: dict[str, str]) -> None:
    spans = Spans()
    messages = [received(properties, stored_ms=1)]
    spans.observer.handed_out(messages, "you", 1)
    ran = False
    with spans.observer.handling(messages, HandleCall("you")):
        ran = True
    assert ran
    assert len(spans.all("process orders")) == 1


@given(st.dictionaries(st.one_of(NAMES, st.text(min_size=1, max_size=5)), st.text(max_size=40)))
def test_whatever_an_application_gives_is_sent(properties: dict[str, str]) -> None:
    properties_sent = carried(Spans(), OutgoingMessage("o", b"x", properties=properties))
    added = {"traceparent", "tracestate", "traceId", "spanId"}
    assert {k: v for k, v in properties_sent.items() if k not in added} == {
        k: v for k, v in properties.items() if k not in added
    }


# --- other ways


def test_the_application_s_own_propagator_carries_what_it_knows() -> None:
    spans = Spans(propagator=propagate.get_global_textmap())
    token = context.attach(baggage.set_baggage("tenant", "7"))
    try:
        properties_sent = carried(spans, OutgoingMessage("o", b"x"))
    finally:
        context.detach(token)
    assert properties_sent["baggage"] == "tenant=7"
    with spans.observer.handling([received(properties_sent)], HandleCall("you")):
        assert baggage.get_baggage("tenant") == "7"
    assert baggage.get_baggage("tenant") is None


class Breaking:
    """Whatever it is asked."""

    fields = frozenset(("traceparent",))

    def extract(self, *args: Any) -> Any:
        raise RuntimeError("extract")

    def inject(self, *args: Any) -> Any:
        raise RuntimeError("inject")


def test_what_breaks_here_breaks_no_message() -> None:
    spans = Spans(propagator=Breaking())
    messages: Sequence[OutgoingMessage] = (OutgoingMessage("o", b"x"),)
    send = spans.observer.sending(messages, SINGLE)
    assert send.messages == messages
    send.ended((SendResult(),))
    spans.observer.handed_out([received({"traceparent": PRESET}, stored_ms=1)], "you", 1)
    ran = False
    with spans.observer.handling([received({"traceparent": PRESET})], HandleCall("you")):
        ran = True
    assert ran


def test_nor_does_what_is_called_with_nonsense(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense: Any = [object()]
    spans.observer.handed_out(nonsense, "you", None)
    handling = spans.observer.handling(nonsense, HandleCall("you"))
    with handling:
        handling.raised(ValueError())
    send = spans.observer.sending(nonsense, SINGLE)
    assert send.messages is nonsense
    send.failed(ValueError())
    monkeypatch.setattr(span_module, "set_result", None)
    broken = spans.observer.sending((OutgoingMessage("o", b"x"),), SINGLE)
    broken.ended((SendResult(),))
    assert spans.all() == []
