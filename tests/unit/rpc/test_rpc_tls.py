"""Ports that offer or require TLS: whom they let in, what they tell the others, and who must give way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent import ssl as gevent_ssl
from rpc_support import (
    OK,
    PRODUCER,
    WAIT_S,
    Client,
    Stage,
    client_context,
    send_async,
    send_oneway,
    send_sync,
    tls_port,
)

from ddmq_client.idl import producer
from ddmq_common.security.certificate_names import CertificateNames
from ddmq_common.security.certificates import CertificateFiles
from ddmq_common.security.settings import TlsConfig
from ddmq_rpc import newcomers
from ddmq_rpc.api import ErrorKind, Wire
from ddmq_rpc.client_side import ReplyError, decode_reply
from ddmq_rpc.envelope import ONEWAY
from ddmq_rpc.plain_rejection import TEXT
from ddmq_rpc.server import RpcLimits
from ddmq_rpc.traffic import TlsPort
from tests.support.certificates import write_certificates, write_pair
from tests.support.waits import until

HELLO = b"\x16\x03\x01\x02\x00"  # the head of a ClientHello that never comes


def run_stage(tls: TlsPort) -> Iterator[Stage]:
    running = Stage(RpcLimits(), tls)
    yield running
    for client in running.clients:
        client.close()
    running.server.close()
    assert running.connections == 0
    assert len(running.traffic.newcomers) == 0


@pytest.fixture
def required() -> Iterator[Stage]:
    yield from run_stage(tls_port())


@pytest.fixture
def optional() -> Iterator[Stage]:
    yield from run_stage(tls_port(required=False))


def secure_client(stage: Stage, **options: Any) -> Client:
    client = Client(stage.server.address, tls=client_context(**options))
    stage.clients.append(client)
    return client


# --- the first byte


def test_an_optional_port_serves_both(optional: Stage) -> None:
    plain, secure = optional.raw_client(), secure_client(optional)
    assert plain.call(send_sync(1)).sequence == 1
    assert secure.call(send_sync(2)).sequence == 2
    assert plain.call(send_sync(3, Wire.BINARY)).sequence == 3


def test_a_plain_client_may_send_its_first_frame_byte_by_byte(optional: Stage) -> None:
    plain = optional.raw_client()
    for byte in send_sync(1):
        plain.send(bytes([byte]))
        gevent.sleep(0)
    assert decode_reply(producer, PRODUCER, plain.read_frame()).sequence == 1


@pytest.mark.parametrize("wire", Wire)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in pieces"])
def test_a_required_port_tells_a_plain_client_why(required: Stage, wire: Wire, whole: bool) -> None:
    client = required.raw_client()
    frame = send_sync(7, wire)
    for at in range(0, len(frame), len(frame) if whole else 5):
        client.send(frame[at : at + (len(frame) if whole else 5)])
        gevent.sleep(0)
    with pytest.raises(ReplyError) as caught:
        decode_reply(producer, PRODUCER, client.read_frame())
    assert caught.value.text == TEXT
    assert caught.value.kind == ErrorKind.PROTOCOL_ERROR
    assert client.is_closed()
    assert required.received_args == []
    assert required.rejected("plain_text") == 1


def test_a_long_plain_call_is_answered_after_its_header(required: Stage) -> None:
    client = required.raw_client()
    client.send(send_async(3, body=bytes(4_000_000))[:2_000])
    with pytest.raises(ReplyError, match="requires TLS"):
        decode_reply(producer, PRODUCER, client.read_frame())
    client.send(bytes(100_000))  # is read and dropped, so that the answer is not lost
    assert client.is_closed()


def test_a_plain_client_that_goes_on_is_closed_in_time(required: Stage) -> None:
    client = required.raw_client()
    client.send(send_sync(1))
    client.read_frame()
    required.clock.advance(newcomers.FIRST_CALL_S + 1)
    required.server.close_slow_connections()
    until(lambda: required.connections == 0, "it is closed")


def test_a_plain_oneway_call_has_no_answer(required: Stage) -> None:
    client, frame = required.raw_client(), bytearray(send_oneway())
    frame[5] = ONEWAY << 5 | 1  # Apache's clients state it
    client.send(bytes(frame))
    assert client.is_closed()
    assert required.calls == []


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x00\x00\x00\x04junk"])
def test_what_is_neither_gets_an_end(required: Stage, garbage: bytes) -> None:
    client = required.raw_client()
    client.send(garbage)
    client.socket.settimeout(WAIT_S)
    while client.socket.recv(4096):
        pass


# --- handshakes that fail, or never end


@pytest.mark.parametrize("garbage", [HELLO[:1] + bytes(40), HELLO[:3] + b"\xff\xff" + bytes(60)])
def test_garbage_after_the_first_byte_ends_that_connection(required: Stage, garbage: bytes) -> None:
    client = required.raw_client()
    client.send(garbage)
    until(lambda: required.rejected("tls") == 1, "it is counted")
    until(lambda: required.connections == 0, "it is closed")
    assert secure_client(required).call(send_sync(1)).sequence == 1


def test_an_old_version_is_told_so(required: Stage) -> None:
    old = client_context()
    old.minimum_version = old.maximum_version = gevent_ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(gevent_ssl.SSLError, match="PROTOCOL_VERSION"):
        Client(required.server.address, tls=old)


@pytest.mark.parametrize("begin", [b"", HELLO[:1], HELLO, b"\x00"])
def test_a_connection_without_a_call_ends_after_five_seconds(required: Stage, begin: bytes) -> None:
    half_open = required.raw_client()
    half_open.send(begin)
    served = secure_client(required)
    served.call(send_sync(1))
    until(lambda: len(required.traffic.newcomers) == 1, "the bytes arrive")
    required.clock.advance(newcomers.FIRST_CALL_S - 0.1)
    required.server.close_slow_connections()
    assert required.connections == 2
    required.clock.advance(0.2)
    required.server.close_slow_connections()
    assert half_open.is_closed()
    assert required.rejected("no_first_call") == 1
    assert served.call(send_sync(2)).sequence == 2


def test_a_first_call_that_is_on_its_way_has_the_time_of_a_frame(required: Stage) -> None:
    slow = secure_client(required)
    slow.send(send_sync(1)[:-1])
    until(lambda: len(required.traffic.partial) == 1, "the part arrives")
    required.clock.advance(newcomers.FIRST_CALL_S + 1)
    required.server.close_slow_connections()
    slow.send(send_sync(1)[-1:])
    assert decode_reply(producer, PRODUCER, slow.read_frame()).sequence == 1


def test_silent_connections_of_an_address_displace_each_other(
    required: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newcomers, "ADDRESS_MAX", 3)
    silent = [required.raw_client() for _ in range(3)]
    until(lambda: len(required.traffic.newcomers) == 3, "all are accepted")
    required.clock.advance(newcomers.SILENT_S)
    assert secure_client(required).call(send_sync(1)).sequence == 1
    assert silent[0].is_closed()
    assert required.rejected("gave_way") == 1
    assert required.connections == 3


def test_a_handshake_in_small_pieces_succeeds(required: Stage) -> None:
    """Each byte is a packet of its own, as of a client behind a bad link."""
    raw = socket.create_connection(required.server.address)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, outgoing = gevent_ssl.MemoryBIO(), gevent_ssl.MemoryBIO()
    client = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    raw.settimeout(WAIT_S)
    while True:
        try:
            client.do_handshake()
            break
        except gevent_ssl.SSLWantReadError:
            for byte in outgoing.read():
                raw.send(bytes([byte]))
                gevent.sleep(0)
            incoming.write(raw.recv(65_536))
    client.write(send_sync(5))
    raw.sendall(outgoing.read())
    incoming.write(raw.recv(65_536))
    answer = b""
    while not answer:
        try:
            answer = client.read(65_536)
        except gevent_ssl.SSLWantReadError:
            incoming.write(raw.recv(65_536))
    assert decode_reply(producer, PRODUCER, answer).sequence == 5
    raw.close()


# --- established connections


def test_a_truncated_end_costs_that_connection_only(required: Stage) -> None:
    client, other = secure_client(required), secure_client(required)
    client.send(send_async(1))
    required.waits_for(1)
    client.socket.shutdown(socket.SHUT_WR)  # without a close_notify
    until(lambda: required.connections == 1, "it is closed")
    required.calls[0].reply(OK)
    assert required.abandoned == 1
    assert other.call(send_sync(2)).sequence == 2


def test_oneway_calls_before_a_clean_end_are_handled(required: Stage) -> None:
    client = secure_client(required)
    client.send(send_oneway() * 3)
    client.socket.settimeout(WAIT_S)
    client.socket.unwrap()
    required.waits_for(3)
    until(lambda: required.connections == 0, "it is closed")


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_long_frames_and_answers(required: Stage, version: str) -> None:
    context = client_context()
    context.minimum_version = context.maximum_version = gevent_ssl.TLSVersion[version]
    client = Client(required.server.address, tls=context)
    required.clients.append(client)
    for size in (1, 16_384, 1_000_000):
        client.send(send_async(size, body=bytes(size)))
        until(lambda: required.calls, "the call arrives")
        call = required.calls.pop()
        assert len(call.args.message.body) == size
        call.reply_error(ErrorKind.INTERNAL_ERROR, "x" * size)
        with pytest.raises(ReplyError) as caught:
            decode_reply(producer, PRODUCER, client.read_frame())
        assert len(caught.value.text) == size


def test_a_client_that_does_not_read_is_closed_at_the_bound() -> None:
    running = Stage(RpcLimits(unsent_bytes_max=2_000_000), tls_port())
    deaf = Client(running.server.address, tls=client_context())
    deaf.send(send_async(1))
    running.waits_for(1)
    running.calls[0].reply_error(ErrorKind.INTERNAL_ERROR, "x" * 20_000_000)
    assert running.rejected("unread_answers") == 1
    honest = Client(running.server.address, tls=client_context())
    assert honest.call(send_sync(2)).sequence == 2
    for client in (deaf, honest):
        client.close()
    running.server.close()


def test_a_client_that_sends_without_reading_is_not_read_further(required: Stage) -> None:
    greedy = secure_client(required)
    greedy.socket.settimeout(0.5)
    frame = send_async(1, body=bytes(10_000))
    with pytest.raises(socket.timeout):
        greedy.send(frame * 2_000)  # more than the sockets take
    assert len(required.calls) == 1
    assert secure_client(required).call(send_sync(2)).sequence == 2


def test_an_incomplete_record_counts_as_an_incomplete_frame(required: Stage) -> None:
    client = secure_client(required)
    client.call(send_sync(1))
    raw = socket.socket(fileno=client.socket.detach())
    raw.sendall(b"\x17\x03\x03\x40\x00" + bytes(10_000))
    until(lambda: required.traffic.partial.total >= 10_000, "it is counted")
    required.clock.advance(11)
    required.server.close_slow_connections()
    assert required.rejected("slow_frame") == 1
    raw.close()


def test_renegotiation_is_refused(required: Stage) -> None:
    """`openssl s_client` asks for it with R; the Python library cannot."""
    context = client_context()
    context.maximum_version = gevent_ssl.TLSVersion.TLSv1_2
    client = Client(required.server.address, tls=context)
    assert client.call(send_sync(1)).sequence == 1
    assert required.traffic.tls.certificates.server_context.options & gevent_ssl.OP_NO_RENEGOTIATION
    client.close()


def test_many_connections_leave_no_garbage(required: Stage) -> None:
    """Requests leave no cycles behind, so the collector runs rarely; a cycle in a session would be a leak."""
    for number in range(3):
        secure_client(required).call(send_sync(number))
    required.clients[0].close()
    until(lambda: required.connections == 2, "it is closed")
    gc.collect()
    gc.disable()
    try:
        before = count_sessions()
        for number in range(20):
            client = Client(required.server.address, tls=client_context())
            client.call(send_sync(number))
            client.close()
        until(lambda: required.connections == 2, "all are closed")
        assert count_sessions() <= before
    finally:
        gc.enable()


def count_sessions() -> int:
    return sum(type(each).__name__ == "TlsSession" for each in gc.get_objects())


# --- certificates


def test_the_names_of_the_clients_certificate(required: Stage, tmp_path: Path) -> None:
    folder = write_certificates(tmp_path)
    client = secure_client(required, certificate="client", folder=folder)
    client.call(send_sync(1))
    (connection,) = required.traffic.connections
    assert connection.is_encrypted
    assert connection.identity.certificate_names == CertificateNames(
        ("ddmq:billing",), ("billing.example",), ("billing",)
    )


@pytest.mark.parametrize("name", ["stranger", "expired"])
def test_a_certificate_that_is_not_valid_is_rejected(required: Stage, tmp_path: Path, name: str) -> None:
    folder = write_certificates(tmp_path)
    with pytest.raises((gevent_ssl.SSLError, ConnectionResetError, AssertionError)):
        secure_client(required, certificate=name, folder=folder).call(send_sync(1))
    assert required.received_args == []
    assert required.rejected("tls") == 1


def test_new_connections_use_changed_files_and_open_ones_stay(tmp_path: Path) -> None:
    folder = write_certificates(tmp_path)
    outcomes: list[bool] = []
    files = CertificateFiles(TlsConfig(folder / "server.crt", folder / "server.key"), outcomes.append)
    running = Stage(RpcLimits(), TlsPort(files, required=True))

    def served_name(client: Client) -> str:
        (((_, name),),) = client.socket.getpeercert()["subject"]
        return str(name)

    def connect() -> Client:
        running.clients.append(Client(running.server.address, tls=client_context()))
        return running.clients[-1]

    old = connect()
    files.reload_changed()
    write_pair(folder, "renewed")
    files.reload_changed()
    new = connect()
    assert (served_name(old), served_name(new)) == ("localhost", "renewed")
    assert [client.call(send_sync(1)).sequence for client in (old, new)] == [1, 1]
    (folder / "server.crt").write_text("damaged")
    files.reload_changed()
    assert served_name(connect()) == "renewed"
    assert outcomes == [False, False, True]
    write_pair(folder, "server")
    files.reload_changed()
    assert served_name(connect()) == "localhost"
    assert outcomes[-1] is False
    for client in running.clients:
        client.close()
    running.server.close()
