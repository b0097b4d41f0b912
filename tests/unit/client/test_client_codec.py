"""Requests and answers, read and written by thriftpy2's own codec on the other side; hostile answers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TMemoryBuffer

from ddmq_client import InvalidMessageError, Message, OutgoingMessage, PullError
from ddmq_client.core.acks import PendingAcks
from ddmq_client.core.frames import FrameError
from ddmq_client.core.selectors import ANY, Placement
from ddmq_client.core.sending import ResendPolicy, SendJob
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.idl import consumer as consumer_idl
from ddmq_client.idl import producer as producer_idl
from ddmq_client.outbox import oneway_frame
from ddmq_client.received import DeliveryContext, NothingToSettle, Origin
from ddmq_client.wire import consuming, producing
from ddmq_client.wire.producing import ProxyCallError, encode_message
from tests.examples import examples

FIXED = settings(deadline=None, derandomize=True)

SETTINGS = consuming.pull_settings(ConsumerSettings("g", client_id="me", sql="a = 1"))


def request(frame: bytes, service: Any) -> tuple[str, int, int, Any]:
    """(method, type, sequence id, arguments) of a frame."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    reader = TCompactProtocol(TMemoryBuffer(frame[4:]))
    method, kind, sequence_id = reader.read_message_begin()
    args = getattr(service, method + "_args")()
    args.read(reader)
    return method, kind, sequence_id, args


def answer(method: str, sequence_id: int, result: Any, kind: int = TMessageType.REPLY) -> bytes:
    buffer = TMemoryBuffer()
    writer = TCompactProtocol(buffer)
    writer.write_message_begin(method, kind, sequence_id)
    result.write(writer)
    payload: bytes = buffer.getvalue()
    return payload


def encoded(message: OutgoingMessage, placement: Placement = ANY) -> bytes:
    return encode_message(message, placement, "me", None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@FIXED
@given(st.one_of(TEXTS, st.binary(min_size=1, max_size=200)), TEXTS, st.dictionaries(TEXTS, TEXTS))
def test_a_send_is_read_as_it_was_meant(body: str | bytes, key: str, properties: dict[str, str]) -> None:
    message = OutgoingMessage("tópic", body, key, "tag", properties)
    job = SendJob([encoded(message, Placement(-1, -7))], False, 3.0, ResendPolicy())
    method, kind, sequence_id, args = request(job.encode_request(0.0, 300), producer_idl.ProducerService)
    assert (method, kind, sequence_id, args.timeout) == ("sendSync", TMessageType.CALL, 300, 2950)
    sent = args.message
    assert sent.body == (body.encode() if isinstance(body, str) else body)
    assert (sent.topic, sent.key, sent.tags, sent.hashId, sent.partitionId) == ("tópic", key, "tag", -7, -1)
    assert (sent.properties or {}) == properties
    assert (sent.clientId, sent.producerGroup, sent.value) == ("me", None, None)


@pytest.mark.parametrize("count", [2, 14, 15, 200])
def test_a_batch_is_read_as_it_was_meant(count: int) -> None:
    messages = [encoded(OutgoingMessage("t", b"%d" % at)) for at in range(count)]
    frame = SendJob(messages, True, 3.0, ResendPolicy()).encode_request(0.0, 1)
    method, _, _, args = request(frame, producer_idl.ProducerService)
    assert (method, args.timeout) == ("sendBatch", 2950)
    assert [message.body for message in args.messages] == [b"%d" % at for at in range(count)]


def test_oneway() -> None:
    frame = oneway_frame(encoded(OutgoingMessage("t", b"x")), 9)
    method, kind, _, args = request(frame, producer_idl.ProducerService)
    assert (method, kind, args.message.body) == ("sendOneway", TMessageType.ONEWAY, b"x")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (OutgoingMessage("t", b""), "body has 0 bytes"),
        (OutgoingMessage("t", b"x" * 5_000_000), "body has 5000000 bytes"),
        (OutgoingMessage("t", "\ud800"), "cannot be encoded"),
        (OutgoingMessage("t", 5), "body is int"),  # type: ignore[arg-type]
        (OutgoingMessage("t", b"x", key=17), "key is int 17; allowed: str"),  # type: ignore[arg-type]
        (OutgoingMessage(5, b"x"), "topic is int 5; allowed: str"),  # type: ignore[arg-type]
        (OutgoingMessage("t", b"x", tags=["a"]), "tags is list ['a']; allowed: str"),  # type: ignore[arg-type]
        (OutgoingMessage("t", b"x", tags="\ud800"), "tags is '\\ud800'; allowed: text that UTF-8 can carry"),
        (OutgoingMessage(None, b"x", key="\ud800"), "key is '\\ud800'; allowed"),  # type: ignore[arg-type]
        (
            OutgoingMessage("t", b"x", properties={"a": 1}),  # type: ignore[dict-item]
            "the value of property 'a' is int 1; allowed: str",
        ),
        (
            OutgoingMessage("t", b"x", properties={1: "a"}),  # type: ignore[dict-item]
            "the name of a property is int 1; allowed: str",
        ),
        (
            OutgoingMessage("t", b"x", properties={"a": "\ud800"}),
            "the value of property 'a' is '\\ud800'; allowed: text that UTF-8 can carry",
        ),
    ],
)
def test_what_the_wire_cannot_carry_is_named(message: OutgoingMessage, text: str) -> None:
    with pytest.raises(InvalidMessageError) as raised:
        encoded(message)
    assert text in str(raised.value)
    assert raised.value.code == 11


def test_results_with_and_without_our_fields() -> None:
    complete = producer_idl.Result(code=0, msg="OK", messageId="ab", queueId=2, offset=5, durability=1)
    old = producer_idl.Result(code=12, msg="FAILED: é", key="ignored", delayId="ignored")
    result = producer_idl.ProducerService.sendBatch_result(success=[complete, old])
    first, second = producing.read_results(answer("sendBatch", 7, result), 7, b"sendBatch")
    assert (first.message_id, first.queue_id, first.offset) == ("ab", 2, 5)
    assert first.durability_class is not None
    assert first.durability_class.name == "DURABLE"
    assert (second.code, second.text, second.message_id, second.durability_class) == (
        12, "FAILED: é", None, None,
    )  # fmt: skip


def test_pull_and_submit_requests() -> None:
    pending = PendingAcks(1000)
    for offset in (1, 2):
        pending.add_success(Origin("g", "t", "q0"), offset, offset * 10, 0.0)
    pending.add_failure(Origin("g", "t", "q0"), 3, 30, None, 0.0)
    pending.add_failure(Origin("g", "t", "q0"), 4, 40, 500, 0.0)
    extended = Message()
    extended.offset, extended.lease_id = 5, 50
    extended.delivery = DeliveryContext(Origin("g", "t", "q0"), 0.0, None, NothingToSettle())
    pending.add_extension(extended, 0.0)
    pending.add_success(Origin("g", "u", "q1"), 9, None, 0.0)  # from an old proxy: no lease
    acks = pending.take_batch()
    assert acks is not None
    frame = consuming.pull_frame(SETTINGS, "t", 8, acks, 4)
    method, _, _, args = request(frame, consumer_idl.ConsumerService)
    pull = args.request
    assert (method, pull.groupId, pull.topic, pull.maxBatchSize) == ("pull", "g", "t", 8)
    assert (pull.maxLingerTime, pull.clientId) == (500, "me")
    assert (pull.filterType, pull.filter) == ("SQL92", "a = 1")
    first, second = pull.result, pull.result.nextResult
    assert (first.context.groupId, first.context.topic, first.context.qid) == ("g", "t", "q0")
    assert (first.successOffsets, first.successLeases) == ([1, 2], [10, 20])
    assert (first.failOffsets, first.failLeases, first.failDelaysMs) == ([3, 4], [30, 40], [-1, 500])
    assert first.extendLeases == [50]
    assert (second.successOffsets, second.failOffsets, second.nextResult) == ([9], [], None)
    assert second.successLeases is second.failLeases is second.failDelaysMs is second.extendLeases is None
    method, _, _, args = request(consuming.submit_frame(acks, 4), consumer_idl.ConsumerService)
    assert method == "submit"
    assert args.result.nextResult.context.topic == "u"
    _, _, _, args = request(consuming.pull_frame(SETTINGS, None, 8, None, 4), consumer_idl.ConsumerService)
    assert args.request.topic is args.request.result is None


def pulled(*messages: Any) -> bytes:
    context = consumer_idl.Context("g", "t", "q0") if messages else consumer_idl.Context()
    response = consumer_idl.PullResponse(context=context, messages=list(messages))
    return answer("pull", 3, consumer_idl.ConsumerService.pull_result(success=response))


def test_pulled_messages() -> None:
    full = consumer_idl.Message(
        key="k", value=b"\xff\x00", tag="a||b", offset=5, properties={"p": "ü"}, messageId="ab",
        leaseId=77, attempt=2, bornMs=3, storedMs=4, nextOffset=9,
    )  # fmt: skip
    old = consumer_idl.Message(key="", value=b"x", tag="*", offset=6)
    origin, (first, second), lease_ms, unapplied, notice = consuming.read_pulled(pulled(full, old), 3)
    assert (lease_ms, unapplied, notice) == (None, [], "")
    assert origin == ("g", "t", "q0")
    assert (first.key, first.body, first.tags, first.offset) == ("k", b"\xff\x00", "a||b", 5)
    assert (first.properties, first.message_id, first.lease_id, first.attempt) == ({"p": "ü"}, "ab", 77, 2)
    assert (first.born_ms, first.stored_ms, first.next_offset) == (3, 4, 9)
    assert (second.properties, second.lease_id, second.attempt) == ({}, None, None)
    assert second.text() == "x"
    assert not consuming.read_pulled(pulled(), 3).messages


def test_rejections_and_errors() -> None:
    error = consumer_idl.PullException(code=4, message="no such filter")
    refused = answer("pull", 3, consumer_idl.ConsumerService.pull_result(error=error))
    with pytest.raises(PullError, match="no such filter") as raised:
        consuming.read_pulled(refused, 3)
    assert raised.value.code == 4
    exception = answer("pull", 3, TApplicationException(6, "broken"), TMessageType.EXCEPTION)
    with pytest.raises(ProxyCallError, match="broken") as fell:
        consuming.read_pulled(exception, 3)
    assert fell.value.kind == 6
    with pytest.raises(FrameError, match="answer to request 3, expected 4"):
        consuming.read_pulled(pulled(), 4)
    with pytest.raises(FrameError, match="without a result"):
        consuming.read_submitted(answer("submit", 3, consumer_idl.ConsumerService.submit_result()), 3)
    assert consuming.read_submitted(
        answer("submit", 3, consumer_idl.ConsumerService.submit_result(success=True)), 3
    )


GOOD = pulled(*[consumer_idl.Message(key="k", value=b"v" * 20, tag="t", offset=at) for at in range(3)])


@settings(FIXED, max_examples=examples(500))
@given(st.data())
def test_mutated_answers_end_in_messages_or_a_clean_error(data: st.DataObject) -> None:
    payload = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        consuming.read_pulled(bytes(payload[: data.draw(st.integers(0, len(payload)))]), 3)
    except (FrameError, ProxyCallError, PullError):
        pass


def test_a_promised_huge_list_takes_no_memory() -> None:
    head = answer("pull", 3, consumer_idl.ConsumerService.pull_result())[:-1]
    huge = head + b"\x0c\x00\x29\xfc\xff\xff\xff\xff\x07"  # success, field 2, list of 2**31 - 1 structs
    with pytest.raises(FrameError):
        consuming.read_pulled(huge, 3)
