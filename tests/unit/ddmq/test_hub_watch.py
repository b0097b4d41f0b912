"""The time the event loop is busy is seen whatever kept it busy; the time it waits is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import gevent
import pytest

from ddmq.server.process.hub import HubWatch
from ddmq_common.metrics.catalogue import HUB_BLOCKED
from ddmq_common.metrics.cells import Histogram
from ddmq_common.metrics.registry import Registry

BUSY_S = 0.03


@pytest.fixture
def histogram() -> Iterator[Histogram]:
    metrics = Registry()
    watch = HubWatch(metrics)
    watch.start()
    gevent.sleep(0.001)  # the turn in which it started may not count
    yield metrics.histogram(HUB_BLOCKED)
    watch.stop()
    watch.stop()


def keep_busy(done: gevent.event.Event) -> None:
    until = perf_counter() + BUSY_S
    while perf_counter() < until:
        pass
    done.set()


def in_a_greenlet(act: Callable[[], None]) -> None:
    gevent.spawn(act)


def in_a_timer(act: Callable[[], None]) -> None:
    timer = gevent.get_hub().loop.timer(0.001)

    def ran() -> None:
        timer.close()
        act()

    timer.start(ran)


def in_an_io_callback(act: Callable[[], None]) -> None:
    read_end, write_end = os.pipe()
    watcher: Any = gevent.get_hub().loop.io(read_end, 1)

    def ran() -> None:
        watcher.stop()
        watcher.close()
        os.close(read_end)
        os.close(write_end)
        act()

    watcher.start(ran)
    os.write(write_end, b"x")


@pytest.mark.parametrize("way", [in_a_greenlet, in_a_timer, in_an_io_callback])
def test_whatever_keeps_the_loop_busy_is_seen(
    histogram: Histogram, way: Callable[[Callable[[], None]], None]
) -> None:
    done = gevent.event.Event()
    way(lambda: keep_busy(done))
    assert done.wait(30)
    gevent.sleep(0.001)  # through a poll: the turn has ended
    assert histogram.percentile(1.0) >= BUSY_S * 1e6


def test_waiting_is_not_being_busy(histogram: Histogram) -> None:
    began = perf_counter()
    gevent.event.Event().wait(0.2)
    waited_us = (perf_counter() - began) * 1e6
    assert sum(histogram.counts) >= 1
    assert histogram.total < waited_us / 2
