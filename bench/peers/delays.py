"""Delays side by side: we, a Redis sorted set, RabbitMQ (TTL, dead-letter exchange), beanstalkd; same load.

20,000 messages of 1 KiB due evenly over 20 s, sent beforehand in the order of their due times; then a storm
of 20,000 due at one moment. Every system makes what it takes durable before it answers (Redis: appendfsync
always; RabbitMQ: persistent, confirmed; beanstalkd: binlog with fsync at each write). Lateness is from the
due time to the moment that a waiting client has the message; `sent_per_s` is of the sending, `per_s` of the
storm's delivery. Server on one core; clients, and what is beside the server (our delay service, the poller of
the sorted set), on the other. We send one message a call on 64 connections, the others 100 in a row on one.
A system that is not installed is left out, and said to be.

beanstalkd knows whole seconds only: its messages are due a whole number of seconds after they were put,
which is what they are held to. Its storm is spread over as many seconds as its sending took.
"""

from __future__ import annotations

import time
from functools import partial

from bench.delay_orders import stamps
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized
from bench.peers import delayed
from bench.peers.delayed import Delays
from bench.peers.system import started

COUNT = sized(20_000, 400)
DUE_RANGE_S = sized(20.0, 1.0)
BODY = 1024
LEAD_S = 2.0
EARLY_S = 0.001  # what a clock read in another process may be off


def measure(peer: Delays, due_range_s: float) -> dict[str, float]:
    """One load; a `due_range_s` of 0 is a storm."""
    due_s = float(int(time.time() + LEAD_S + COUNT / peer.sends_per_s) + 1)
    dues = [due_s + due_range_s * index / COUNT for index in range(COUNT)]
    began = time.time()
    peer.send(dues, BODY)
    sent_s = time.time() - began
    spare_s = due_s - time.time()
    if spare_s < 0:
        print(f"   {peer.name}: the first were due before all were sent: repeat it where nothing else runs")
    late: list[float] = []
    first = last = 0.0
    give_up = due_s + due_range_s + 60
    while len(late) < COUNT and time.time() < give_up:
        for body in peer.receive():
            last = time.time()
            due_times = stamps(body)
            late += [last - due for due in due_times]
            first = first or due_times[0]
    if len(late) != COUNT:
        raise AssertionError(f"{peer.name}: {COUNT} sent, {len(late)} came")
    if min(late) < -EARLY_S:
        raise AssertionError(f"{peer.name}: a message came {-min(late) * 1e3:.3f} ms early")
    figures = percentiles(late) | {
        "max_ms": max(late) * 1e3,
        "sent_per_s": COUNT / sent_s,
        "spare_s": spare_s,
    }
    return (
        figures
        | {"earliest_ms": min(late) * 1e3}
        | ({} if due_range_s else {"per_s": COUNT / (last - first)})
    )


def main() -> None:
    pin(CLIENT_CORE)
    every: list[Series] = []
    with started(delayed.ALL) as systems:
        for system in systems:
            for what, due_range_s in (("evenly", DUE_RANGE_S), ("storm", 0.0)):
                every.append(Series(f"{system.name}, {what}", partial(measure, system, due_range_s)))
        versions = {system.name: system.version() for system in systems}
        run(
            "delay_peers", __doc__ or "", every, versions=versions, count=COUNT, span_s=DUE_RANGE_S, body=BODY
        )
