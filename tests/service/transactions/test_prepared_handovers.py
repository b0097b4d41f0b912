"""A prepare while its shard moves, or its owner dies: never told as stored when nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
import pytest
from gevent.server import StreamServer
from gevent.socket import create_connection

from backend.completion import succeeded
from ddmq_common.names import HALF_TOPIC, TRANSACTION_GROUP
from proxy_producer.transactions.codec import shard_of
from proxy_producer.transactions.owners import is_closed
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    SHARDS,
    TransactionRig,
    body,
    prepare_request,
)
from tests.support.waits import until


def prepared(rig: TransactionRig, transaction: bytes, count: int = 1, **fields: Any) -> Any:
    messages = [body(b"%d" % number, producerId=b"p", sequence=number) for number in range(count)]
    return rig.proxy.call("sendPrepared", prepare_request(transaction, *messages, **fields))


@pytest.mark.parametrize("count", [1, 2])
def test_an_owner_that_was_deposed_meanwhile_does_not_know(memory: TransactionRig, count: int) -> None:
    """It is in the log; sent again it is found there, once."""
    transaction = memory.begin(body(b"first"))
    memory.memory.pause_writes()
    call = prepared(memory, transaction, count)
    memory.memory.depose(TRANSACTION_GROUP, HALF_TOPIC)
    memory.memory.resume_writes()
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 12
    assert "moved to another proxy" in str(call.answer.msg)
    memory.caught_up()
    resent = prepared(memory, transaction, count)
    until(lambda: bool(resent.answers), "it is answered")
    assert resent.answer.code == 0
    answer = memory.proxy.end(transaction, COMMIT, messages=1 + count)
    assert (answer.outcome, len(answer.results)) == (COMMITTED, 1 + count)


@pytest.mark.parametrize("count", [1, 2])
def test_a_planned_move_waits_for_what_is_on_its_way(memory: TransactionRig, count: int) -> None:
    transaction = memory.begin(body(b"first"))
    memory.memory.pause_writes()
    call = prepared(memory, transaction, count)
    memory.memory.revoke(TRANSACTION_GROUP, HALF_TOPIC, memory.clock.monotonic() + 30)
    memory.settle()
    assert not call.answers
    memory.memory.resume_writes()
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 0
    memory.caught_up()
    assert memory.proxy.end(transaction, COMMIT).outcome == COMMITTED
    assert len(memory.bodies()) == 1 + count


@pytest.mark.parametrize("count", [1, 2])
def test_a_prepare_behind_an_unread_message_is_answered_at_once_while_its_shard_moves(
    memory: TransactionRig, count: int
) -> None:
    """The shard reads nothing more, so nobody can say whose the message is."""
    transaction = memory.begin(body(b"first"))
    shard = shard_of(bytes.fromhex(transaction.decode()), SHARDS)
    memory.append_half(memory.new_id(shard), b"from an owner of before")
    memory.memory.pause_writes()
    call = prepared(memory, transaction, count)
    memory.memory.revoke(TRANSACTION_GROUP, HALF_TOPIC, memory.clock.monotonic() + 30)
    memory.settle()
    memory.memory.resume_writes()
    until(lambda: bool(call.answers), "it is answered before its time is up")
    assert call.answer.code == 12
    assert "moved to another proxy" in str(call.answer.msg)


@pytest.mark.parametrize("count", [1, 2])
def test_what_others_stored_before_it_is_read_before_it_is_answered(rig: TransactionRig, count: int) -> None:
    """An owner of before may have stored a message of a stranger, of whose transaction it then is."""
    rig.begin(body(b"elsewhere"))
    shard = next(owned.shard.number for owned in rig.proxy.proxy.transactions.list_ready_shards())
    strange = rig.new_id(shard)
    rig.append_half(strange, b"theirs", group="others")
    call = prepared(rig, strange, count)
    until(lambda: bool(call.answers) or rig.tick(), "it is answered")
    assert call.answer.code == 11
    assert "producer group" in str(call.answer.msg)


def owner_that(act: Callable[[Any], None]) -> StreamServer:
    """A proxy that takes one call and does this with its connection."""

    def serve(connection: Any, address: object) -> None:
        connection.recv(1 << 16)
        act(connection)
        connection.close()

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    return server


def test_a_call_that_the_owner_may_have_got_is_unknown(
    memory: TransactionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = memory.serve(2)
    transaction = memory.new_id(min(second.shards))
    silent = owner_that(lambda connection: None)
    try:
        owners = dict.fromkeys(range(SHARDS), f"127.0.0.1:{silent.server_port}")
        monkeypatch.setattr(first.proxy.transactions.owners, "fetch_addresses", lambda: succeeded(owners))
        refused = first.prepare(transaction, body(b"x"))
    finally:
        silent.stop()
    assert refused.code == 12
    assert "may or may not be stored" in str(refused.msg)
    assert first.proxy.flow.inflight == 0


def test_an_idle_connection_that_the_owner_has_closed_is_not_used(memory: TransactionRig) -> None:
    """It would be unknown whether the call arrived: 12, where the owner had only been restarted."""
    listening = owner_that(lambda connection: None)
    connection = create_connection(("127.0.0.1", listening.server_port))
    try:
        assert not is_closed(connection)
        connection.sendall(b"one call")
        until(lambda: is_closed(connection), "it is closed")
    finally:
        connection.close()
        listening.stop()


def test_a_first_prepare_waits_until_somebody_owns_the_shard(rig: TransactionRig) -> None:
    call = rig.proxy.call("sendPrepared", prepare_request(rig.new_id(), body(b"x")))
    gevent.sleep(0)
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 0
    assert rig.proxy.proxy.flow.inflight == 0
    assert rig.proxy.proxy.transactions.waiting == set()


def test_who_waits_for_an_owner_is_answered_at_half_of_the_time(
    memory: TransactionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at its end, when its client has gone."""
    memory.begin()
    transactions = memory.proxy.proxy.transactions
    monkeypatch.setattr(transactions, "find_shard_of", lambda transaction: None)
    monkeypatch.setattr(transactions.owners, "fetch_addresses", lambda: succeeded({}))
    call = prepared(memory, memory.new_id(), timeout=4_000)
    memory.clock.advance(1.9)
    transactions.retry_waiting()
    assert not call.answers
    memory.clock.advance(0.2)
    transactions.retry_waiting()
    assert call.answer.code == 15
    assert "has no owner now; the message is not stored" in str(call.answer.msg)
