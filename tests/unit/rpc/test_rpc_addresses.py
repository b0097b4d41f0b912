"""Connections and processor time by the address of the client, on a real server."""

from __future__ import annotations

import socket as stdlib_socket
from typing import Any

import pytest
from rpc_support import OK, Client, Stage, send_async, send_sync, stage
from test_rpc_misbehaviour import sequence_of

from ddmq_rpc.time_slices import AddressShare, TimeSlices
from tests.support.waits import until

pytestmark = pytest.mark.usefixtures("transport")

HOSTILE, HONEST = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def one() -> Any:
    with stage() as running:
        yield running


def share_of(one: Stage, address: str) -> AddressShare:
    return one.traffic.slices.shares[address]


def test_at_the_bound_the_longest_silent_connection_gives_way() -> None:
    with stage(connections_max=4) as one:
        silent = [one.client(HOSTILE) for _ in range(4)]
        until(lambda: one.connections == 4, "all are there")
        assert one.client(HONEST).call(send_sync(1)).sequence == 1
        assert silent[0].is_closed()
        assert one.client(HOSTILE).call(send_sync(2)).sequence == 2
        assert silent[1].is_closed()
        assert silent[2].call(send_sync(3)).sequence == 3
        assert (one.rejected("gave_way"), one.rejected("connections")) == (2, 0)


def test_at_the_bound_an_idle_connection_of_the_address_with_most_gives_way() -> None:
    with stage(connections_max=4) as one:
        hostile = [one.client(HOSTILE) for _ in range(4)]
        for client in hostile:
            client.call(send_sync(1))
        hostile[0].send(send_async(2))
        one.waits_for(1)
        assert [one.client(HONEST).call(send_sync(3)).sequence for _ in range(2)] == [3, 3]
        assert hostile[1].is_closed()
        assert hostile[2].is_closed()
        assert one.client(HONEST).is_closed()  # both addresses have two now
        assert one.rejected("connections") == 1
        one.calls[0].reply(OK)
        assert sequence_of(hostile[0].read_frame()) == 2


def test_connections_of_one_address_are_bounded() -> None:
    with stage(connections_max_per_address=2) as one:
        clients = [one.client(HOSTILE) for _ in range(2)]
        for client in clients:
            client.call(send_sync(1))
        assert one.client(HOSTILE).is_closed()
        assert one.rejected("connections_per_address") == 1
        assert one.client(HONEST).call(send_sync(2)).sequence == 2
        clients[0].close()
        until(lambda: one.connections == 2, "one leaves")
        late = one.client(HOSTILE)
        until(lambda: one.connections == 3, "it is there")
        assert one.client(HOSTILE).call(send_sync(3)).sequence == 3  # the silent one gave way
        assert late.is_closed()


def costly(one: Stage, monkeypatch: pytest.MonkeyPatch, cost_s: float = 0.05) -> None:
    """Requests of HOSTILE seem to take that long, by every clock."""
    traffic = one.traffic
    now = [0.0]
    answer = Stage._answer_now

    def handler(self: Stage, call: Any) -> None:
        now[0] += cost_s if call.peer.startswith(HOSTILE) else 0.0
        answer(self, call)

    monkeypatch.setattr(traffic, "stopwatch", lambda: now[0])
    monkeypatch.setattr(traffic, "cpu", lambda: now[0])
    traffic.slices._clock = lambda: now[0]
    for method in traffic.methods.values():
        if method.method.name == "sendSync":
            monkeypatch.setattr(method, "handler", lambda call: handler(one, call))


@pytest.mark.interpreted
def test_accepts_are_on_the_account_of_the_address(one: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each accept of HOSTILE seems to take 0.3 ms: two of them use up a slice, and others come first."""
    traffic, now = one.traffic, [0.0]
    used_up: list[str] = []

    def admit(address: str) -> bool:
        now[0] += 0.0003 if address == HOSTILE else 0.0
        return True

    monkeypatch.setattr(traffic, "admit_connection", admit)
    monkeypatch.setattr(traffic, "stopwatch", lambda: now[0])
    monkeypatch.setattr(TimeSlices, "end_slice", lambda _, share, *more: used_up.append(share.address))
    assert one.client(HONEST).call(send_sync(1)).sequence == 1
    storm = [
        stdlib_socket.create_connection(one.server.address, source_address=(HOSTILE, 0)) for _ in range(5)
    ]  # not by the hub: all of them wait to be accepted
    one.server._on_acceptable()
    assert (one.connections, used_up) == (3, [HOSTILE])
    until(lambda: one.connections == 6, "the others are accepted, too")
    for each in storm:
        each.close()
    until(lambda: one.connections == 1, "they have gone")


def test_a_costly_address_rests_and_others_are_served(one: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    costly(one, monkeypatch)
    honest, hostile = one.client(HONEST), [one.client(HOSTILE) for _ in range(5)]
    assert honest.call(send_sync(1)).sequence == 1
    assert [each.call(send_sync(n)).sequence for n, each in enumerate(hostile[:2])] == [0, 1]
    share = share_of(one, HOSTILE)
    assert (one.rejected("rested"), share.exhausted) == (1, True)
    for each in hostile:
        each.send(send_sync(7))
    until(lambda: len(share.waiting) == 5, "all of them wait")
    handled = len(one.received_args)
    for number in range(20):
        assert honest.call(send_sync(number)).sequence == number
    assert len(one.received_args) == handled + 20
    one.traffic.slices._clock = lambda: share.rest_until
    one.traffic.slices.run_round()
    assert sequence_of(hostile[0].read_frame()) == 7  # in the order in which they came


def test_large_and_pipelined_frames_wait_for_their_turn(one: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    costly(one, monkeypatch)
    honest, first, large, many = one.client(HONEST), *(one.client(HOSTILE) for _ in range(3))
    honest.call(send_sync(1))
    frame = send_sync(9, key="k" * 300_000)
    large.send(frame[:1000])
    share = share_of(one, HOSTILE)
    until(lambda: len(one.traffic.partial) == 1, "a part arrives")
    first.call(send_sync(1))
    first.call(send_sync(2))
    large.send(frame[1000:])
    many.send(send_sync(3) + send_sync(4))
    until(lambda: len(share.waiting) == 2, "both wait")
    slices = one.traffic.slices
    for _ in range(4):
        slices._clock = lambda: share.rest_until
        slices.run_round()
    assert sequence_of(large.read_frame()) == 9
    assert [sequence_of(many.read_frame()) for _ in range(2)] == [3, 4]
    assert len(one.traffic.partial) == 0


def test_a_waiting_connection_that_goes_is_passed_over(one: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    costly(one, monkeypatch)
    honest, first, second = one.client(HONEST), one.client(HOSTILE), one.client(HOSTILE)
    honest.call(send_sync(1))
    first.call(send_sync(1))
    first.call(send_sync(2))
    second.send(send_sync(3))
    share = share_of(one, HOSTILE)
    until(lambda: len(share.waiting) == 1, "it waits")
    for connection in list(share.members):
        connection.close()
    slices = one.traffic.slices
    slices._clock = lambda: share.rest_until
    slices.run_round()
    assert list(slices.shares) == [HONEST]


def test_many_clients_of_two_addresses_are_all_answered(one: Stage) -> None:
    """Real clocks: nothing is lost or answered twice where turns are waited for."""
    clients: list[Client] = [one.client(each) for each in (HOSTILE, HONEST) for _ in range(20)]
    for number in range(30):
        for client in clients:
            client.send(send_sync(number) + send_sync(number + 1))
        for client in clients:
            assert [sequence_of(client.read_frame()) for _ in range(2)] == [number, number + 1]
    assert len(one.received_args) == 40 * 30 * 2
