"""A client is listed while it is there: until it says that it stops, or its last connection has ended."""

from __future__ import annotations

import pytest

from proxy_consumer.groups import consistency
from tests.service.consumer.consumer_rig import IDL, METHODS, ConsumerRig, FakeCall

ONE, TWO = "10.0.0.1:40001", "10.0.0.1:40002"


def pull_over(
    rig: ConsumerRig, peer: str, client: str | None = "c", group: str = "G", topic: str = "T"
) -> None:
    client_id = None if client is None else client.encode()
    request = IDL.PullRequest(groupId=group.encode(), topic=topic.encode(), clientId=client_id)
    call = FakeCall("pull", METHODS["pull"].args[0](request=request))
    call.peer = peer
    rig.handlers["pull"](call)
    rig.settle()


def close(rig: ConsumerRig, peer: str) -> None:
    on_closed = rig.service.service().on_closed
    assert on_closed is not None
    on_closed(peer)


def listed(rig: ConsumerRig, group: str = "G") -> dict[str, bool]:
    return {each.client_id: each.connected for each in rig.service.clients(group)}


@pytest.fixture
def ready(rig: ConsumerRig) -> ConsumerRig:
    return rig.ready()


def test_a_disconnected_client_frees_its_slot_for_others(
    ready: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "CLIENTS_MAX", 1)
    pull_over(ready, ONE)
    close(ready, ONE)
    ready.advance(consistency.RECONNECT_S + consistency.SWEEP_S)
    pull_over(ready, TWO, "d")
    assert listed(ready) == {"d": True}


def test_a_reconnected_client_keeps_its_first_pull_time(ready: ConsumerRig) -> None:
    pull_over(ready, ONE)
    (before,) = ready.service.clients("G")
    close(ready, ONE)
    ready.advance(consistency.RECONNECT_S - 1)
    pull_over(ready, TWO)
    ready.advance(30)
    (after,) = ready.service.clients("G")
    assert (after.since_ms, after.connected) == (before.since_ms, True)


def test_old_clients_that_connect_for_each_pull_do_not_flicker(ready: ConsumerRig) -> None:
    for port in range(3):
        peer = f"10.0.0.9:{port}"
        pull_over(ready, peer, None)
        close(ready, peer)
        ready.advance(consistency.AWAY_S - 1)
        assert listed(ready) == {"10.0.0.9": True}
    ready.advance(consistency.SWEEP_S + 1)
    assert listed(ready) == {}


def test_what_is_remembered_of_connections_is_bounded(
    ready: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consistency, "CONNECTIONS_MAX", 2)
    peers = [f"10.0.0.1:{port}" for port in range(5)]
    for peer in peers:
        pull_over(ready, peer)
    for peer in peers[:2]:
        close(ready, peer)
    ready.advance(consistency.RECONNECT_S)
    assert listed(ready) == {}
    pull_over(ready, peers[4])  # one that was not remembered pulls on
    ready.advance(consistency.RECONNECT_S)
    assert listed(ready) == {"c": True}


def test_a_difference_of_a_disconnected_client_is_not_listed(ready: ConsumerRig) -> None:
    request = IDL.PullRequest(groupId=b"G", topic=b"T", clientId=b"c", filterType=b"TAG", filter=b"a")
    call = FakeCall("pull", METHODS["pull"].args[0](request=request))
    call.peer = ONE
    ready.handlers["pull"](call)
    assert [each.client_id for each in ready.service.differences("G")] == ["c"]
    close(ready, ONE)
    ready.advance(consistency.RECONNECT_S)
    assert ready.service.differences("G") == []
