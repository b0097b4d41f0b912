"""DELAY=n on real servers: not early, once, also over kills; and what health says when nobody fires."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.interop.apache_client import Client
from tests.scenarios.real_server import NotReady, RealServer, ddmq, running, write_config
from tests.support.installations import Installation
from tests.support.waits import until

LEVELS = ["500ms", "2s", "1h"]


def short_levels(folder: Path) -> Path:
    return write_config(folder, delay_service={"levels": LEVELS})


def prepared(server: RealServer) -> None:
    server.admin("POST", "topics", "t", body={"create": True, "queues": 1})
    server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})


def stored(server: RealServer) -> list[tuple[str, int]]:
    """Bodies and store times of the topic's messages."""
    rows = server.admin("GET", "topics", "t", "messages")
    return [(row["body"], row["stored_ms"]) for row in rows]


def test_a_delayed_send_is_delivered_when_it_is_due(installation: Installation, tmp_path: Path) -> None:
    with running(tmp_path, installation=installation) as server:
        prepared(server)
        with Client(server.ports["producer"]) as producer, Client(server.ports["consumer"]) as consumer:
            before_ms = time.time_ns() // 1_000_000
            result = producer.send("t", b"later", key="k", tags="red", properties={"DELAY": "1", "p": "v"})
            assert result.set_fields() == {"code": 0, "msg": "OK"}
            assert producer.send("t", b"now").code == 0
            [now] = consumer.pull("g", maxLingerTime=20_000).messages
            assert now.value == b"now"
            [later] = consumer.pull("g", maxLingerTime=20_000).messages
            assert (later.value, later.key, later.tag) == (b"later", "k", "red")
            assert later.properties == {"p": "v"}
        assert dict(stored(server))["later"] >= before_ms + 1_000
        assert server.metric("ddmq_levels_fired_total", level="1") == 1
        assert server.metric("ddmq_levels_lateness_us_count") == 1


def test_the_command_line_sends_to_a_level(tmp_path: Path) -> None:
    with running(tmp_path, short_levels(tmp_path / "conf")) as server:
        prepared(server)
        address = f"127.0.0.1:{server.ports['producer']}"
        result = ddmq("send", "t", "later", "--delay-level", "1", "--producer", address)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("stored: delayed, id ")
        until(lambda: stored(server), "it is delivered")


def test_without_a_scheduler_messages_are_stored_and_health_reports_it(
    installation: Installation, tmp_path: Path
) -> None:
    config = short_levels(tmp_path / "conf")
    producer = RealServer(tmp_path, config, command="producer", installation=installation)
    scheduler = RealServer(tmp_path, config, command="delay-service", installation=installation)
    try:
        producer.start()
        producer.admin("POST", "topics", "t", body={"create": True, "queues": 1})
        with Client(producer.ports["producer"]) as client:
            assert client.send("t", b"kept", properties={"DELAY": "1"}).code == 0
        status, answer = producer.request("GET", "/ready")
        assert (status, answer["ready"]) == (503, False)
        assert answer["reason"].startswith("no level scheduler: ")
        assert "ddmq delay-service" in answer["reason"]
        scheduler.start()
        until(lambda: producer.request("GET", "/ready")[0] == 200, "it is ready")
        until(lambda: stored(producer), "what was sent before is fired")
        scheduler.kill()
        until(lambda: producer.request("GET", "/ready")[0] == 503, "its end is noticed")
    finally:
        scheduler.end()
        producer.end()


@pytest.mark.slow
def test_a_killed_delay_service_restarts_and_fires_each_message_once(
    installation: Installation, tmp_path: Path
) -> None:
    with running(tmp_path, short_levels(tmp_path / "conf"), True, installation) as server:
        prepared(server)
        with Client(server.ports["producer"]) as producer:
            for number in range(20):
                assert producer.send("t", b"%d" % number, properties={"DELAY": "2"}).code == 0
        os.kill(server.component_pids()["delay-service"], signal.SIGKILL)
        until(lambda: len(stored(server)) >= 10, "they are fired")
        with Client(server.ports["consumer"]) as consumer:
            bodies: list[bytes] = []

            def all_pulled() -> bool:
                answer = consumer.pull("g", maxLingerTime=100)
                bodies.extend(message.value for message in answer.messages)
                return len(bodies) >= 20

            until(all_pulled, "all are delivered")
        assert bodies == [b"%d" % number for number in range(20)]
        server.terminate()
        assert server.wait() == 0


def test_a_level_as_long_as_the_retention_is_rejected_at_start(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", file_log={"retention": {"age_ms": 3_600_000}})
    server = RealServer(tmp_path, config)
    try:
        with pytest.raises(NotReady, match=r"levels: the last is 2h, but retention\.age_ms .* for 1h"):
            server.start()
    finally:
        server.end()


def test_an_invalid_list_of_levels_is_reported_in_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": ["5s", "1x"]})
    server = RealServer(tmp_path, config)
    try:
        with pytest.raises(NotReady, match=r"delay_service\.yaml: .*'1x' is no wait"):
            server.start()
    finally:
        server.end()


def test_a_delay_service_with_other_stores_than_those_of_the_log_does_not_start(tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    config = write_config(tmp_path / "conf", delay_service={"dir": str(tmp_path / "elsewhere")})
    with pytest.raises(NotReady, match="the delay stores of this log are in"), running(tmp_path, config):
        pass
    (tmp_path / "data" / "delay").rename(tmp_path / "elsewhere")
    with running(tmp_path, config) as server:
        assert server.admin("GET", "delay")["health"]["ready"]
