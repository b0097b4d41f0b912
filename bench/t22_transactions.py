"""T22: a transaction of one message of 1 KiB, prepared and committed, beside a plain sendSync of it.

The floor is the plain send, by the same connections to the same server; the figure is the server's processor
time for each message. A client keeps each transaction to itself: prepare, then commit, then the next one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq
from ddmq_client.idl import producer
from ddmq_common.delivery import zigzag
from ddmq_rpc.client_side import decode_reply

CONNECTIONS = 64
CALLS = sized(20_000, 640)  # transactions, or sends
BODY, TIMEOUT_MS = bytes(1024), 10_000
CLIENT, GROUP = b"host-1-4711", b"bank"
COMMIT = 8
TOPIC = {"plain": b"plain", "transaction": b"transactions"}
REACH = "≤ 2.5 of the floor"


def message(topic: bytes, number: int) -> bytes:
    """As our client writes it: with its client id, and its producer's sequence."""
    plain = frames.producer_message(topic, b"key-%d" % number, BODY, number)
    identity = b"\x38" + frames.text(topic[-16:].rjust(16)) + b"\x16" + zigzag(number)
    return plain[:-1] + b"\x08" + zigzag(100) + frames.text(CLIENT) + identity + b"\x00"


def transaction_id(number: int) -> bytes:
    return b"%012x70008%015x" % (int(time.time() * 1_000), number)


def prepare(transaction: bytes, number: int) -> bytes:
    listed = b"\x19" + frames.list_header(1, 12) + message(TOPIC["transaction"], number)
    head = b"\x18" + frames.text(transaction) + b"\x18" + frames.text(GROUP)
    return frames.call("sendPrepared", b"\x1c" + head + listed + b"\x18" + frames.text(CLIENT) + b"\x00\x00")


def commit(transaction: bytes, through: int) -> bytes:
    head = b"\x18" + frames.text(transaction) + b"\x18" + frames.text(GROUP) + b"\x15" + zigzag(COMMIT)
    rest = b"\x18" + frames.text(CLIENT) + b"\x26" + zigzag(through)
    return frames.call("endTransaction", b"\x1c" + head + rest + b"\x00\x00")


def prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def make_ready(server: Running) -> None:
    """The first prepare makes the topics, and the proxy takes their queues: until it owns them all, ends are
    to be asked again."""
    remaining = {transaction_id(1 << 40 | number) for number in range(200)}
    deadline = time.monotonic() + 30

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        if reply is None:
            return prepare(transaction_id(0), 0)
        answer = decode_reply(producer, "ProducerService", prefixed(reply)).result.success
        if index in transactions and answer.code != 15:
            remaining.discard(transactions[index])
        if not remaining or time.monotonic() > deadline:
            return None
        transactions[index] = next(iter(remaining))
        return commit(transactions[index], -1)

    transactions: dict[int, bytes] = {}
    load.closed_loop(load.connect(server.addresses["producer"], 1), next_frame)
    if remaining:
        raise AssertionError(f"{len(remaining)} of 200 transactions have no owner")


class Calls:
    """Requests of one kind; `number` goes on from round to round."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._number = 0
        self._open: dict[int, bytes] = {}  # by connection, what is prepared there

    def requests(self, calls: int) -> load.Next:
        """For load.closed_loop."""
        remaining = calls

        def next_frame(index: int, reply: bytes | None) -> bytes | None:
            nonlocal remaining
            opened = self._open.get(index)
            if reply is not None and b"FAILED" in reply:
                raise AssertionError(f"refused: {reply!r}")
            if opened is not None and reply is not None:
                del self._open[index]
                answer = decode_reply(producer, "ProducerService", prefixed(reply)).result.success
                return commit(opened, answer.throughOffset)
            remaining -= 1
            if remaining < 0:
                return None
            self._number += 1
            if self._kind == "plain":
                sent = message(TOPIC["plain"], self._number)
                return frames.call("sendSync", b"\x1c" + sent + b"\x16" + zigzag(TIMEOUT_MS) + b"\x00")
            self._open[index] = transaction_id(self._number)
            return prepare(self._open[index], self._number)

        return next_frame

    def measure(self, server: Running, calls: int = CALLS) -> dict[str, float]:
        """One round; raises unless each message is stored."""
        topic, frames_each = TOPIC[self._kind], 1 if self._kind == "plain" else 2
        before = groups.stored(server, topic)
        connections = load.connect(server.addresses["producer"], CONNECTIONS)
        figures = load.driven(connections, self.requests(calls), calls * frames_each, server.cpu_us)
        stored = groups.stored(server, topic) - before
        if stored != calls:
            raise AssertionError(f"{calls} messages, {stored} stored")
        each = {"cpu_us": figures.pop("cpu_us") * frames_each, "per_s": figures.pop("per_s") / frames_each}
        return each | figures


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        server = stack.enter_context(ddmq())
        every = []
        for kind, topic in TOPIC.items():
            groups.send_once(server, topic)
            calls = Calls(kind)
            if kind == "transaction":
                make_ready(server)
            calls.measure(server, 4 * CONNECTIONS)
            every.append(Series(kind, lambda calls=calls: calls.measure(server)))  # type: ignore[misc]
        every[1].floor, every[1].reach = "plain", REACH
        run("t22_transactions", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS)


if __name__ == "__main__":
    main()
