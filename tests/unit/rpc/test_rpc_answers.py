"""Every complete frame gets its answer, with the caller's sequence id and protocol."""

from __future__ import annotations

import ssl
from typing import Any

import gevent
import pytest
from rpc_support import (
    CONSUMER,
    OK,
    PRODUCER,
    C,
    Client,
    P,
    Stage,
    Transport,
    recordings,
    send_async,
    send_oneway,
    send_sync,
    stage,
)
from thriftpy2.protocol import TBinaryProtocolFactory, TCompactProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TFramedTransportFactory

from ddmq_client.idl import consumer, producer
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, ErrorKind, Service, Wire
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import constant_result
from ddmq_rpc.envelope import CALL, EXCEPTION, ONEWAY, REPLY, Envelope, read_header, sequence_bytes
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits
from tests.support.certificates import PEM
from tests.support.waits import until

pytestmark = pytest.mark.usefixtures("transport")

WIRES = list(Wire)


@pytest.fixture
def one() -> Any:
    with stage() as running:
        yield running


def error_of(client: Client, frame: bytes) -> tuple[int, str]:
    """Kind and text of the exception that `frame` is answered with; the client's next call must work."""
    with pytest.raises(ReplyError) as caught:
        client.call(frame)
    assert client.call(send_sync(5)).sequence == 5
    return caught.value.kind, caught.value.text


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("sequence", [0, 1, 128, 1 << 30, -1])
def test_an_answer_has_the_callers_sequence_and_protocol(one: Stage, wire: Wire, sequence: int) -> None:
    reply = one.client().call(send_sync(sequence, wire))
    assert (reply.wire, reply.name, reply.sequence) == (wire, "sendSync", sequence)
    assert reply.result.success == P.Result(code=0, msg=b"OK")
    assert one.received_args[0].message.body == b"body"
    assert one.received_args[0].timeout == 50


def test_protocols_may_change_on_one_connection(one: Stage) -> None:
    client = one.client()
    for wire in (Wire.COMPACT, Wire.BINARY, Wire.COMPACT):
        assert client.call(send_sync(1, wire)).wire is wire


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_may_come_later_and_from_elsewhere(one: Stage, wire: Wire) -> None:
    client = one.client()
    client.send(send_async(9, wire))
    one.waits_for(1)
    call = one.calls[0]
    assert (call.open, call.wire, call.frame_bytes) == (True, wire, len(send_async(9, wire)))
    assert call.peer == "{}:{}".format(*client.socket.getsockname())
    assert call.received_at == one.clock.monotonic()
    assert one.server.open_calls == 1
    ready = constant_result(producer, PRODUCER, "sendAsync", success=OK)
    gevent.spawn(call.reply_encoded, ready[call.wire])
    reply = decode_reply(producer, PRODUCER, client.read_frame())
    assert (reply.sequence, reply.result.success.code) == (9, 0)
    assert not call.open
    assert one.server.open_calls == 0


@pytest.mark.parametrize("wire", WIRES)
def test_a_large_answer_arrives_whole(one: Stage, wire: Wire) -> None:
    client = one.client()
    for size in (16_000, 17_000, 3_000_000):
        client.send(send_async(1, wire))
        one.waits_for(1)
        one.calls.pop().reply(P.Result(code=0, msg="x" * size))
        reply = decode_reply(producer, PRODUCER, client.read_frame())
        assert reply.result.success.msg == b"x" * size


@pytest.mark.parametrize("wire", WIRES)
def test_errors_of_the_request(one: Stage, wire: Wire) -> None:
    client = one.client()
    named = Envelope(b"noSuch", CALL).build_frame(wire, sequence_bytes(wire, 3), b"\x00")
    assert error_of(client, named) == (1, "unknown method 'noSuch'")
    unhandled = encode_call(producer, PRODUCER, "sendBatch", wire, messages=[])
    assert error_of(client, unhandled)[0] == 1
    missing = Envelope(b"sendSync", CALL).build_frame(wire, sequence_bytes(wire, 3), b"\x00")
    kind, text = error_of(client, missing)
    assert kind == 7
    assert "message" in text
    complete_frame = send_sync(3, wire)
    kind, text = error_of(client, (len(complete_frame) - 12).to_bytes(4, "big") + complete_frame[4:-8])
    assert kind == 7
    assert text.startswith("sendSync: arguments do not decode: ")
    for message_type in (REPLY, EXCEPTION, 7):
        body = Envelope(b"sendSync", message_type).build_frame(wire, sequence_bytes(wire, 3), b"\x00")
        assert error_of(client, body) == (
            7,
            f"message type is {message_type}; allowed: 1 (call) or 4 (oneway)",
        )
    assert one.errors("unknown_method") == 2
    assert one.errors("protocol_error") == 5


@pytest.mark.parametrize("wire", WIRES)
def test_error_answers_echo_name_sequence_and_protocol(one: Stage, wire: Wire) -> None:
    client = one.client()
    client.send(Envelope(b"noSuch", CALL).build_frame(wire, sequence_bytes(wire, 70_000), b"junk"))
    answer = client.read_frame()
    assert read_header(answer)[:4] == (wire, EXCEPTION, b"noSuch", sequence_bytes(wire, 70_000))


@pytest.mark.parametrize(
    "payload", [b"", b"G", b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x82", b"\x82\x21\xff"]
)
def test_garbage_is_answered_in_compact_with_sequence_0(one: Stage, payload: bytes) -> None:
    client = one.client()
    client.send(len(payload).to_bytes(4, "big") + payload)
    answer = client.read_frame()
    assert read_header(answer)[:4] == (Wire.COMPACT, EXCEPTION, b"", b"\x00")
    with pytest.raises(ReplyError) as caught:
        decode_reply(producer, PRODUCER, answer)
    assert caught.value.kind == 7
    assert client.call(send_sync(1)).sequence == 1


def test_linked_results_without_end_are_a_protocol_error() -> None:
    pulls: list[Call] = []
    service = Service(consumer, CONSUMER, {"submit": pulls.append})
    server = RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock())
    server.start()
    client = Client(server.address)
    deep = b"\x1c" + b"\xac" * 400_000
    client.send(Envelope(b"submit", CALL).build_frame(Wire.COMPACT, b"\x05", deep))
    with pytest.raises(ReplyError, match="recursion depth"):
        decode_reply(consumer, CONSUMER, client.read_frame())
    client.send(encode_call(consumer, CONSUMER, "submit", result=C.ConsumeResult()))
    until(lambda: pulls, "the next call is handled")
    pulls[0].throw(C.PullException(code=3, message="no"))
    result = decode_reply(consumer, CONSUMER, client.read_frame()).result
    assert (result.success, result.error) == (None, C.PullException(code=3, message=b"no"))
    client.close()
    server.close()


def test_a_handler_that_raises_is_an_internal_error(one: Stage, caplog: Any) -> None:
    client = one.client()
    frame = encode_call(producer, PRODUCER, "sendDelaySync", delayMessage=P.DelayMessage())
    assert error_of(client, frame) == (6, "sendDelaySync: internal error")
    assert one.errors("internal_error") == 1
    assert "the handler breaks" in caplog.text


def test_only_a_few_errors_are_logged_per_interval(one: Stage, caplog: Any) -> None:
    client = one.client()
    frame = encode_call(producer, PRODUCER, "sendDelaySync", delayMessage=P.DelayMessage())
    for _ in range(15):
        error_of(client, frame)
    assert (one.errors("internal_error"), len(caplog.records)) == (15, 10)
    one.clock.advance(10)
    error_of(client, frame)
    assert len(caplog.records) == 11


@pytest.mark.parametrize("value", [object(), P.Result(code="x"), P.Result(code=1 << 40), P.Result(msg=5)])
def test_an_answer_that_does_not_encode_is_an_internal_error(one: Stage, value: Any) -> None:
    client = one.client()
    client.send(send_async(2))
    one.waits_for(1)
    one.calls[0].reply(value)
    with pytest.raises(ReplyError) as caught:
        decode_reply(producer, PRODUCER, client.read_frame())
    assert caught.value.kind == 6


def test_only_methods_with_a_declared_exception_throw(one: Stage) -> None:
    one.client().send(send_async())
    one.waits_for(1)
    with pytest.raises(TypeError, match="declares no exception"):
        one.calls[0].throw(P.Result())
    one.calls[0].reply_error(ErrorKind.INTERNAL_ERROR, "an error ends it")
    assert not one.calls[0].open


def test_a_second_answer_is_a_bug(one: Stage) -> None:
    client = one.client()
    client.send(send_async())
    one.waits_for(1)
    one.calls[0].reply(OK)
    for answer_late in (
        lambda: one.calls[0].reply(OK),
        lambda: one.calls[0].reply_error(ErrorKind.INTERNAL_ERROR, "x"),
    ):
        with pytest.raises(RuntimeError, match="answered twice"):
            answer_late()
    client.read_frame()
    assert client.call(send_sync(4)).sequence == 4


def test_oneway_calls_get_no_answer(one: Stage, caplog: Any) -> None:
    client = one.client()
    client.send(send_oneway("a") + send_oneway("b") + send_sync(8))
    assert decode_reply(producer, PRODUCER, client.read_frame()).sequence == 8
    assert [call.args.message.topic for call in one.calls] == [b"a", b"b"]
    assert one.server.open_calls == 2
    one.calls[0].reply(None)
    one.calls[1].reply_error(ErrorKind.INTERNAL_ERROR, "nobody hears it")
    assert one.server.open_calls == 0
    assert client.call(send_sync(9)).sequence == 9
    assert caplog.text == ""


@pytest.mark.parametrize("wire", WIRES)
def test_bad_oneway_messages_are_counted_only(one: Stage, wire: Wire) -> None:
    client = one.client()
    zero = sequence_bytes(wire, 0)
    client.send(Envelope(b"noSuch", ONEWAY).build_frame(wire, zero, b"\x00"))
    client.send(Envelope(b"sendOneway", ONEWAY).build_frame(wire, zero, b"\x00"))
    client.send(Envelope(b"sendOneway", CALL).build_frame(wire, zero, b"\x00"))
    assert client.call(send_sync(9)).sequence == 9
    assert (one.errors("unknown_method"), one.errors("protocol_error")) == (1, 2)


def test_a_two_way_method_sent_as_oneway_is_answered_all_the_same(one: Stage) -> None:
    frame = bytearray(send_sync(3))
    frame[5] = ONEWAY << 5 | 1
    assert one.client().call(bytes(frame)).sequence == 3


def test_recorded_requests_of_every_client_are_answered() -> None:
    answers = {"submit": True, "ack": True, "getConsumeStats": [], "fetch": C.FetchResponse(results=[])}
    answers |= {"pull": C.PullResponse(context=C.Context(), messages=[])}
    sends = dict.fromkeys(["sendSync", "sendBatchSync"], OK)
    delays = {"sendDelaySync": P.DelayResult(code=21, msg="FAILED: none", uniqDelayMsgId="")}
    for idl, name, by_method in ((consumer, CONSUMER, answers), (producer, PRODUCER, {**sends, **delays})):
        handlers = {
            method: lambda call, value=value: call.reply(value) for method, value in by_method.items()
        }
        service = Service(idl, name, handlers)
        server = RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock(), Transport.port())
        server.start()
        client = Client(server.address, tls=Transport.client_context())
        for recorded in (each for each in recordings() if each.idl is idl):
            reply = client.call(recorded.request, idl, name)
            header = read_header(recorded.request)
            assert reply.name == header.name.decode()
            assert sequence_bytes(Wire.COMPACT, reply.sequence) == header.sequence
        client.close()
        server.close()


@pytest.mark.parametrize("wire", WIRES)
def test_thriftpy2s_own_client_calls_us(one: Stage, wire: Wire) -> None:
    host, port = one.server.address
    ssl_context = None
    if Transport.tls:
        ssl_context = ssl.create_default_context(cadata=PEM["ca.crt"])
    factory = TCompactProtocolFactory() if wire is Wire.COMPACT else TBinaryProtocolFactory()

    def talk() -> list[Any]:
        client = make_client(
            producer.ProducerService,
            host,
            port,
            proto_factory=factory,
            trans_factory=TFramedTransportFactory(),
            timeout=20_000,
            ssl_context=ssl_context,
        )
        message = producer.Message(topic="t", key="é", body=b"body", properties={"a": "ü"})
        client.sendOneway(message)
        answers = [client.sendSync(message, 50), client.sendBatchSync([message] * 3)]
        with pytest.raises(TApplicationException) as caught:
            client.sendBatch([message], 50)
        client.close()
        return [*answers, caught.value.type]

    # thriftpy2 has no cooperative sockets here: its client runs in a native thread
    first, second, kind = gevent.get_hub().threadpool.apply(talk)
    assert (first.code, first.msg, second.code, kind) == (0, "OK", 0, 1)
    assert one.received_args[0].message.key == "é".encode()
    assert one.received_args[0].message.properties == {b"a": "ü".encode()}
    assert len(one.received_args[1].messages) == 3
    assert len(one.calls) == 1


def test_handlers_must_be_of_the_idl() -> None:
    service = Service(producer, PRODUCER, {"sendSink": print})
    with pytest.raises(ValueError, match=r"no method 'sendSink'; allowed: .*sendAsync"):
        RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock())


def test_another_service_may_take_over_while_clients_are_connected() -> None:
    def answering(code: int) -> Service:
        return Service(producer, PRODUCER, {"sendSync": lambda call: call.reply(P.Result(code=code, msg=""))})

    server = RpcServer(answering(15), "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock())
    server.start()
    try:
        client = Client(server.address)
        for code, wire in ((15, Wire.COMPACT), (0, Wire.BINARY)):
            server.serve(answering(code))
            reply = client.call(send_sync(1, wire))
            assert reply.result.success.code == code
        client.socket.close()
    finally:
        server.close()
