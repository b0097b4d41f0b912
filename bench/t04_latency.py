"""T4: send → delivered, open loop at 5,000/s, durable, one waiting client per queue.

Floor: one fdatasync of 1 KiB plus two loopback round trips, on the same disk in the same run. Each body
starts with the moment its sending was due, so a late generator or server counts as lateness.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import tempfile
import time

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized
from bench.servers import Running, ddmq, scratch

RATE = 5_000
SECONDS = sized(6.0, 0.4)
SENDERS = 64
PULLERS = 4
BODY = 1024
LINGER_MS = 200
GROUP = TOPIC = b"latency"
MARK = b"\xfeDUE\xfe"
STAMP = struct.Struct("d")


def floor() -> dict[str, float]:
    """Milliseconds of one fdatasync and two round trips on loopback."""
    times = []
    left, right = socket.socketpair()
    with tempfile.TemporaryFile(dir=scratch()) as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
        for index in range(sized(1000, 50)):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(BODY), index * BODY)
            os.fdatasync(file.fileno())
            for _ in range(2):
                left.send(b"x")
                right.recv(1)
                right.send(b"y")
                left.recv(1)
            times.append(time.perf_counter() - began)
    return percentiles(times)


class OpenLoop:
    """One process, one epoll: senders on a schedule, pullers always waiting.

    A benchmark with other messages says what a request, a pull and an answer are.
    """

    def __init__(
        self, server: Running, total: int, rate: int = RATE, delivery_count: int | None = None
    ) -> None:
        """`delivery_count`: how many of the `total` are delivered, if not all."""
        self.total, self._rate = total, rate
        self.delivery_count = total if delivery_count is None else delivery_count
        self.senders = load.connect(server.addresses["producer"], SENDERS)
        self.pullers = load.connect(server.addresses["consumer"], PULLERS)
        self.latencies: list[float] = []
        self.late_s = 0.0  # the latest that this process itself sent one
        self.sent = 0
        self._free = list(self.senders)
        self._buffers = {one.fileno(): bytearray() for one in self.senders + self.pullers}
        self._by_fd = {one.fileno(): one for one in self.senders + self.pullers}
        self._pulling = {one.fileno() for one in self.pullers}
        self._puller_fds = frozenset(self._pulling)

    def run(self) -> list[float]:
        """All latencies in seconds, due to delivered; every message is acknowledged at the end."""
        poll = select.epoll()
        for one in self._by_fd.values():
            poll.register(one, select.EPOLLIN)
        for one in self.pullers:
            one.send(self.pull(None))
        began = time.perf_counter() + 0.2
        give_up = began + self.total / self._rate + 15
        while (len(self.latencies) < self.delivery_count or self._pulling) and time.perf_counter() < give_up:
            pause = self._send_what_is_due(began)
            select.select([poll], [], [], max(pause, 0.0))  # in µs; epoll itself counts in whole ms
            for fd, _ in poll.poll(0):
                self._receive(fd)
        poll.close()
        for one in self._by_fd.values():
            one.close()
        return self.latencies

    def _send_what_is_due(self, began: float) -> float:
        """Seconds until the next one is due."""
        while self.sent < self.total:
            due = began + self.sent / self._rate
            pause = due - time.perf_counter()
            if pause > 0:
                return pause
            if not self._free:
                return 0.001
            self._free.pop().send(self.request(self.sent, due))
            self.late_s = max(self.late_s, -pause)
            self.sent += 1
        return 0.05

    def _receive(self, fd: int) -> None:
        buffer = self._buffers[fd]
        buffer += self._by_fd[fd].recv(1 << 18)
        if len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
            return
        payload = bytes(buffer[4:])
        buffer.clear()
        if fd in self._puller_fds:
            self._delivered(self._by_fd[fd], payload)
        elif frames.reply_ok(payload):
            self._free.append(self._by_fd[fd])
        else:
            raise AssertionError(f"not stored: {payload!r}")

    def _delivered(self, puller: socket.socket, payload: bytes) -> None:
        done = self.delivered(puller, payload)
        if done is None and len(self.latencies) >= self.delivery_count:
            self._pulling.discard(puller.fileno())
            return
        puller.send(self.pull(done))

    def request(self, index: int, due: float) -> bytes:
        """The message that is sent as number `index`."""
        return frames.send_sync(TOPIC, b"", MARK + STAMP.pack(due) + bytes(BODY - 13), index)

    def pull(self, done: frames.Done | None) -> bytes:
        """A pull with what became of the last answer."""
        return frames.pull_with(GROUP, TOPIC, 100, LINGER_MS, [done] if done else [])

    def delivered(self, puller: socket.socket, payload: bytes) -> frames.Done | None:
        """Note the latencies of an answer; what becomes of its messages, None when there are none."""
        now = time.perf_counter()
        at = payload.find(MARK)
        while at >= 0:
            self.latencies.append(now - STAMP.unpack_from(payload, at + len(MARK))[0])
            at = payload.find(MARK, at + 13)
        answer = frames.pulled(payload)
        return None if answer is None else frames.Done(answer.qid, answer.offsets)


def measure(server: Running) -> dict[str, float]:
    """One round; raises when a message did not come, or came twice."""
    total = int(RATE * SECONDS)
    loop = OpenLoop(server, total)
    before = server.cpu_seconds()
    latencies = loop.run()
    spent = server.cpu_seconds() - before
    if len(latencies) != total:
        raise AssertionError(f"{total} sent, {len(latencies)} delivered")
    lag = groups.lag(server, GROUP)
    if lag:
        raise AssertionError(f"all {total} acknowledged, lag is {lag}")
    return percentiles(latencies) | {"generator_late_ms": loop.late_s * 1e3, "cpu_us": spent / total * 1e6}


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server:
        groups.establish(server, TOPIC, GROUP)
        OpenLoop(server, 500).run()
        below = Series("fdatasync + 2 round trips", floor)
        reach = "p50 ≤ 1 ms, p99 ≤ 4 ms, p99.9 ≤ 15 ms"
        latency = Series("send to delivered", lambda: measure(server), below.name, reach)
        run("t04_latency", __doc__ or "", [below, latency], rate=RATE, body=BODY)


if __name__ == "__main__":
    main()
