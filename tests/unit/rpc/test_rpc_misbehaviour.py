"""Clients that stall, flood, vanish or lie: each costs itself, is counted, and the others go on."""

from __future__ import annotations

import errno
import os
import resource
from struct import pack
from typing import Any

import gevent
import pytest
from gevent import socket
from rpc_support import OK, PRODUCER, Client, P, Stage, send_async, send_oneway, send_sync, stage

from ddmq_client.idl import producer
from ddmq_common.errors import ConfigError
from ddmq_rpc import server
from ddmq_rpc.api import Call, Wire
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.traffic import RpcLimits
from tests.support.waits import until

pytestmark = pytest.mark.usefixtures("transport")

FLOOD = 2_000  # calls that one client sends at once


@pytest.fixture
def one() -> Any:
    with stage() as running:
        yield running


def sequence_of(frame: bytes) -> int:
    return decode_reply(producer, PRODUCER, frame).sequence


# --- frames


@pytest.mark.parametrize("length", [-1, -(1 << 31), 5_000_001, (1 << 31) - 1, 0x47455420])
def test_impossible_lengths_close_that_connection_only(one: Stage, length: int) -> None:
    bad, good = one.client(), one.client()
    bad.send(pack(">i", length))
    assert bad.is_closed()
    assert one.rejected("frame_length") == 1
    assert good.call(send_sync(1)).sequence == 1


def test_an_impossible_length_behind_good_frames(one: Stage) -> None:
    client = one.client()
    client.send(send_sync(1) + send_sync(2) + pack(">i", -5))
    assert [sequence_of(client.read_frame()) for _ in range(2)] == [1, 2]
    assert client.is_closed()


def test_a_frame_that_comes_byte_by_byte(one: Stage) -> None:
    client = one.client()
    frame = send_sync(6)
    for at in range(len(frame)):
        client.send(frame[at : at + 1])
        gevent.sleep(0)
    assert sequence_of(client.read_frame()) == 6


def test_a_slow_sender_is_closed_by_the_sweep(one: Stage) -> None:
    slow, idle = one.client(), one.client()
    idle.call(send_sync(1))
    slow.send(send_sync(1)[:-1])
    until(lambda: len(one.traffic.partial) == 1, "the part arrives")
    one.clock.advance(9.9)
    one.server.close_slow_connections()
    slow.send(b"")
    assert one.rejected("slow_frame") == 0
    one.clock.advance(0.2)
    one.server.close_slow_connections()
    assert slow.is_closed()
    assert one.rejected("slow_frame") == 1
    assert idle.call(send_sync(2)).sequence == 2


def test_time_to_send_a_frame_starts_with_its_first_byte(one: Stage) -> None:
    client = one.client()
    frame = send_sync(1)
    for at in range(3):
        client.send(frame[at : at + 1])
        until(lambda at=at: one.traffic.partial.total == at + 1, "the byte arrives")
        one.clock.advance(4)
    one.server.close_slow_connections()
    assert client.is_closed()


def test_pipelined_frames_are_answered_in_order(one: Stage) -> None:
    client = one.client()
    client.send(send_async(1) + send_sync(2) + send_async(3) + send_sync(4))
    one.waits_for(1)
    assert one.server.open_calls == 1  # one at a time
    one.calls[0].reply(OK)
    assert [sequence_of(client.read_frame()) for _ in range(2)] == [1, 2]
    one.waits_for(2)
    client.send(send_sync(5))
    one.calls[1].reply(OK)
    assert [sequence_of(client.read_frame()) for _ in range(3)] == [3, 4, 5]


def test_reading_ahead_is_bounded(one: Stage) -> None:
    client = one.client()
    client.send(send_async(1))
    one.waits_for(1)
    count = 4_000
    sender = gevent.spawn(client.send, send_sync(2) * count)
    (connection,) = one.traffic.connections
    until(lambda: connection._frames.buffered_bytes >= 16 << 10, "it reads ahead")
    for _ in range(50):
        gevent.sleep(0)
    assert connection._frames.buffered_bytes <= 32 << 10
    one.calls[0].reply(OK)
    assert sequence_of(client.read_frame()) == 1
    assert all(sequence_of(client.read_frame()) == 2 for _ in range(count))
    sender.get(timeout=20)


def test_a_flood_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddmq_rpc.connections.FRAMES_PER_WAKEUP", 2)
    with stage() as one:
        flood, other = one.client(), one.client()
        until(lambda: one.connections == 2, "both are connected")
        flood.send(send_sync(1, key="flood") * FLOOD)
        other.send(send_sync(2, key="other"))
        assert sequence_of(other.read_frame()) == 2
        until(lambda: len(one.received_args) == FLOOD + 1, "all are handled")
        order = [args.message.key for args in one.received_args]
        assert order.index(b"other") < FLOOD * 3 // 4
        for _ in range(FLOOD):
            flood.read_frame()


def test_a_costly_request_makes_its_connection_rest(one: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter(range(100))
    monkeypatch.setattr(one.traffic, "cpu", lambda: next(spent) / 40)
    client, other = one.client(), one.client()
    message = P.Message(topic="t", body=bytes(100_000))
    batch = encode_call(producer, PRODUCER, "sendBatchSync", sequence=1, messages=[message])
    client.send(batch + send_sync(2))
    assert sequence_of(client.read_frame()) == 1
    assert one.rejected("rested") == 1
    assert other.call(send_sync(3)).sequence == 3
    assert len(one.received_args) == 2  # the second one of the first client waits
    assert sequence_of(client.read_frame()) == 2


def test_a_frame_of_tiny_elements_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddmq_rpc.traffic.DECODE_CPU_S", 0.001)
    with stage() as one:
        properties = {b"%d" % n: b"" for n in range(15_000)}
        many = [P.Message(properties=properties)] * 20
        for wire in Wire:
            frame = encode_call(producer, PRODUCER, "sendBatchSync", wire, messages=many)
            client = one.client()
            with pytest.raises(ReplyError, match="too many small elements"):
                client.call(frame)
            assert client.call(send_sync(1)).sequence == 1


# --- clients that go


@pytest.mark.parametrize("how", ["close", "half_close", "reset"])
def test_a_client_that_goes_while_waiting_is_noticed(one: Stage, how: str) -> None:
    client = one.client()
    client.send(send_async())
    one.waits_for(1)
    abandoned: list[Call] = []
    one.calls[0].on_abandoned = abandoned.append
    leave(client, how)
    until(lambda: abandoned, "the handler is told")
    assert abandoned == one.calls
    assert not one.calls[0].open
    assert one.server.open_calls == 0
    assert one.abandoned == 0
    one.calls[0].reply(OK)
    assert one.abandoned == 1
    assert one.connections == 0


def leave(client: Client, how: str) -> None:
    if how == "half_close":
        client.socket.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
    client.close()


def test_bytes_of_abandoned_work_count_until_it_ends(one: Stage) -> None:
    client = one.client()
    client.send(send_async(body=bytes(1_000)))
    one.waits_for(1)
    client.close()
    until(lambda: not one.calls[0].open, "the server notices")
    assert one.server.open_calls == 1
    assert one.traffic.open_bytes > 1_000
    one.calls[0].reply(OK)
    assert (one.server.open_calls, one.traffic.open_bytes, one.abandoned) == (0, 0, 1)


def test_a_broken_on_abandoned_harms_nobody(one: Stage, caplog: Any) -> None:
    client = one.client()
    client.send(send_async())
    one.waits_for(1)
    one.calls[0].on_abandoned = lambda call: 1 / 0
    client.close()
    until(lambda: one.connections == 0, "the server notices")
    assert "on_abandoned of sendAsync failed" in caplog.text
    assert one.client().call(send_sync(1)).sequence == 1


def test_a_client_that_does_not_read_is_closed_in_time(one: Stage) -> None:
    deaf, other = one.client(), one.client()
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    deaf.send(send_async(1))
    one.waits_for(1)
    one.calls[0].reply(P.Result(code=0, msg="x" * 12_000_000))
    assert one.traffic.unsent.total > 1_000_000
    assert other.call(send_sync(2)).sequence == 2
    one.clock.advance(11)
    one.server.close_slow_connections()
    assert one.rejected("slow_reader") == 1
    assert one.traffic.unsent.total == 0
    assert one.connections == 1


def test_unread_answers_in_sum_are_bounded() -> None:
    with stage(unsent_bytes_max=30_000_000) as one:
        deaf = [one.client() for _ in range(3)]
        for number, client in enumerate(deaf):
            client.send(send_async(number))
            one.waits_for(number + 1)
            one.calls[number].reply(P.Result(code=0, msg="x" * 16_000_000))
        assert one.rejected("unread_answers") >= 1
        assert one.traffic.unsent.total <= 30_000_000
        assert sequence_of(deaf[2].read_frame()) == 2


# --- bounds


def test_connections_above_the_bound_are_accepted_and_closed() -> None:
    with stage(connections_max=2) as one:
        clients = [one.client(), one.client()]
        assert [client.call(send_sync(1)).sequence for client in clients] == [1, 1]
        assert one.client().is_closed()
        assert one.rejected("connections") == 1
        clients[0].close()
        until(lambda: one.connections == 1, "one leaves")
        assert one.client().call(send_sync(2)).sequence == 2


def test_at_the_byte_bound_the_next_call_waits() -> None:
    with stage(in_flight_bytes_max=1_000) as one:
        first, second, third = one.client(), one.client(), one.client()
        first.send(send_async(1, body=bytes(1_000)))
        one.waits_for(1)
        second.send(send_sync(2) + send_sync(3))
        until(lambda: len(one.traffic.partial) == 1, "the second waits")
        third.send(send_async(4))
        until(lambda: len(one.traffic.partial) == 2, "the third waits")
        assert one.received_args == []
        one.calls[0].reply(OK)
        assert sequence_of(second.read_frame()) == 2
        assert sequence_of(second.read_frame()) == 3
        one.waits_for(2)
        one.calls[1].reply(OK)
        assert sequence_of(third.read_frame()) == 4
        assert one.traffic.partial.total == 0


def test_a_client_that_goes_while_waiting_for_room() -> None:
    with stage(in_flight_bytes_max=1_000) as one:
        first, second = one.client(), one.client()
        first.send(send_async(1, body=bytes(1_000)))
        one.waits_for(1)
        second.send(send_sync(2))
        until(lambda: len(one.traffic.partial) == 1, "the second waits")
        second.close()
        until(lambda: one.connections == 1, "the server notices")
        one.calls[0].reply(OK)
        first.read_frame()
        assert one.received_args == []
        assert one.client().call(send_sync(3)).sequence == 3


def test_a_bad_length_behind_a_call_that_waited_for_room() -> None:
    with stage(in_flight_bytes_max=1_000) as one:
        first, bad, good = one.client(), one.client(), one.client()
        first.send(send_async(1, body=bytes(1_000)))
        one.waits_for(1)
        for number, (client, frame) in enumerate(
            ((bad, send_sync(2) + pack(">i", -1)), (good, send_sync(3)))
        ):
            client.send(frame)
            until(lambda number=number: len(one.traffic.partial) == number + 1, "it waits")
        one.calls[0].reply(OK)
        assert sequence_of(bad.read_frame()) == 2
        assert bad.is_closed()
        assert sequence_of(good.read_frame()) == 3


def test_at_the_partial_bound_only_the_oldest_reads_on() -> None:
    with stage(partial_bytes_max=50_000) as one:
        frame = send_sync(1, key=b"k" * 200_000)
        clients = [one.client() for _ in range(3)]
        for client in clients:
            client.send(frame[:40_000])
            gevent.sleep(0.01)
        traffic = one.traffic
        until(lambda: len(traffic.partial) == 3, "all have begun")
        senders = [gevent.spawn(client.send, frame[40_000:]) for client in clients]
        assert [sequence_of(client.read_frame()) for client in clients] == [1, 1, 1]
        gevent.joinall(senders, timeout=20, raise_error=True)
        assert traffic.partial.total == 0


def test_oneway_calls_of_one_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddmq_rpc.connections.ONEWAY_OPEN_MAX", 3)
    with stage() as one:
        client = one.client()
        client.send(send_oneway() * 5 + send_sync(6))
        one.waits_for(3)
        for _ in range(20):
            gevent.sleep(0)
        assert len(one.calls) == 3
        one.calls[1].reply(None)
        one.waits_for(4)
        for call in [one.calls[0], *one.calls[2:]]:
            call.reply(None)
        one.waits_for(5)
        one.calls[4].reply(None)
        assert sequence_of(client.read_frame()) == 6


def test_oneway_work_goes_on_when_its_client_leaves(one: Stage) -> None:
    client = one.client()
    client.send(send_oneway())
    one.waits_for(1)
    client.close()
    until(lambda: one.connections == 0, "the server notices")
    assert one.calls[0].open
    one.calls[0].reply(None)
    assert (one.server.open_calls, one.abandoned) == (0, 0)


def test_idle_connections_are_closed_when_asked_to() -> None:
    with stage(idle_s=60.0) as one:
        idle, waiting, active = one.client(), one.client(), one.client()
        waiting.send(send_async(7))
        one.waits_for(1)
        one.clock.advance(50)
        active.call(send_sync(1))
        idle_connected = one.connections
        assert idle_connected == 3
        one.clock.advance(20)
        one.server.close_slow_connections()
        assert idle.is_closed()
        never_called = one.rejected("no_first_call")  # ends sooner, with TLS
        assert one.rejected("idle") + never_called == 1
        one.calls[0].reply(OK)
        assert sequence_of(waiting.read_frame()) == 7
        assert active.call(send_sync(2)).sequence == 2


def test_out_of_descriptors_the_client_is_turned_away(one: Stage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    top = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    fillers = [os.dup(0) for _ in range(top)]  # no gap below the limit
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1, hard))
        waiting.connect(one.server.address)
        assert waiting.recv(1) == b""
        assert one.rejected("accept") >= 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
        waiting.close()
    assert one.client().call(send_sync(1)).sequence == 1


def test_without_any_descriptor_accepting_pauses(
    one: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even the spare one can be had again: no turn of the loop is spent on it, and it is logged once."""

    def none(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server, "ACCEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(server.os, "open", none)
    listener = one.server._listener
    for attempt in range(3):
        one.server._accept_failed(listener, OSError(errno.EMFILE, "Too many open files"))  # type: ignore[arg-type]
        assert not one.server._acceptor.active
        until(lambda: one.server._acceptor.active, f"accepting goes on, {attempt}")
    assert one.rejected("accept") == 3
    assert len([record for record in caplog.records if record.message == "accept failed"]) == 1
    monkeypatch.undo()
    assert one.client().call(send_sync(1)).sequence == 1


# --- start and stop


def test_stopping_lets_open_calls_finish(one: Stage) -> None:
    client = one.client()
    client.send(send_async(1))
    one.waits_for(1)
    address = one.server.address
    one.server.stop_accepting()
    one.server.stop_accepting()
    with pytest.raises(OSError):
        Client(address)
    assert one.server.open_calls == 1
    one.calls[0].reply(OK)
    assert sequence_of(client.read_frame()) == 1
    assert client.call(send_sync(2)).sequence == 2
    one.server.close()
    assert client.is_closed()
    assert one.traffic.connections == set()


def test_an_address_in_use_is_a_configuration_error(one: Stage) -> None:
    host, port = one.server.address
    with stage() as other:
        other.server.close()
        other.server._host, other.server._port = host, port
        with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: "):
            other.server.start()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"frame_bytes_max": 0}, "frame_bytes_max is 0; allowed: at least 1"),
        ({"frame_bytes_max": 1 << 31}, "at most 2,147,483,647"),
        ({"frame_read_s": 0.0}, "frame_read_s is 0.0; allowed: at least 0.001"),
        ({"idle_s": -1.0}, "idle_s is -1.0; allowed: at least 0"),
        ({"frame_read_s": float("nan")}, "frame_read_s is nan"),
    ],
)
def test_limits_are_checked(limits: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RpcLimits(**limits)
