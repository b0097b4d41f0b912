"""Operations with a process for each component, while messages arrive and processes are killed.

A plan that is lost with its process cannot be started, and an operation changes what its plan showed: each
item once, and nothing that arrived later.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, Producer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.support.installations import Installation
from tests.support.waiting_retries import WAITS, fail_messages, list_places, subscribe
from tests.support.waits import until

TOPIC, GROUP = "T", "G"  # of waiting_retries, too
WITHOUT_RETRIES = {"start": "first", "retry_steps": 0, "retry_intervals_ms": []}


@pytest.fixture
def server(installation: Installation, tmp_path: Path) -> Iterator[RealServer]:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    with running(tmp_path, config, processes=True, installation=installation) as started:
        yield started


def ask(server: RealServer, method: str, target: str, body: Any = None) -> tuple[int, Any]:
    """The status and answer of a request, as soon as the killed process is there again."""

    def answer() -> tuple[int, Any] | None:
        try:
            status, text = server.request(method, target, body)
        except OSError:
            return None
        return None if status == 503 else (status, text)

    return until(answer, "it answers")


def kill(server: RealServer, component: str) -> None:
    """Kill a component, and wait until the supervisor has started it again."""
    pid = server.component_pids()[component]
    os.kill(pid, signal.SIGKILL)
    until(lambda: server.component_pids().get(component, pid) != pid, "it is started again")


def plan(server: RealServer, kind: str, action: str, **chosen: Any) -> dict[str, Any]:
    body = {"kind": kind, "action": action, "filter": {"group": GROUP, **chosen}}
    status, planned = ask(server, "POST", "/operations", body)
    assert status == 200, planned
    return dict(planned)


def start(server: RealServer, planned: dict[str, Any], token: str = "", rate: int | None = None) -> int:
    """The status of a start."""
    body = {"token": token or planned["token"], "rate": rate}
    return ask(server, "POST", f"/operations/{planned['id']}/start", body)[0]


def show(server: RealServer, planned: dict[str, Any]) -> dict[str, Any]:
    status, row = ask(server, "GET", f"/operations/{planned['id']}")
    assert status == 200, row
    return dict(row)


def wait_until_done(server: RealServer, planned: dict[str, Any]) -> dict[str, Any]:
    until(lambda: show(server, planned)["state"] == "done", lambda: f"it is done: {show(server, planned)}")
    return show(server, planned)


def bury(server: RealServer, bodies: list[str]) -> None:
    """Let the group fail messages, which become dead letters at once."""
    before = count_letters(server)
    with Producer(server.address("producer")) as producer:
        for body in bodies:
            producer.send(TOPIC, body, key=body)
    failed = 0
    with Consumer(server.address("consumer"), GROUP, [TOPIC], linger_ms=50) as consumer:
        while failed < len(bodies):
            for message in consumer.pull(100, timeout_ms=500):
                message.fail(reason="ValueError: no such customer")
                failed += 1
    until(lambda: count_letters(server) == before + len(bodies), "they are dead letters")


def count_letters(server: RealServer) -> int:
    rows = ask(server, "GET", "/dlq")[1]
    return sum(int(row["letters"]) for row in rows if row["group"] == GROUP)


@pytest.mark.slow
def test_dead_letters_are_resent_as_shown_while_others_arrive_and_processes_die(server: RealServer) -> None:
    server.admin("POST", "topics", TOPIC, body={"queues": 2})
    server.admin("POST", "groups", GROUP, body={"topics": [TOPIC]} | WITHOUT_RETRIES)
    shown = [f"shown {number}" for number in range(120)]
    bury(server, shown)
    lost = plan(server, "dead_letters", "resend")
    assert start(server, lost, token=lost["token"][::-1]) == 409
    kill(server, "consumer")
    assert start(server, lost) == 404, "the process that had made the plan is gone"
    assert count_letters(server) == len(shown)

    planned, other = plan(server, "dead_letters", "resend"), plan(server, "dead_letters", "purge")
    assert planned["counted"] == len(shown)
    assert start(server, planned, token=other["token"]) == 409
    bury(server, ["later 1", "later 2"])
    assert start(server, planned, rate=60) == 200
    assert start(server, planned) == 409, "it runs"
    until(lambda: show(server, planned)["changed"] >= 20, "it goes on")
    kill(server, "consumer")
    kill(server, "producer")
    row = wait_until_done(server, planned)
    assert (row["changed"], row["skipped"], row["remaining"]) == (len(shown), {}, 0)
    assert start(server, planned) == 409, "it is done"

    bodies: Counter[str] = Counter()
    with Consumer(server.address("consumer"), GROUP, [TOPIC], linger_ms=50) as consumer:

        def receive() -> bool:
            for message in consumer.pull(100, timeout_ms=500):
                bodies[message.text()] += 1
                message.ack()
            return sum(bodies.values()) >= len(shown)

        until(receive, "all are delivered")
        assert consumer.pull(10, timeout_ms=500) == []
    assert bodies == dict.fromkeys(shown, 1)
    until(lambda: count_letters(server) == 2, "the later ones are left")


@pytest.mark.slow
def test_retries_become_dead_letters_once_although_the_process_that_runs_it_dies(server: RealServer) -> None:
    subscribe(server)
    shown = [f"shown-{number}" for number in range(150)]
    fail_messages(server, shown)
    planned = plan(server, "retries", "dead_letter", text="shown-")
    assert planned["counted"] == len(shown)
    fail_messages(server, ["later", "shown-later"])
    assert start(server, planned, rate=75) == 200
    until(lambda: show(server, planned)["changed"], "it has begun")
    kill(server, "consumer")
    row = wait_until_done(server, planned)
    assert row["changed"] + sum(row["skipped"].values()) == len(shown)
    expected = sorted([("later", "waiting"), ("shown-later", "waiting"), *((each, "dead") for each in shown)])
    until(lambda: list_places(server) == expected, "each is in one place")
