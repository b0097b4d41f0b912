"""Work that callbacks of the hub give away waits in line while all threads are busy, and is never lost."""

from __future__ import annotations

import threading

import gevent
from gevent.event import Event

from ddmq_common.native_threads import THREADS, in_thread, off_hub, wait_for_native_work

PATIENCE_S = 60.0


def test_a_callback_hands_over_more_work_than_there_are_threads() -> None:
    """As a read in a callback of the hub does while every thread waits for a slow disk."""
    gate, all_done = threading.Event(), Event()
    results: list[tuple[int, Exception | None]] = []

    def done(value: int, error: Exception | None) -> None:
        results.append((value, error))
        if len(results) == 5 * THREADS:
            all_done.set()

    def slow(number: int) -> int:
        assert gate.wait(PATIENCE_S)
        return number

    def callback() -> None:
        for number in range(5 * THREADS):
            off_hub(slow, done, number)
        handed_over.set()

    handed_over = Event()
    gevent.get_hub().loop.run_callback(callback)
    assert handed_over.wait(PATIENCE_S)
    assert results == []
    gate.set()
    assert all_done.wait(PATIENCE_S)
    assert sorted(results) == [(number, None) for number in range(5 * THREADS)]


def test_work_of_callbacks_does_not_wait_for_work_of_greenlets() -> None:
    gate, done = threading.Event(), Event()
    pool = gevent.get_hub().threadpool
    greenlets = [gevent.spawn(in_thread, gate.wait, PATIENCE_S) for _ in range(pool.maxsize)]
    gevent.sleep(0)
    off_hub(lambda: None, lambda value, error: done.set())
    assert done.wait(PATIENCE_S)
    gate.set()
    gevent.joinall(greenlets, timeout=PATIENCE_S, raise_error=True)


def test_an_error_is_handed_over_and_the_thread_continues() -> None:
    results: list[Exception | None] = []
    finished = Event()

    def done(_: object, error: Exception | None) -> None:
        results.append(error)
        if len(results) == 2 * THREADS:
            finished.set()

    for _ in range(2 * THREADS):
        off_hub(int, done, "x")
    assert finished.wait(PATIENCE_S)
    assert {type(error) for error in results} == {ValueError}


def test_native_work_of_both_kinds_is_waited_for() -> None:
    gate = threading.Event()
    off_hub(gate.wait, lambda value, error: None, PATIENCE_S)
    assert not wait_for_native_work(0.01)
    gate.set()
    assert wait_for_native_work(PATIENCE_S)
