"""Ready means ready; SIGTERM drains; a second one stops at once; parts come back."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.interop.apache_client import Client, PullRequest, done
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.waits import until


def prepared(server: RealServer) -> None:
    server.admin("POST", "topics", "t", body={"create": True})
    server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})


def test_ready_line_and_health(tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    server.ports = dict.fromkeys(server.ports, 0)  # it chooses, and says so
    try:
        server.start()
        for component in ("producer", "consumer"):
            Client(server.ports[component]).close()
        until(lambda: server.request("GET", "/ready")[0] == 200, "the delay levels are ready")
        assert server.admin("GET", "health")["alive"] is True
        assert "ddmq_rpc_connections" in server.request("GET", "/metrics")[1]
    finally:
        server.end()


def test_sigterm_drains(tmp_path: Path) -> None:
    """Waiting pulls are answered, what is leased may be acknowledged, sends are refused, then it ends."""
    config = write_config(tmp_path / "conf", proxy_consumer={"drain_leases_ms": 60_000})
    with running(tmp_path, config) as server:
        prepared(server)
        with Client(server.ports["producer"]) as producer:
            assert producer.send("t", b"kept").code == 0
        owner, waiter = (Client(server.ports["consumer"]) for _ in range(2))
        leased = owner.pull("g", maxLingerTime=10_000)
        waiter.send_request("pull", request=PullRequest(groupId="g", maxLingerTime=30_000))
        until(lambda: server.metric("ddmq_waiting_pulls") == 1, "it waits")
        server.terminate()
        assert waiter.answer("pull").messages == []
        status, answer = until(lambda: not_ready(server), "it says so")
        assert (status, answer["reason"]) == (503, "draining")
        with pytest.raises(Exception, match="Could not connect"):
            Client(server.ports["producer"])
        assert owner.submit(done(leased)) is True
        assert server.wait() == 0
        owner.close()
        waiter.close()
        server.start()
        with Client(server.ports["consumer"]) as client:
            assert client.pull("g", maxLingerTime=100).messages == [], "acknowledged while draining"


def not_ready(server: RealServer) -> tuple[int, dict[str, str]] | None:
    status, answer = server.request("GET", "/ready")
    return (status, answer) if status != 200 else None


def test_a_second_sigterm_stops_at_once(tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "conf", proxy_consumer={"drain_leases_ms": 60_000}, ddmq={"drain_ms": 60_000}
    )
    with running(tmp_path, config) as server:
        prepared(server)
        with Client(server.ports["producer"]) as producer, Client(server.ports["consumer"]) as consumer:
            assert producer.send("t").code == 0
            assert consumer.pull("g", maxLingerTime=10_000).messages
            server.terminate()
            until(lambda: not_ready(server), "it drains")
            began = time.monotonic()
            server.terminate()
            assert server.wait() == 0
            assert time.monotonic() - began < 40, "and does not wait for the lease"
        server.start()
        with Client(server.ports["consumer"]) as consumer:
            answer = consumer.pull("g", maxLingerTime=10_000)
            assert len(answer.messages) == 1, "what was not acknowledged comes again"
            consumer.submit(done(answer))


def test_sends_answered_before_a_stop_are_stored_after_it(tmp_path: Path) -> None:
    """SIGTERM while eight senders are busy: no answer 0 without its message."""
    with running(tmp_path) as server:
        prepared(server)
        stored: list[bytes] = []
        threads = [threading.Thread(target=send_until_refused, args=(server, n, stored)) for n in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(stored) > 100, "the load")
        server.terminate()
        for thread in threads:
            thread.join(30)
        assert server.wait() == 0
        server.start()
        with Client(server.ports["consumer"]) as consumer:
            bodies: set[bytes] = set()
            until(lambda: take(consumer, bodies) >= set(stored), "every message")


def send_until_refused(server: RealServer, number: int, stored: list[bytes]) -> None:
    with Client(server.ports["producer"]) as client:
        for count in range(100_000):
            body = b"%d/%d" % (number, count)
            try:
                if client.send("t", body).code != 0:
                    return
            except Exception:
                return
            stored.append(body)


def take(consumer: Client, bodies: set[bytes]) -> set[bytes]:
    answer = consumer.pull("g", maxLingerTime=100)
    bodies |= {message.value for message in answer.messages}
    consumer.submit(done(answer))
    return bodies


def test_another_process_joins_the_directory(tmp_path: Path) -> None:
    """A producer proxy beside the server that writes: it appends through that one."""
    with running(tmp_path) as first:
        prepared(first)
        second = RealServer(tmp_path, command="producer")
        try:
            second.start()
            with Client(second.ports["producer"]) as producer, Client(first.ports["consumer"]) as consumer:
                assert producer.send("t", b"through the writer").code == 0
                answer = consumer.pull("g", maxLingerTime=20_000)
                assert [message.value for message in answer.messages] == [b"through the writer"]
        finally:
            second.end()


@pytest.mark.slow
def test_processes_are_restarted_when_they_die(tmp_path: Path) -> None:
    """--processes: each part is started again, on the port that was chosen; messages flow on."""
    server = RealServer(tmp_path, processes=True)
    server.ports = dict.fromkeys(server.ports, 0)
    try:
        server.start()
        prepared(server)
        pids = server.component_pids()
        assert set(pids) == {"producer", "consumer", "delay-service"}
        with Client(server.ports["producer"]) as client:
            assert client.send("t", b"before").code == 0
        for component in ("consumer", "producer", "delay-service"):
            os.kill(pids[component], signal.SIGKILL)
            until(
                lambda component=component: (
                    server.component_pids().get(component) not in (None, pids[component])
                ),
                f"{component} is back",
            )
        until(lambda: sends(server), "a send")
        bodies: set[bytes] = set()
        until(lambda: takes(server, bodies), "both messages")
        last = server.component_pids()
        server.terminate()
        assert server.wait() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in last.values()), "none is left behind"
        assert "Traceback" not in server.log
    finally:
        server.end()


@pytest.mark.slow
def test_sighup_during_the_start_of_processes_is_answered_once_they_run(tmp_path: Path) -> None:
    """A part that dies is started beside those that live; a reload of all must not end it."""
    config = write_config(tmp_path / "conf", topics={"topics": {"a": {}}})
    server = RealServer(tmp_path, config, processes=True)
    try:
        server.start()
        first = server.component_pids()["producer"]
        os.kill(first, signal.SIGKILL)
        until(lambda: server.component_pids().get("producer") not in (None, first), "it is started again")
        second = server.component_pids()["producer"]
        write_config(tmp_path / "conf", topics={"topics": {"a": {}, "b": {}}})
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: server.log.count("reloaded") == 3, "all three have reloaded")
        assert server.component_pids()["producer"] == second
    finally:
        server.end()


@pytest.mark.slow
def test_a_server_that_crashes_writes_where_its_threads_stood(tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    try:
        server.start()
        os.kill(server.pid, signal.SIGSEGV)
        assert server.wait() == -signal.SIGSEGV
        assert "Fatal Python error: Segmentation fault" in server.log
        assert "most recent call first" in server.log
    finally:
        server.end()


@pytest.mark.slow
def test_processes_that_are_stopped_while_they_start_end_well(tmp_path: Path) -> None:
    server = RealServer(tmp_path, processes=True)
    try:
        for component in ("consumer", "producer"):
            server.launch()
            until(
                lambda component=component: component in server.component_pids(),
                f"{component} is being started",
            )
            server.terminate()
            assert server.wait() == 0
            assert "did not get ready" not in server.log
    finally:
        server.end()


@pytest.mark.slow
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, processes=True) as server:
        prepared(server)
        pids = server.component_pids()
        with Client(server.ports["producer"]) as client:
            assert client.send("t", b"before").code == 0
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not any(lives(pid) for pid in pids.values()), "none is left behind")
        server.wait()
        server.start()  # on the same ports
        assert sends(server)
        bodies: set[bytes] = set()
        until(lambda: takes(server, bodies), "both messages")


def lives(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has waited for yet."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def sends(server: RealServer) -> bool:
    try:
        with Client(server.ports["producer"]) as client:
            return bool(client.send("t", b"after").code == 0)
    except Exception:
        return False


def takes(server: RealServer, bodies: set[bytes]) -> bool:
    try:
        with Client(server.ports["consumer"]) as client:
            return take(client, bodies) >= {b"before", b"after"}
    except Exception:
        return False
