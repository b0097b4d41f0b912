"""When a commit begins: not before the loop is idle, not later than a few rounds of a busy one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent.event import Event

from backend.file_log.commit.writer import ROUNDS_MAX, Gathering

PATIENCE_S = 60.0


class Busy:
    """A socket that is readable in every round of the loop, counted."""

    def __init__(self) -> None:
        self.rounds = 0
        self._left, self._right = socket.socketpair()
        self._left.send(b"x")
        self._watcher: Any = gevent.get_hub().loop.io(self._right.fileno(), 1)
        self._watcher.start(self._readable)

    def _readable(self) -> None:
        self.rounds += 1

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        self._left.close()
        self._right.close()


@pytest.fixture
def busy() -> Iterator[Busy]:
    busy_threads = Busy()
    yield busy_threads
    busy_threads.close()


class Began:
    """Counts, and lets a test wait for it."""

    def __init__(self) -> None:
        self.count = 0
        self._event = Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(PATIENCE_S)


def test_it_begins_once_on_an_idle_loop() -> None:
    began = Began()
    gathering = Gathering(gevent.get_hub().loop, began)
    gathering.begin()
    gathering.begin()
    assert gathering.active
    assert began.count == 0
    began.wait()
    gevent.sleep(0)
    assert began.count == 1
    assert not gathering.active
    gathering.close()


def test_it_does_not_wait_for_ever_on_a_busy_loop(busy: Busy) -> None:
    began = Began()
    gathering = Gathering(gevent.get_hub().loop, began)
    gathering.begin()
    began.wait()
    assert 1 <= busy.rounds <= ROUNDS_MAX + 2
    gathering.close()


def test_a_new_gathering_begins_after_the_last_one() -> None:
    loop, counts = gevent.get_hub().loop, []
    for _ in range(3):
        began = Began()
        gathering = Gathering(loop, began)
        gathering.begin()
        began.wait()
        counts.append(began.count)
        gathering.close()
    assert counts == [1, 1, 1]


def test_a_stopped_gathering_never_begins() -> None:
    began, after = Began(), Began()
    loop = gevent.get_hub().loop
    stopped, other = Gathering(loop, began), Gathering(loop, after)
    stopped.begin()
    stopped.stop()
    stopped.stop()
    other.begin()
    after.wait()
    assert began.count == 0
    stopped.close()
    other.close()
