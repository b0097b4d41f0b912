"""T3: pull 100 with the last 100 acknowledged in the same call, 8 connections, acknowledgements durable.

Ordered: with an order key (KEY, scope topic, chain_batch 1). "All keys distinct" is the cost of chains alone;
with "1,000 keys", about 800 of them in flight, a key often comes again before its last message is finished.
Floor: joining the same slices with a CRC each, in this process, on one core.
"""

from __future__ import annotations

import time
from itertools import pairwise

import google_crc32c

from bench import frames, groups, keyed, load
from bench.harness import CLIENT_CORE, SERVER_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq
from bench.t02_batch import fill
from ddmq_common import delivery

CONNECTIONS = 8
MESSAGES = sized(400_000, 4_000)
BATCH = 100
BODIES = (1024, 128)
REACH = {1024: "≥ 300,000/s, ≥ 0.16 of the floor", 128: ""}
ORDERED_REACH = {1024: "≥ 200,000/s, ≥ 0.11 of the floor", 128: ""}
KEYS = {"all keys distinct": 1 << 32, "1,000 keys": 1_000}
GROUP = b"bench-%d"


class Consumers:
    """Connections that pull until `message_count` messages came and all of them are acknowledged."""

    def __init__(self, group: bytes, topic: bytes, message_count: int) -> None:
        self._group, self._topic, self._message_count = group, topic, message_count
        self.delivered = 0
        self.last_at = 0.0
        self.runs: dict[bytes, list[tuple[int, int]]] = {}

    def next_frame(self, _: int, reply: bytes | None) -> bytes | None:
        """For load.closed_loop."""
        answer = None if reply is None else frames.pulled(reply)
        if answer is None:
            if self.delivered >= self._message_count:
                return None
            return frames.pull(self._group, self._topic, BATCH, 20, None)
        self.delivered += answer.messages
        self.last_at = time.perf_counter()
        offsets = answer.offsets
        self.runs.setdefault(answer.qid, []).append((offsets.start, offsets.stop))
        return frames.pull(self._group, self._topic, BATCH, 20, (answer.qid, offsets))

    def check(self) -> None:
        """Every message exactly once: each queue's runs touch and do not overlap."""
        if self.delivered != self._message_count:
            raise AssertionError(f"{self._message_count} stored, {self.delivered} delivered")
        for qid, runs in self.runs.items():
            runs.sort()
            for (_, end), (start, _) in pairwise(runs):
                if end != start:
                    raise AssertionError(f"{qid!r}: a run ends at {end}, the next starts at {start}")


def measure(server: Running, body_bytes: int) -> dict[str, float]:
    """One round: fill, then pull it all; raises unless every message came once and is acknowledged."""
    topic, group = b"pull-%d" % body_bytes, GROUP % body_bytes
    fill(server, topic, body_bytes, MESSAGES // BATCH)
    return consume(server, group, Consumers(group, topic, MESSAGES))


def consume(server: Running, group: bytes, consumers: Consumers) -> dict[str, float]:
    """Pull all of it and acknowledge it."""
    connections = load.connect(server.addresses["consumer"], CONNECTIONS)

    def act() -> int:
        load.closed_loop(connections, consumers.next_frame)
        return MESSAGES

    began = time.perf_counter()
    cost_us = server.cpu_us(act)
    for one in connections:
        one.close()
    consumers.check()
    lag = groups.lag(server, group)
    if lag:
        raise AssertionError(f"all {MESSAGES} acknowledged, lag is {lag}")
    return {"per_s": MESSAGES / (consumers.last_at - began), "cpu_us": cost_us}


class OrderedConsumers(Consumers):
    """The same, with offsets as they come and the order of each key proven."""

    def __init__(self, group: bytes, topic: bytes, message_count: int, first: int, keys: int) -> None:
        super().__init__(group, topic, message_count)
        self._keys = keys
        self._next: dict[int, int] = {}
        self._first = first

    def next_frame(self, _: int, reply: bytes | None) -> bytes | None:
        """For load.closed_loop."""
        answer = None if reply is None else frames.pulled(reply)
        if answer is None or reply is None:
            if self.delivered >= self._message_count:
                return None
            return frames.pull(self._group, self._topic, BATCH, 20, None)
        offsets = []
        following, first = self._next, self._first
        for offset, key, number, _due in keyed.read_messages(reply):
            if number != following.get(key, first + key):
                raise AssertionError(f"key {key}: {number} delivered, {following.get(key)} was to come")
            following[key] = number + self._keys
            offsets.append(offset)
        self.delivered += len(offsets)
        self.last_at = time.perf_counter()
        return frames.pull(self._group, self._topic, BATCH, 20, (answer.qid, offsets))

    def check(self) -> None:
        """Every message exactly once: each key's numbers came one after the other, and all came."""
        if self.delivered != self._message_count:
            raise AssertionError(f"{self._message_count} stored, {self.delivered} delivered")


class Ordered:
    """One ordered topic of messages (key, number); numbers count over all keys and rounds."""

    def __init__(self, server: Running, body_bytes: int, keys: int) -> None:
        self._server, self._body_bytes, self._keys = server, body_bytes, keys
        self._topic = b"ordered-%d-%d" % (body_bytes, keys)
        self._stored = 0
        groups.establish(server, self._topic, self._topic, order_key="KEY", order_scope="topic")

    def measure(self) -> dict[str, float]:
        """One round; raises unless every message came once, in the order of its key, and is acknowledged."""
        first, keys = self._stored, self._keys
        self._stored += MESSAGES
        numbers = (((n - first) % keys, n) for n in range(first, self._stored))
        keyed.fill(self._server, self._topic, self._body_bytes, numbers)
        consumers = OrderedConsumers(self._topic, self._topic, MESSAGES, first, keys)
        return consume(self._server, self._topic, consumers)


def floor(body_bytes: int) -> dict[str, float]:
    """Slices a second: CRC each, join 100 with their offsets."""
    pin(SERVER_CORE)
    slices = [delivery.encode(b"k%d" % n, bytes(body_bytes), b"", None) for n in range(BATCH)]
    tails = [delivery.encode_tail(n) for n in range(BATCH)]
    rounds = sized(6_000, 50)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        for one in slices:
            google_crc32c.value(one)
        chunks = [chunk for pair in zip(slices, tails, strict=True) for chunk in pair]
        b"".join(chunks)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    pin(CLIENT_CORE)
    return {"per_s": rounds * BATCH / seconds, "cpu_us": spent / rounds / BATCH * 1e6}


def series(server: Running, body: int) -> list[Series]:
    below = f"join, {body} B"
    return [
        Series(below, lambda: floor(body)),
        Series(f"pull and ack, {body} B", lambda: measure(server, body), below, REACH[body]),
        *(ordered(server, body, name, below) for name in KEYS),
    ]


def ordered(server: Running, body: int, name: str, below: str) -> Series:
    reach = ORDERED_REACH[body] if KEYS[name] > MESSAGES else ""
    return Series(f"ordered, {name}, {body} B", Ordered(server, body, KEYS[name]).measure, below, reach)


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server:
        for body in BODIES:
            groups.establish(server, b"pull-%d" % body, GROUP % body)
        every = [one for body in BODIES for one in series(server, body)]
        run("t03_pull", __doc__ or "", every, connections=CONNECTIONS, messages=MESSAGES, batch=BATCH)


if __name__ == "__main__":
    main()
