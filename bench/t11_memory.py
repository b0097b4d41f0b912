"""T11: memory of the server process: consuming through 10 GB of backlog; 1 million acknowledged above one.

RssAnon and RssFile as the kernel counts them, the highest of samples taken while it happens. RssFile is
page cache that happens to be mapped: the kernel takes it back when it needs it.

Backlog: written once, then consumed by a new group in every round, with and without order keys (KEY, scope
topic, 20,000 keys in turn). Asserted: every message once; nothing left.

Ack map: one message is held, a million after it are acknowledged, the process is killed with kill -9 and
started again. Asserted: exactly the one comes again. In the other series every second of two million
messages waits behind that one (same key), so that what is finished is a million single offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench import frames, groups, keyed, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, roomy_scratch, start_ddmq
from bench.t02_batch import BATCH, BODY
from bench.t03_pull import CONNECTIONS, Consumers

LOG_BYTES = sized(10 << 30, 20 << 20)
RECORD_BYTES = BODY + 140
BACKLOG = LOG_BYTES // RECORD_BYTES // BATCH * BATCH
KEYS = 20_000
FINISHED = sized(1_000_000, 2_000)
SMALL_BODY = 128
UNFINISHED_KEY, OTHER_KEYS = 0, 1_000  # keys: the held message's, and how many others
NEXT_SAMPLE = 100  # answers
MIB = 1 << 20
REACH = "≤ 300 MiB anonymous"
REDELIVERY_S_MAX = 60.0
ACK_TIMEOUT_MS = 3_600_000  # nothing comes again because of time


class Sampled:
    """The highest RssAnon and RssFile of all samples; `server` may change."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.anonymous = self.file = self._calls = 0

    def take_sample(self) -> None:
        """Take a sample."""
        sizes = self.server.memory()
        self.anonymous = max(self.anonymous, sizes["RssAnon"])
        self.file = max(self.file, sizes["RssFile"])

    def wrap(self, following: load.Next) -> load.Next:
        """`following` for load.closed_loop, with a sample now and then."""

        def next_frame(index: int, reply: bytes | None) -> bytes | None:
            self._calls += 1
            if self._calls % NEXT_SAMPLE == 0:
                self.take_sample()
            return following(index, reply)

        return next_frame

    def figures(self) -> dict[str, float]:
        return {"anon_mib": self.anonymous / MIB, "file_mib": self.file / MIB}


class Backlog:
    """10 GB in one topic of one server."""

    def __init__(self, data: Path) -> None:
        self.server = start_ddmq(data)
        groups.send_once(self.server, b"backlog")
        self._fill()
        self._rounds = 0

    def _fill(self) -> None:
        """KEYS keys in turn."""
        shared = [
            frames.producer_message(b"backlog", b"k%d" % n, bytes(BODY), n) for n in range(sized(KEYS, 1_000))
        ]
        batches = [frames.send_batch_sync(shared[at : at + BATCH]) for at in range(0, len(shared), BATCH)]
        remaining = BACKLOG // BATCH

        def next_frame(_: int, reply: bytes | None) -> bytes | None:
            nonlocal remaining
            if reply is not None and not frames.reply_ok(reply):
                raise AssertionError(f"not stored: {reply!r}")
            remaining -= 1
            return batches[remaining % len(batches)] if remaining >= 0 else None

        connections = load.connect(self.server.addresses["producer"], CONNECTIONS)
        load.closed_loop(connections, next_frame)
        for one in connections:
            one.close()

    def measure(self, **settings: str) -> dict[str, float]:
        """A new group consumes all of it."""
        self._rounds += 1
        group = b"reader-%d" % self._rounds
        groups.subscribe(self.server, b"backlog", group, **settings)
        consumers = Everything(group, b"backlog", BACKLOG + 1)
        sampled = Sampled(self.server)
        connections = load.connect(self.server.addresses["consumer"], CONNECTIONS)
        began = time.perf_counter()
        load.closed_loop(connections, sampled.wrap(consumers.next_frame))
        seconds = time.perf_counter() - began
        for one in connections:
            one.close()
        consumers.check()
        lag = groups.lag(self.server, group)
        if lag:
            raise AssertionError(f"all {BACKLOG + 1} acknowledged, lag is {lag}")
        groups.admin(self.server, "DELETE", f"/groups/{group.decode()}")
        return sampled.figures() | {"per_s": BACKLOG / seconds}


class Everything(Consumers):
    """Consumes a topic whose messages carry no number; in order of offsets or not."""

    def __init__(self, group: bytes, topic: bytes, message_count: int) -> None:
        super().__init__(group, topic, message_count)
        self._deliveries: dict[bytes, bytearray] = {}

    def next_frame(self, _: int, reply: bytes | None) -> bytes | None:
        """For load.closed_loop."""
        answer = None if reply is None else frames.pulled(reply)
        if answer is None or reply is None:
            if self.delivered >= self._message_count:
                return None
            return frames.pull(self._group, self._topic, BATCH, 20, None)
        offsets = frames.offsets(reply, answer)
        deliveries = self._deliveries.setdefault(answer.qid, bytearray(self._message_count))
        for offset in offsets:
            deliveries[offset] += 1
        self.delivered += len(offsets)
        return frames.pull(self._group, self._topic, BATCH, 20, (answer.qid, offsets))

    def check(self) -> None:
        """Every offset from 0 on once."""
        for qid, deliveries in self._deliveries.items():
            if deliveries.strip(b"\x00").strip(b"\x01"):
                raise AssertionError(f"{qid!r}: some messages did not come exactly once")
        if self.delivered != self._message_count:
            raise AssertionError(f"{self._message_count} stored, {self.delivered} delivered")


class AckMap:
    """One queue whose first message stays unfinished; a new group in every round, a kill -9 in each."""

    def __init__(self, data: Path, topic: bytes, waiting_too: bool) -> None:
        self._data, self._topic, self._waiting_too = data, topic, waiting_too
        self._rounds = 0
        server = start_ddmq(data)
        groups.admin(server, "POST", f"/topics/{topic.decode()}", {"queues": 1})
        self._stored = keyed.fill(server, topic, SMALL_BODY, self._messages())
        server.stop()

    def _messages(self) -> Iterator[tuple[int, int]]:
        yield UNFINISHED_KEY, 0
        for n in range(FINISHED):
            if self._waiting_too:
                yield UNFINISHED_KEY, n + 1
            yield 1 + n % OTHER_KEYS, n

    def measure(self) -> dict[str, float]:
        """Hold, acknowledge, kill, start, and see what comes."""
        self._rounds += 1
        group = b"%s-%d" % (self._topic, self._rounds)
        with start_ddmq(self._data) as server:
            settings = {"order_key": "KEY", "order_scope": "queue"} if self._waiting_too else {}
            groups.subscribe(server, self._topic, group, ack_timeout_ms=ACK_TIMEOUT_MS, **settings)
            before = Sampled(server)
            before.take_sample()
            sampled = Sampled(server)
            self._acknowledge(server, group, sampled)
            server.kill()
        with start_ddmq(self._data) as server:
            after = Sampled(server)
            redelivered, seconds = self._pull_redelivered(server, group)
            after.take_sample()
            groups.admin(server, "DELETE", f"/groups/{group.decode()}")
        if redelivered != [0]:
            raise AssertionError(f"offset 0 was to come again and nothing else, {redelivered[:10]} came")
        return {
            "anon_mib": sampled.anonymous / MIB,
            "restarted_anon_mib": after.anonymous / MIB,
            "before_anon_mib": before.anonymous / MIB,
            "file_mib": max(sampled.file, after.file) / MIB,
            "again_s": seconds,
        }

    def _acknowledge(self, server: Running, group: bytes, sampled: Sampled) -> None:
        """All but offset 0, which is held by a connection that stays open."""
        connections = load.connect(server.addresses["consumer"], CONNECTIONS)
        finished, deliveries = 0, bytearray(self._stored)

        def next_frame(_: int, reply: bytes | None) -> bytes | None:
            nonlocal finished
            answer = None if reply is None else frames.pulled(reply)
            if answer is None or reply is None:
                return frames.pull(group, self._topic, BATCH, 20, None) if finished < FINISHED else None
            offsets = []
            for offset, key, _number, _due in keyed.read_messages(reply):
                deliveries[offset] += 1
                if key == UNFINISHED_KEY and offset:
                    raise AssertionError(f"offset {offset} of the held key was delivered")
                if offset:
                    offsets.append(offset)
            finished += len(offsets)
            return frames.pull(group, self._topic, BATCH, 20, (answer.qid, offsets))

        load.closed_loop(connections, sampled.wrap(next_frame))
        sampled.take_sample()
        for one in connections:
            one.close()
        if finished != FINISHED or max(deliveries) > 1:
            raise AssertionError(
                f"{FINISHED} to be finished, {finished} were; at most {max(deliveries)} times each"
            )

    def _pull_redelivered(self, server: Running, group: bytes) -> tuple[list[int], float]:
        """Return the redelivered offsets, and the seconds until the first one; acknowledge none of them."""
        connection = load.connect(server.addresses["consumer"], 1)
        came: list[int] = []
        began, first_s = time.perf_counter(), 0.0

        def next_frame(_: int, reply: bytes | None) -> bytes | None:
            nonlocal first_s
            if reply is not None:
                messages = keyed.read_messages(reply)
                if not came:
                    first_s = time.perf_counter() - began
                came.extend(message.offset for message in messages)
                if not messages and (came or first_s > REDELIVERY_S_MAX):
                    return None
            return frames.pull(group, self._topic, BATCH, 1_000, None)

        load.closed_loop(connection, next_frame)
        connection[0].close()
        return came, first_s


def ack_series(folder: Path) -> list[Series]:
    """Of the ack map, each over a directory of its own."""
    above = AckMap(folder / "above", b"above", waiting_too=False)
    spread = AckMap(folder / "spread", b"spread", waiting_too=True)
    return [
        Series(f"{FINISHED:,} acknowledged above one", above.measure, reach=REACH),
        Series(f"{FINISHED:,} acknowledged, as many waiting between them", spread.measure, reach=REACH),
    ]


def backlog_series(backlog: Backlog) -> list[Series]:
    """Of the backlog."""
    name = f"{BACKLOG * RECORD_BYTES / (1 << 30):.3g} GiB consumed"
    ordered = partial(backlog.measure, order_key="KEY", order_scope="topic")
    return [
        Series(name, backlog.measure, reach=REACH),
        Series(f"{name} with order keys", ordered, reach=REACH),
    ]


def main() -> None:
    pin(CLIENT_CORE)
    with roomy_scratch(LOG_BYTES) as folder:
        backlog = Backlog(folder / "backlog")
        with backlog.server:
            every = backlog_series(backlog) + ack_series(folder)
            run("t11_memory", __doc__ or "", every, backlog=BACKLOG, body=BODY, finished=FINISHED)


if __name__ == "__main__":
    main()
