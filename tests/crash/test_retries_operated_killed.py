"""kill -9 at each write point of an operation on retries: each message is in exactly one place afterwards.

The server dies before the commit that takes messages out of a delay level, while it is written, and when it
is durable and nobody has heard of it. The operation then continues by itself.
"""

from __future__ import annotations

from contextlib import suppress
from http.client import HTTPException
from itertools import product
from pathlib import Path

import pytest

from tests.crash.kit.boundaries import BoundaryServer, Doomed
from tests.crash.kit.boundary_process import LEVEL, MOMENTS
from tests.scenarios.real_server import PATIENCE_S, write_config
from tests.support.waiting_retries import (
    WAITS,
    fail_messages,
    list_places,
    plan,
    start,
    subscribe,
    wait_until_done,
)

MESSAGES = 80  # of a round: two batches of an operation
PLACES = {"now": "due", "dead_letter": "dead"}


@pytest.mark.slow
def test_each_message_is_in_one_place_at_whatever_write_the_server_dies(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", delay_service={"levels": WAITS})
    server = BoundaryServer(tmp_path, config)
    rounds = list(enumerate(product(MOMENTS, PLACES)))
    expected = {f"round{number}-{index}": "waiting" for number, _ in rounds for index in range(MESSAGES)}
    try:
        server.start()
        subscribe(server)
        fail_messages(server, expected)
        for number, (moment, action) in rounds:
            server.kill()
            server.plan_death(Doomed(LEVEL, moment, 1 + number % 2, 300 * number))
            server.start()
            planned = plan(server, action, text=f"round{number}-")
            assert planned["counted"] == MESSAGES
            with suppress(OSError, HTTPException):  # it may die before it answers
                start(server, planned)
            assert server.process is not None
            assert server.process.wait(PATIENCE_S) == -9, server.log[-2_000:]
            server.plan_death(None)
            server.start()
            row = wait_until_done(server, planned)
            assert row["changed"] + sum(row["skipped"].values()) == MESSAGES, (moment, action)
            expected |= {f"round{number}-{index}": PLACES[action] for index in range(MESSAGES)}
            assert list_places(server) == sorted(expected.items()), (moment, action)
    finally:
        server.end()
