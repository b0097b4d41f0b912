"""T3: pull 100 with the last 100 acknowledged in the same call, 8 connections, acknowledgements durable.

Floor: joining the same slices with a CRC each, in this process, on one core.
"""

from __future__ import annotations

import time

import google_crc32c

from bench import frames, load
from bench.harness import CLIENT_CORE, SERVER_CORE, Series, pin, run
from bench.servers import Running, ddmq
from ddmq_common import delivery

CONNECTIONS = 8
MESSAGES = 400_000
BATCH = 100
BODIES = (1024, 128)


def fill(server: Running, topic: bytes, body_bytes: int, count: int = MESSAGES) -> None:
    """Store `count` messages in batches, and let the group start before them."""
    pull_once(server, topic)
    connections = load.connect(server.addresses["producer"], CONNECTIONS)
    batches = [
        frames.send_batch_sync(
            [frames.producer_message(topic, b"k%d" % n, bytes(body_bytes), n + shift) for n in range(BATCH)]
        )
        for shift in range(CONNECTIONS)
    ]
    left = count // BATCH

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal left
        if reply is not None and not frames.reply_ok(reply):
            raise AssertionError(f"not stored: {reply!r}")
        left -= 1
        return batches[index] if left >= 0 else None

    load.closed_loop(connections, next_frame)
    for one in connections:
        one.close()


def pull_once(server: Running, topic: bytes) -> None:
    """Create topic and group: one message, one pull, so that `start: last` lies before what follows."""
    producer = load.connect(server.addresses["producer"], 1)
    load.closed_loop(producer, one_each([frames.send_sync(topic, b"", b"first", 0)]))
    consumer = load.connect(server.addresses["consumer"], 1)
    load.closed_loop(consumer, one_each([frames.pull(b"bench", topic, BATCH, 20, None)]))


def one_each(requests: list[bytes]) -> load.Next:
    """Send each request once on one connection."""
    pending = iter(requests)
    return lambda index, reply: next(pending, None)


def measure(server: Running, topic: bytes, body_bytes: int) -> dict[str, float]:
    """One round: fill, then pull it all; raises unless every message came exactly once."""
    fill(server, topic, body_bytes)
    connections = load.connect(server.addresses["consumer"], CONNECTIONS)
    seen: dict[bytes, int] = {}
    delivered = 0
    began = ended = time.perf_counter()

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal delivered, ended
        answer = None if reply is None else frames.pulled(reply)
        if answer is not None:
            delivered += answer.count
            seen[answer.qid] = seen.get(answer.qid, 0) + answer.count
            ended = time.perf_counter()
        if reply is not None and answer is None and delivered >= MESSAGES:
            return None
        done = None if answer is None else (answer.qid, answer.offsets)
        return frames.pull(b"bench", topic, BATCH, 20, done)

    load.closed_loop(connections, next_frame)
    for one in connections:
        one.close()
    if delivered != MESSAGES:
        raise AssertionError(f"{MESSAGES} stored, {delivered} delivered: {seen}")
    return {"per_s": delivered / (ended - began)}


def floor(body_bytes: int) -> dict[str, float]:
    """Slices a second: CRC each, join 100 with their offsets."""
    pin(SERVER_CORE)
    slices = [delivery.encode(b"k%d" % n, bytes(body_bytes), b"", None) for n in range(BATCH)]
    tails = [delivery.tail(n) for n in range(BATCH)]
    began = time.perf_counter()
    rounds = 3_000
    for _ in range(rounds):
        for one in slices:
            google_crc32c.value(one)
        parts = [part for pair in zip(slices, tails, strict=True) for part in pair]
        b"".join(parts)
    seconds = time.perf_counter() - began
    pin(CLIENT_CORE)
    return {"per_s": rounds * BATCH / seconds}


def series(server: Running, body: int) -> list[Series]:
    topic = b"pull-%d" % body
    return [
        Series(f"join-{body}", lambda: floor(body)),
        Series(f"pull-{body}", lambda: measure(server, topic, body), f"join-{body}"),
    ]


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server:
        every = [one for body in BODIES for one in series(server, body)]
        run("t03_pull", __doc__ or "", every, connections=CONNECTIONS, messages=MESSAGES, batch=BATCH)


if __name__ == "__main__":
    main()
