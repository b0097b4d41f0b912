"""T21: sends that are stored once beside the same ones that are not: sendSync, and sendBatch of 100 × 1 KiB.

Each message as our client writes it: with its client id, and a sequence of its producer, or a key, or
neither. The floor is neither, in the same run, on the same server; the figure is the server's processor time
for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq
from ddmq_common.delivery import zigzag

CONNECTIONS = {"sendSync": 64, "sendBatch": 8}
CALLS = {"sendSync": sized(20_000, 640), "sendBatch": sized(400, 16)}
BATCH, BODY, TIMEOUT_MS = 100, bytes(1024), 10_000
CLIENT = b"host-1-4711"
REACH = "≤ 1.15 of the floor"
Identity = Callable[[bytes, int, int], bytes]


def nothing(producer: bytes, number: int, below: int) -> bytes:
    """A message's fields beyond 100 that say who it is: none."""
    return b""


def sequence(producer: bytes, number: int, below: int) -> bytes:
    """producerId, sequence, answeredBelow."""
    return b"\x38" + frames.text(producer) + b"\x16" + zigzag(number) + b"\x16" + zigzag(below)


def key(producer: bytes, number: int, below: int) -> bytes:
    """idempotencyKey."""
    return b"\x28" + frames.text(b"web-shop/order/%d" % number)


def message(topic: bytes, number: int, identity: bytes) -> bytes:
    """As frames.producer_message, and fields of ours behind it."""
    plain = frames.producer_message(topic, b"key-%d" % number, BODY, number)
    return plain[:-1] + b"\x08" + zigzag(100) + frames.text(CLIENT) + identity + b"\x00"


def send_batch(messages: Sequence[bytes]) -> bytes:
    listed = b"\x19" + frames.list_header(len(messages), 12) + b"".join(messages)
    return frames.call("sendBatch", listed + b"\x16" + zigzag(TIMEOUT_MS) + b"\x00")


def send_sync(messages: Sequence[bytes]) -> bytes:
    return frames.call("sendSync", b"\x1c" + messages[0] + b"\x16" + zigzag(TIMEOUT_MS) + b"\x00")


class Sends:
    """Requests of one series; `number` goes on from round to round, as that of one producer does."""

    def __init__(self, method: str, identity: Identity) -> None:
        self.topic = f"{method}-{identity.__name__}".encode()
        self.method = method
        self.size = 1 if method == "sendSync" else BATCH
        self._producer = self.topic[-16:].rjust(16)
        self._identity = identity
        self._build = send_sync if method == "sendSync" else send_batch
        self._number = 0

    def requests(self, calls: int) -> load.Next:
        """For load.closed_loop."""
        open_from = [self._number] * CONNECTIONS[self.method]
        remaining = calls

        def next_frame(index: int, reply: bytes | None) -> bytes | None:
            nonlocal remaining
            if reply is not None and b"FAILED" in reply:
                raise AssertionError(f"not stored: {reply!r}")
            remaining -= 1
            if remaining < 0:
                open_from[index] = 1 << 62
                return None
            first = open_from[index] = self._number
            self._number += self.size
            below = min(open_from)
            numbers = range(first, first + self.size)
            identity, producer = self._identity, self._producer
            return self._build(
                [message(self.topic, each, identity(producer, each, below)) for each in numbers]
            )

        return next_frame

    def measure(self, server: Running, calls: int | None = None) -> dict[str, float]:
        """One round; raises unless each message is stored."""
        calls = calls or CALLS[self.method]
        before = groups.stored(server, self.topic)
        connections = load.connect(server.addresses["producer"], CONNECTIONS[self.method])
        figures = load.driven(connections, self.requests(calls), calls, server.cpu_us)
        stored = groups.stored(server, self.topic) - before
        if stored != calls * self.size:
            raise AssertionError(f"{calls} calls of {self.size} messages, {stored} stored")
        per_message = {"cpu_us": figures.pop("cpu_us") / self.size, "per_s": figures.pop("per_s") * self.size}
        return per_message | figures


def series(server: Running, method: str) -> list[Series]:
    floor = f"{method}, neither"
    every = {"neither": nothing, "sequences": sequence, "keys": key}
    all_series = []
    for name, identity in every.items():
        sends = Sends(method, identity)
        groups.send_once(server, sends.topic)
        sends.measure(server, 4 * CONNECTIONS[method])
        one = Series(f"{method}, {name}", lambda sends=sends: sends.measure(server))  # type: ignore[misc]
        all_series.append(one)
        if name != "neither":
            one.floor, one.reach = floor, REACH if name == "sequences" else ""
    return all_series


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        server = stack.enter_context(ddmq())
        every = [one for method in CALLS for one in series(server, method)]
        run("t21_once", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS, batch=BATCH)


if __name__ == "__main__":
    main()
