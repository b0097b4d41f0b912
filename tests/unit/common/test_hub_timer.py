"""The hub's timer waits its whole time at every start, and nothing in the tree goes around it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import gevent
import pytest

from ddmq_common.hub_timer import HubTimer
from tests.support.waits import until

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("backend", "bench", "ddmq", "ddmq_client", "ddmq_common", "ddmq_rpc", "delay_service",
         "metrics_job", "proxy_consumer", "proxy_producer")  # fmt: skip
THE_ONE = ROOT / "ddmq_common" / "hub_timer.py"


class NotedLoop:
    """Notes what its timers were made with, and rings the newest by hand."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []

    def timer(self, first: float, repeat: float, ref: bool = True) -> Watcher:
        self.watchers.append(Watcher(first, repeat))
        return self.watchers[-1]


class Watcher:
    def __init__(self, first: float, repeat: float) -> None:
        self.first, self.repeat = first, repeat
        self.starts = self.closes = 0
        self.ring: Any = None

    def start(self, ring: Any) -> None:
        self.starts += 1
        self.ring = ring

    def stop(self) -> None:
        self.ring = None

    def close(self) -> None:
        self.closes += 1


def test_each_start_has_a_watcher_of_its_own() -> None:
    loop, rung = NotedLoop(), list[int]()
    timer = HubTimer(loop=loop)
    for number in range(3):
        timer.once(0.5, lambda number=number: rung.append(number))  # type: ignore[misc]
        assert timer.active
        loop.watchers[-1].ring()
        assert not timer.active
    timer.every(0.25, lambda: rung.append(9))
    timer.once(2.0, lambda: rung.append(8))
    timer.stop()
    timer.stop()
    assert rung == [0, 1, 2]
    assert [(one.first, one.repeat) for one in loop.watchers] == [(0.5, 0.0)] * 3 + [(0.25, 0.25), (2.0, 0.0)]
    assert [(one.starts, one.closes) for one in loop.watchers] == [(1, 1)] * 5


def test_a_callback_may_restart_its_timer() -> None:
    loop, rung = NotedLoop(), list[str]()
    timer = HubTimer(loop=loop)
    timer.once(1.0, lambda: timer.once(3.0, lambda: rung.append("second")))
    loop.watchers[-1].ring()
    assert timer.active
    loop.watchers[-1].ring()
    assert rung == ["second"]


def test_a_long_wait_on_the_real_loop_does_not_end_because_a_short_one_has() -> None:
    timer, rung = HubTimer(), list[str]()
    timer.once(0.0, lambda: rung.append("short"))
    until(lambda: rung)
    timer.once(3_600, lambda: rung.append("long"))
    for _ in range(20):
        gevent.sleep(0.001)
    assert rung == ["short"]
    timer.stop()


def timers_of_a_loop(source: str) -> list[int]:
    """Lines that ask an event loop for a timer."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "timer"
    ]


def test_no_other_module_creates_timers_of_the_loop() -> None:
    assert timers_of_a_loop("self._timer = self._loop.timer(1.0)") == [1], "the check itself"
    uses = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != THE_ONE
        if "timer" in (text := path.read_text())
        for line in timers_of_a_loop(text)
    ]
    if uses:
        pytest.fail(f"use ddmq_common.hub_timer.HubTimer: {', '.join(uses)}")
