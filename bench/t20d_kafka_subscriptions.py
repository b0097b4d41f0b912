"""T20d: one process on Kafka with 1 and with 1,000 subscriptions: memory, threads, start, idling.

Each subscription is a group of its own over a topic of its own; all have been pulled from, have had a message
and have acknowledged it. `start_s`: until the ports are open; `all_s`: from then until each has had its
message; `idle_cpu_%` of one core, with nobody waiting. Floor: the same with one subscription, on other
brokers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, pin, sized
from bench.servers import Running
from bench.t20_kafka import kafka_is_here

MANY = sized(1_000, 20)
IDLE_S = sized(10.0, 0.5)
ROUNDS = sized(3, 1)
LINGER_MS = 500
GIVE_UP_S = 300.0


def name(index: int) -> bytes:
    return b"many-%d" % index


def create_subscriptions(server: Running, count: int) -> None:
    """Create the topics and the groups through the admin API."""

    def one(index: int) -> None:
        groups.admin(server, "POST", f"/topics/{name(index).decode()}", {"queues": 1})
        groups.subscribe(server, name(index), name(index))

    with ThreadPoolExecutor(16) as workers:
        list(workers.map(one, range(count)))


def all_delivered(server: Running, count: int) -> None:
    """Send each subscription a message, pull and acknowledge it; raises unless each came once."""
    producer = load.connect(server.addresses["producer"], 8)
    requests: Iterator[bytes] = (frames.send_sync(name(n), b"", b"x", n) for n in range(count))

    def next_send(_: int, reply: bytes | None) -> bytes | None:
        if reply is not None and not frames.reply_ok(reply):
            raise AssertionError(f"not stored: {reply!r}")
        return next(requests, None)

    load.closed_loop(producer, next_send)
    consumers = load.connect(server.addresses["consumer"], min(count, 32))
    remaining, at, came = list(range(count)), dict[int, int](), dict.fromkeys(range(count), 0)
    give_up = time.monotonic() + GIVE_UP_S

    def next_pull(index: int, reply: bytes | None) -> bytes | None:
        answer = None if reply is None else frames.pulled(reply)
        if answer is not None:
            one = at.pop(index)
            came[one] += answer.messages
            # Acknowledged by a pull that finds nothing more.
            return frames.pull(name(one), name(one), 1, 0, (answer.qid, answer.offsets))
        if index in at:
            remaining.append(at.pop(index))
        if not remaining or time.monotonic() > give_up:
            return None
        at[index] = remaining.pop(0)
        return frames.pull(name(at[index]), name(at[index]), 1, LINGER_MS, None)

    load.closed_loop(consumers, next_pull)
    for one in producer + consumers:
        one.close()
    if set(came.values()) != {1}:
        raise AssertionError(f"of {count} subscriptions had one message: {list(came.values()).count(1)}")


def measure(server: Running, count: int, start_s: float) -> dict[str, float]:
    began = time.perf_counter()
    all_delivered(server, count)
    all_s = time.perf_counter() - began
    process = Path(f"/proc/{server.process.pid}")
    time.sleep(IDLE_S / 2)  # what follows the deliveries is over
    spent, began = server.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_S)
    busy = (server.cpu_seconds() - spent) / (time.perf_counter() - began)
    memory = server.memory()
    return {
        "rss_anon_mib": memory["RssAnon"] / (1 << 20),
        "rss_file_mib": memory["RssFile"] / (1 << 20),
        "threads": len(os.listdir(process / "task")),
        "descriptors": len(os.listdir(process / "fd")),
        "start_s": start_s,
        "all_s": all_s,
        "idle_cpu_%": busy * 100,
    }


def main() -> None:
    if not kafka_is_here("T20D"):
        return
    from bench.kafka.rig import Rig, rig  # confluent-kafka is an extra

    @contextmanager
    def filled(count: int) -> Iterator[Rig]:
        with rig() as one:
            with one.server() as server:
                began = time.perf_counter()
                create_subscriptions(server, count)
                print(f"   {count} topics and groups made in {time.perf_counter() - began:.1f} s", flush=True)
            yield one

    def started(one: Rig, count: int) -> dict[str, float]:
        began = time.perf_counter()
        with one.server() as server:
            return measure(server, count, time.perf_counter() - began)

    with filled(1) as small, filled(MANY) as large:
        pin(CLIENT_CORE)
        below = "1 subscription"
        every = [
            Series(below, lambda: started(small, 1)),
            Series(f"{MANY:,} subscriptions", lambda: started(large, MANY), below),
        ]
        large.run("t20d_kafka_subscriptions", __doc__ or "", every, ROUNDS, idle_s=IDLE_S)


if __name__ == "__main__":
    main()
