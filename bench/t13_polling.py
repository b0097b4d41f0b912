"""T13: 1,000 old clients polling an empty group (linger 50 ms, sleep 50 ms): share of one core.

Floor: the same number of calls a second answered by the no-op server.
"""

from __future__ import annotations

import heapq
import select
import time

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, Target, ddmq, start

CLIENTS = sized(1_000, 100)
SECONDS = sized(8.0, 0.5)
SLEEP_S = 0.05


def poll_for(address: Target, request: bytes, pause_s: float) -> int:
    """CLIENTS connections, each: call, sleep `pause_s`, again; returns the calls answered."""
    connections = load.connect(address, CLIENTS)
    by_fd = {one.fileno(): one for one in connections}
    poll = select.epoll()
    now = time.perf_counter()
    due = [(now + pause_s * index / CLIENTS, fd) for index, fd in enumerate(by_fd)]
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    end, answered = now + SECONDS, 0
    while (now := time.perf_counter()) < end:
        while due and due[0][0] <= now:
            by_fd[heapq.heappop(due)[1]].send(request)
        wait = min(due[0][0] - now if due else 0.05, 0.05)
        for fd, _ in poll.poll(max(wait, 0)):
            if not by_fd[fd].recv(4096):
                raise ConnectionError("the server closed a polling client")
            answered += 1
            heapq.heappush(due, (time.perf_counter() + pause_s, fd))
    poll.close()
    for one in connections:
        one.close()
    return answered


def measure(server: Running, address: Target, request: bytes, pause_s: float) -> dict[str, float]:
    """CPU share of the server over one round."""
    before, began = server.cpu_seconds(), time.perf_counter()
    answered = poll_for(address, request, pause_s)
    seconds = time.perf_counter() - began
    if answered < CLIENTS:
        raise AssertionError(f"{CLIENTS} clients, {answered} answers in {seconds:.1f} s")
    spent = server.cpu_seconds() - before
    return {
        "core_percent": spent / seconds * 100,
        "calls_per_s": answered / seconds,
        "cpu_us": spent / answered * 1e6,
    }


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server, start(["bench.noop_server"]) as noop:
        groups.establish(server, b"idle", b"idlers")
        pull = frames.pull(b"idlers", b"idle", 8, 50, None)
        send = frames.send_sync(b"idle", b"", b"x", 0)
        floor = Series("no-op", lambda: measure(noop, noop.addresses["producer"], send, 2 * SLEEP_S))
        polling = Series(
            "polling",
            lambda: measure(server, server.addresses["consumer"], pull, SLEEP_S),
            floor.name,
            "≤ 60 % of one core",
        )
        run("t13_polling", __doc__ or "", [floor, polling], clients=CLIENTS, seconds=SECONDS)


if __name__ == "__main__":
    main()
