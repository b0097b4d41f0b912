"""What the admin API tells of metrics: a costly page is kept, counters of several processes are one."""

from __future__ import annotations

import os
import socket
import time

import gevent.event
import msgspec
import pytest

from backend.memory import MemoryBackend
from ddmq.address import HostPort
from ddmq.cli.operate.stats import build_view
from ddmq.cli.output import console
from ddmq.server.admin import figures
from ddmq.server.admin.api import AdminApi
from ddmq.server.admin.figures import (
    PAGE_CACHED_MAX_S,
    PAGE_CHEAP_S,
    PAGE_RESTS,
    OtherProcesses,
    component_line,
    merge_counters,
)
from ddmq.server.http.connection import AdminServer
from ddmq.server.process.signals import when_parent_ends
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.catalogue import LOG_DISK, SEND_INFLIGHT, SEND_LATENCY, SESSIONS_ENDED
from ddmq_common.metrics.registry import Registry

HOST = "127.0.0.1"


class Costly:
    """An admin API with a collector that takes so much processor time."""

    def __init__(self, seconds: float) -> None:
        self.clock, self.metrics, self.seconds = ManualClock(), Registry(), seconds
        self.metrics.add_collector(self.collect)
        backend = MemoryBackend(self.clock)
        self.api = AdminApi(backend, None, self.metrics, self.clock, backend.health)

    def collect(self) -> None:
        self.metrics.cell(SEND_INFLIGHT).value += 1
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass

    def page(self) -> float:
        """How often the page that is answered now had been made anew."""
        environ = {"REQUEST_METHOD": "GET", "RAW_URI": "/metrics", "QUERY_STRING": ""}
        text = b"".join(self.api.router(environ, lambda status, headers: None)).decode()
        (line,) = (line for line in text.splitlines() if line.startswith("ddmq_send_inflight "))
        return float(line.split()[1])


def test_a_costly_page_is_given_again_for_a_while() -> None:
    spent = PAGE_CHEAP_S + 0.01
    costly = Costly(spent)
    requests = [gevent.spawn(costly.page) for _ in range(8)]
    gevent.joinall(requests, timeout=30, raise_error=True)
    assert [each.value for each in requests] == [1] * 8, "those who wait for a page get the same"
    costly.clock.advance(spent * PAGE_RESTS * 0.99)
    assert costly.page() == 1
    costly.clock.advance(PAGE_CACHED_MAX_S)
    assert costly.page() == 2


def test_a_page_is_not_kept_for_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "PAGE_RESTS", 1_000)
    costly = Costly(PAGE_CHEAP_S + 0.01)
    assert costly.page() == 1
    costly.clock.advance(PAGE_CACHED_MAX_S * 0.99)
    assert costly.page() == 1
    costly.clock.advance(PAGE_CACHED_MAX_S * 0.02)
    assert costly.page() == 2


def test_a_cheap_page_is_always_new() -> None:
    cheap = Costly(0.0)
    assert [cheap.page() for _ in range(3)] == [1, 2, 3]


def test_counters_of_processes_are_put_together() -> None:
    one, other = Registry(), Registry()
    for registry, times in ((one, 1), (other, 3)):
        for _ in range(times):
            registry.histogram(SEND_LATENCY, "orders").observe(1000.0 * times)
        registry.cell(SESSIONS_ENDED, "left").value = times
        registry.cell(LOG_DISK).value = times
    other.histogram(SEND_LATENCY, "mails").observe(5.0)
    merged = merge_counters(one.snapshot(), other.snapshot(), {})
    assert merged[SESSIONS_ENDED.name] == [{"reason": "left", "value": 4}]
    assert merged[LOG_DISK.name] == [{"value": 3}]
    orders, mails = merged[SEND_LATENCY.name]
    slowest = other.histogram(SEND_LATENCY, "orders").summary()
    assert orders == {"topic": "orders"} | slowest | {"count": 4, "mean": 2500.0}
    assert mails == {"topic": "mails"} | other.histogram(SEND_LATENCY, "mails").summary()


def test_other_parts_are_asked_and_the_silent_are_named() -> None:
    costly = Costly(0.0)
    server = AdminServer((HOST, 0), costly.api.router)
    server.start()
    others = OtherProcesses()
    with socket.create_server((HOST, 0)) as silent:  # it accepts, and says nothing
        mute, closed = silent.getsockname()[1], socket.create_server((HOST, 0))
        for name, port in (
            ("producer", server.server_port),
            ("mute", mute),
            ("gone", closed.getsockname()[1]),
        ):
            others.record_address(component_line(name, HostPort(HOST, port)).strip())
        closed.close()
        answers, named = others.fetch_answers("/stats", "counters", "findings")
    server.stop(timeout=0)
    assert set(named) == {"mute", "gone"}
    assert named["mute"] == f"{HOST}:{mute}"
    (answer,) = answers
    assert set(answer) == {"counters", "findings"}
    assert [set(cell) for cell in answer["counters"][SEND_INFLIGHT.name]] == [{"value"}]
    stats = {"health": {"ready": True, "reason": ""}, "topics": [], "counters": {}, "silent_parts": named}
    screen = console()
    with screen.capture() as shown:
        screen.print(build_view(None, stats))
    assert "server: ready; without figures of gone, mute: no answer" in shown.get()


def test_what_one_part_is_asked_for_by_another() -> None:
    api = Costly(0.0).api
    environ = {"REQUEST_METHOD": "GET", "RAW_URI": "/stats", "QUERY_STRING": "forwarded=1"}
    answer = b"".join(api.router(environ, lambda status, headers: None))
    assert set(msgspec.json.decode(answer)) == {"counters", "findings"}


@pytest.mark.parametrize("chunks", [[b"part a x:1\npart b x:2\n"], [b"part a", b" x:1\npart", b" b x:2\n"]])
def test_the_parent_is_heard_line_by_line_until_it_ends(chunks: list[bytes]) -> None:
    reads, writes = os.pipe()
    lines: list[str] = []
    end = gevent.event.Event()
    when_parent_ends(end.set, lines.append, reads)
    for chunk in chunks:
        os.write(writes, chunk)
        gevent.sleep(0)
    assert not end.is_set()
    os.close(writes)
    assert end.wait(30)
    os.close(reads)
    assert lines == ["part a x:1", "part b x:2"]
