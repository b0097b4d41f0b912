"""Calls of native threads arrive on the hub, in their order, and one that fails costs nobody another."""

from __future__ import annotations

import threading

import pytest

from backend.kafka.clients.bridge import Bridge
from tests.support.waits import until


def test_calls_of_threads_come_in_the_order_of_each() -> None:
    bridge = Bridge()
    calls: list[tuple[int, int]] = []
    hub = threading.get_ident()

    def record(thread: int, n: int) -> None:
        assert threading.get_ident() == hub
        calls.append((thread, n))

    def call(thread: int) -> None:
        for n in range(2_000):
            bridge.call(record, thread, n)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(calls) == 6_000)
    for number in range(3):
        assert [n for thread, n in calls if thread == number] == list(range(2_000))
    bridge.close()


def test_one_that_fails_costs_nobody_else(capsys: pytest.CaptureFixture[str]) -> None:
    bridge = Bridge()
    calls: list[int] = []
    bridge.call(calls.append, 1)
    bridge.call(lambda: 1 // 0)
    bridge.call(calls.append, 2)
    until(lambda: calls == [1, 2])
    assert "ZeroDivisionError" in capsys.readouterr().err
    bridge.close()
    bridge.close()
    bridge.call(calls.append, 3)
    assert calls == [1, 2]
