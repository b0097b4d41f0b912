"""Operations on messages that wait for a retry, on real servers: in one process, and in several."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from ddmq_client import Consumer, Message
from tests.scenarios.real_server import RealServer, ddmq, running, write_config
from tests.support.installations import Installation
from tests.support.waiting_retries import (
    GROUP,
    TOPIC,
    WAITS,
    fail_messages,
    list_places,
    list_retries,
    plan,
    start,
    subscribe,
    wait_until_done,
)
from tests.support.waits import until


@pytest.mark.slow
def test_retries_are_delivered_now_or_become_dead_letters(installation: Installation, tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    with running(tmp_path, config, installation=installation) as server:
        operate_on_retries(server)


@pytest.mark.slow
def test_a_process_without_the_levels_forwards_orders_to_their_owner(
    installation: Installation, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    with running(tmp_path, config, processes=True, installation=installation) as server:
        operate_on_retries(server)


def operate_on_retries(server: RealServer) -> None:
    """Fail messages, deliver some of them now, and make others dead letters."""
    subscribe(server)
    fail_messages(server, [f"{kind}-{number}" for kind in ("bad", "good", "other") for number in range(40)])
    planned = plan(server, "now", text="good-")
    assert (planned["counted"], planned["exact"]) == (40, True)
    assert planned["reaches"] == {TOPIC: {"count": 1, "groups": [GROUP]}}
    fail_messages(server, ["good-later"])
    words = ["op", "plan", "retries", "dead-letter", "--group", GROUP, "--text", "bad-"]
    result = ddmq(*words, "--start", "--yes", "--wait", "--admin", server.address("admin"))
    assert (result.returncode, "40 waiting messages changed" in result.stdout) == (0, True), result
    start(server, planned)
    assert wait_until_done(server, planned)["changed"] == 40
    (later,) = [row for row in list_retries(server) if row["key"] == "good-later"]
    message = {"offset": later["level_offset"], "id": later["id"]}
    change = {"group": GROUP, "action": "now", "level": later["level"], "messages": [message]}
    assert server.admin("POST", "retries", body=change)["changed"] == 1
    assert server.admin("POST", "retries", body=change)["changed"] == 0
    expected = {("bad", "dead"): 40, ("good", "due"): 41, ("other", "waiting"): 40}
    until(lambda: count_places(server) == expected, lambda: f"each is in its place: {count_places(server)}")
    handled: Counter[str] = Counter()

    def handle(message: Message) -> None:
        assert message.attempt == 2
        handled[message.text()] += 1

    with Consumer(server.address("consumer"), GROUP, [TOPIC], handler=handle, linger_ms=50):
        until(lambda: len(handled) == 41, "all are delivered")
    assert set(handled.values()) == {1}


def count_places(server: RealServer) -> Counter[tuple[str, str]]:
    """The number of messages by the first part of their key and their place."""
    return Counter((key.partition("-")[0], place) for key, place in list_places(server))


@pytest.mark.slow
def test_an_operation_survives_the_death_of_the_process_that_owns_the_levels(
    installation: Installation, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    with running(tmp_path, config, processes=True, installation=installation) as server:
        subscribe(server)
        fail_messages(server, [f"k{number}" for number in range(200)])
        planned = plan(server, "dead_letter")
        start(server, planned, rate=100)
        until(lambda: server.admin("GET", "operations", planned["id"])["changed"], "it has begun")
        os.kill(server.component_pids()["delay-service"], signal.SIGKILL)
        row = wait_until_done(server, planned)
        assert row["changed"] + sum(row["skipped"].values()) == 200
        expected = sorted((f"k{number}", "dead") for number in range(200))
        until(lambda: list_places(server) == expected, "each is a dead letter")
