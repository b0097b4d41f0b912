"""T25: more than one core: the loads of T1 to T3 over 1, 2 and 4 proxies beside the process that appends.

The process that appends takes no client; the proxies send it what they take over its socket, and read the
log's files themselves. On this machine the one that appends has one core; the proxies share the other with
the load generator, so rates say little here. `writer_us`, its processor time a message, says what more cores
would bring: that process alone is one core, at most 1,000,000 / writer_us messages a second, whatever number
of proxies, which take `proxy_us` each. Floor: the same load with both in one process.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, SERVER_CORE, Series, pin, run, sized
from bench.servers import Running, scratch, start
from bench.t02_batch import request
from bench.t03_pull import Consumers

PROXIES = (1, 2, 4)
BODY = 1024
SINGLE, BATCHED = (
    (64, 1, sized(40_000, 400)),
    (8, 100, sized(2_000, 16)),
)  # connections, messages a call, calls
PULLERS = 8
QUEUES = 8
TOPIC = GROUP = b"cores"


@dataclass
class Installation:
    """The process that appends, and the proxies; in one process where there are none of their own."""

    writer: Running
    producers: list[Running]
    consumers: list[Running]

    @property
    def admin(self) -> Running:
        """As `groups` asks one server: a producer proxy, and a consumer proxy with its admin API."""
        addresses = dict(self.writer.addresses)
        for proxies in (self.producers, self.consumers):
            addresses |= proxies[0].addresses if proxies else {}
        return Running(self.writer.process, addresses)

    def connections(self, service: str, count: int) -> list[socket.socket]:
        proxies = (self.producers if service == "producer" else self.consumers) or [self.writer]
        each = [load.connect(one.addresses[service], count // len(proxies)) for one in proxies]
        return [one for some in each for one in some]

    def measured(self, service: str, count: int, act: Callable[[], object]) -> dict[str, float]:
        """Microseconds of processor time a message, of the one that appends and of all proxies together."""
        proxies = self.producers if service == "producer" else self.consumers
        before = self.writer.cpu_seconds(), sum(one.cpu_seconds() for one in proxies)
        act()
        writer_s = self.writer.cpu_seconds() - before[0]
        proxies_s = sum(one.cpu_seconds() for one in proxies) - before[1]
        return {"writer_us": writer_s / count * 1e6, "proxy_us": proxies_s / count * 1e6}


@contextmanager
def installation(proxies: int) -> Iterator[Installation]:
    """Over a fresh directory; with 0 proxies everything is one process."""
    free = ["127.0.0.1:0"]
    with ExitStack() as stack:
        data = str(
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cores-", dir=scratch()))) / "data"
        )

        def started(service: str, core: int) -> Running:
            arguments = [service, "--data-dir", data, "--admin", *free, f"--{service}", *free]
            return stack.enter_context(start(["ddmq", *arguments], {core}))

        if not proxies:
            writer = stack.enter_context(start(["bench.serve_parts", data], {SERVER_CORE}))
            servers = Installation(writer, [], [])
        else:
            writer = started("producer", SERVER_CORE)
            producers = [started("producer", CLIENT_CORE) for _ in range(proxies)]
            servers = Installation(
                writer, producers, [started("consumer", CLIENT_CORE) for _ in range(proxies)]
            )
        groups.establish(servers.admin, TOPIC, GROUP, QUEUES)
        shared_out(servers)
        yield servers


def shared_out(one: Installation) -> None:
    """Until each consumer proxy has as many queues as the others: each gets some when it is first asked."""
    process_count, give_up = len(one.consumers) or 1, time.monotonic() + 60
    opened = one.connections("consumer", PULLERS)
    while (
        len(queue_counts := _count_queues(one)) < process_count
        or min(queue_counts.values()) < QUEUES // process_count
    ):
        if time.monotonic() > give_up:
            raise AssertionError(
                f"{process_count} consumer proxies, the queues are held so: {dict(queue_counts)}"
            )
        requests = [frames.pull(GROUP, TOPIC, 1, 20, None)] * PULLERS
        load.closed_loop(opened, load.answered_ok(requests, PULLERS, bool))
    for each in opened:
        each.close()


def _count_queues(one: Installation) -> Counter[str]:
    """How many queues each process holds."""
    group = groups.admin(one.admin, "GET", f"/groups/{GROUP.decode()}")
    return Counter(queue["holder"] for each in group["subscriptions"] for queue in each["queues"])


def sends(one: Installation, connections: int, size: int, calls: int) -> dict[str, float]:
    """Raises unless all are stored."""
    before = groups.stored(one.admin, TOPIC)
    opened = one.connections("producer", connections)
    requests = [request(TOPIC, index, size, BODY) for index in range(connections)]
    figures = one.measured(
        "producer", calls * size, lambda: load.closed_loop(opened, load.answered_ok(requests, calls))
    )
    for each in opened:
        each.close()
    if (stored := groups.stored(one.admin, TOPIC) - before) != calls * size:
        raise AssertionError(f"{calls * size} answered OK, {stored} stored")
    return figures


def pulls(one: Installation) -> dict[str, float]:
    """All that is there; raises unless it came once and is acknowledged."""
    count = groups.lag(one.admin, GROUP)
    consumers = Consumers(GROUP, TOPIC, count)
    opened = one.connections("consumer", PULLERS)
    figures = one.measured("consumer", count, lambda: load.closed_loop(opened, consumers.next_frame))
    for each in opened:
        each.close()
    consumers.check()
    if lag := groups.lag(one.admin, GROUP):
        raise AssertionError(f"all {count} acknowledged, lag is {lag}")
    return figures


LOADS: dict[str, Callable[[Installation], dict[str, float]]] = {
    "sendSync": lambda one: sends(one, *SINGLE),
    "sendBatchSync": lambda one: sends(one, *BATCHED),
    "pull and ack": pulls,
}


def series(one: Installation, proxies: int) -> list[Series]:
    how = f"{proxies} of each proxy" if proxies else "one process"
    return [
        Series(f"{what}, {how}", partial(act, one), f"{what}, one process") for what, act in LOADS.items()
    ]


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        every = [
            each
            for proxies in (0, *PROXIES)
            for each in series(stack.enter_context(installation(proxies)), proxies)
        ]
        run("t25_more_cores", __doc__ or "", every, queues=QUEUES, body=BODY)


if __name__ == "__main__":
    main()
