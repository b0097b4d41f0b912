"""Clients that are slow, many, half gone, or hold what others want; the bystander watches all the while."""

from __future__ import annotations

import resource
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ddmq.server.process.open_files import share_of_limit
from tests.interop.anyframe import I32, STRUCT
from tests.interop.apache_client import Client, PullRequest
from tests.scenarios.real_server import RealServer, running
from tests.service.hostile.attack import Attacker, encoded, message, pull_request, send_sync, text
from tests.service.hostile.conftest import PROMPT_S, Bystander
from tests.service.hostile.test_hostile_frames import connections, refused
from tests.support.waits import until

SLOW = 200
IDLE = 10_000
SPARE_FILES = 300


def test_many_slow_senders(server: RealServer) -> None:
    """A byte now and then on each; all are closed when a frame's time (1 s) is over."""
    before = refused(server, "slow_frame")
    frame = encoded("compact", b"sendSync", send_sync(message(body=text(bytes(100_000)))))
    attackers = [Attacker(server.ports["producer"]) for _ in range(SLOW)]
    for start in range(40):
        for attacker in attackers:
            attacker.send(frame[start : start + 1])
    until(lambda: refused(server, "slow_frame") >= before + SLOW, "all are closed")
    for attacker in attackers:
        assert attacker.closed()
        attacker.close()


def test_large_frames_of_many_that_arrive_together(server: RealServer) -> None:
    """More bytes under way than may be held at once (4 MiB here): each is answered all the same.

    On a busy machine the second half may come after a frame's time; such a connection is closed, and counted.
    """
    before = refused(server, "slow_frame")
    frame = encoded("compact", b"sendSync", send_sync(message(body=text(bytes(400_000)))))
    half = len(frame) // 2
    attackers = [Attacker(server.ports["producer"]) for _ in range(40)]
    codes: list[int] = []
    for attacker in attackers:
        attacker.send(frame[:half])

    def finish(attacker: Attacker) -> None:
        with suppress(ConnectionError):
            codes.append(attacker.call(frame[half:]).result.code)
        attacker.close()

    threads = [threading.Thread(target=finish, args=(attacker,)) for attacker in attackers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert set(codes) <= {0, 15}, codes
    assert len(codes) + refused(server, "slow_frame") - before == 40


# --- half-open


@pytest.mark.parametrize("component", ["producer", "consumer"])
def test_dead_peers_are_probed(server: RealServer, component: str) -> None:
    """A client whose machine is gone sends nothing, ever: the kernel's keepalive finds out."""
    with Attacker(server.ports[component]) as attacker:
        until(lambda: timer_of(server.ports[component], attacker.socket.getsockname()[1]) == 2, "keepalive")


def timer_of(local_port: int, remote_port: int) -> int | None:
    """The kernel's timer of the server's end of a connection: 2 is keepalive."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        ports = [int(address.partition(":")[2], 16) for address in words[1:3]]
        if ports == [local_port, remote_port]:
            return int(words[5].partition(":")[0], 16)
    return None


@pytest.mark.parametrize("how", ["half close", "reset", "close"])
def test_pulls_of_clients_that_went_take_nothing(server: RealServer, how: str) -> None:
    """They leave the line; the message that comes then goes to a client that lives."""
    group = f"went-{how.replace(' ', '-')}"
    server.admin("POST", "topics", group, body={"create": True})
    server.admin("POST", "groups", group, body={"topics": [group], "start": "last"})
    waiting = server.metric("ddmq_waiting_pulls")
    attackers = [Attacker(server.ports["consumer"]) for _ in range(20)]
    for attacker in attackers:
        request = pull_request(groupId=text(group), topic=text(group), maxLingerTime=(I32, 30_000))
        attacker.send(encoded("compact", b"pull", request))
    until(lambda: server.metric("ddmq_waiting_pulls") >= waiting + 20, "all wait")
    for attacker in attackers:
        if how == "half close":
            attacker.socket.shutdown(socket.SHUT_WR)
        elif how == "reset":
            attacker.vanish()
        else:
            attacker.close()
    until(lambda: server.metric("ddmq_waiting_pulls") <= waiting + 1, "none waits")
    with Client(server.ports["producer"]) as producer, Client(server.ports["consumer"]) as consumer:
        assert producer.send(group, b"for the living").code == 0
        answer = consumer.pull(group, maxLingerTime=20_000)
        assert [message.value for message in answer.messages] == [b"for the living"]
    for attacker in attackers:
        attacker.close()


def test_a_client_that_never_acknowledges_blocks_nobody(server: RealServer) -> None:
    """It pulls all it can get; the other group is not concerned, and its own other members go on."""
    server.admin("POST", "groups", "greedy", body={"topics": ["hostile"], "start": "last"})
    server.admin("POST", "groups", "other", body={"topics": ["hostile"], "start": "last"})
    with Client(server.ports["producer"]) as producer:
        for number in range(50):
            assert producer.send("hostile", b"%d" % number).code == 0
    with Client(server.ports["consumer"]) as greedy, Client(server.ports["consumer"]) as other:
        for client, group in ((greedy, "greedy"), (other, "other")):
            received = 0
            while received < 50:
                received += len(client.pull(group, maxLingerTime=5_000).messages)
            assert received == 50


# --- many


def idle_connections() -> int:
    """Ten thousand, or what the server's limit of open files leaves."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(share_of_limit(hard, 2, IDLE).connections, hard - SPARE_FILES)


def test_ten_thousand_idle_connections(tmp_path: Path) -> None:
    """The honest one is served as before; for one more, one that never sent a frame gives way."""
    count = idle_connections()
    with running(tmp_path) as server, Client(server.ports["producer"]) as honest:
        assert honest.send("t").code == 0
        idle = [
            socket.create_connection(("127.0.0.1", server.ports["producer"]), 30) for _ in range(count - 1)
        ]
        until(lambda: connections(server, "producer") >= count, f"{count} connections")
        calm = slowest_of(honest, 50)
        assert calm < PROMPT_S
        with Client(server.ports["producer"]) as over:
            assert over.send("t").code == 0
        assert refused(server, "gave_way") == 1
        for connection in idle:
            connection.close()
        until(lambda: connections(server, "producer") == 1, "all are gone")
        with Client(server.ports["producer"]) as late:
            assert late.send("t").code == 0


def slowest_of(client: Client, sends: int) -> float:
    slowest = 0.0
    for _ in range(sends):
        began = time.monotonic()
        assert client.send("t").code == 0
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def test_hundreds_of_waiting_pulls(server: RealServer, bystander: Bystander) -> None:
    """Each polls an empty group as old clients do; all are answered empty in their time."""
    server.admin("POST", "topics", "silent", body={"create": True})
    server.admin("POST", "groups", "silent", body={"topics": ["silent"]})
    attackers = [Attacker(server.ports["consumer"]) for _ in range(300)]
    request = encoded("compact", b"pull", pull_request(groupId=text("silent"), maxLingerTime=(I32, 200)))
    for _ in range(3):
        for attacker in attackers:
            attacker.send(request)
        for attacker in attackers:
            assert attacker.read().result.messages == []
    for attacker in attackers:
        attacker.close()


def test_connections_that_come_and_go(server: RealServer) -> None:
    for _ in range(1_000):
        Attacker(server.ports["producer"]).close()
    with Client(server.ports["consumer"]) as client:
        assert client.call("pull", request=PullRequest(groupId="nobody")).messages == []


def test_oneway_floods_are_bounded(server: RealServer) -> None:
    """Nobody waits for these; the honest client still gets its turn."""
    frame = encoded("compact", b"sendOneway", {1: (STRUCT, message())}, kind=4)
    with Attacker(server.ports["producer"]) as attacker:
        for _ in range(20):
            attacker.send(frame * 200)
        assert attacker.call(encoded("compact", b"sendSync", send_sync())).result.code == 0
