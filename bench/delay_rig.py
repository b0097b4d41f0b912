"""What the delay benchmarks share: a directory with millions pending, its servers, and clients that wait.

Producer and consumer proxy are one process, the delay service another, the clients a third; the delay service
runs on the clients' core. `DDMQ_BENCH_PENDING` (`ddmq bench NAME --pending N`) says how many are pending
meanwhile, 10 million by default. They are made once, in bench/.scratch/pending-…, and used again by every
benchmark that follows; delete that folder to have its space back.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench import delay_orders, frames, groups, load
from bench.delay_orders import stamps
from bench.harness import CLIENT_CORE, percentiles, sized
from bench.servers import Running, scratch, start
from ddmq_common.delivery import zigzag

PENDING = int(os.environ.get("DDMQ_BENCH_PENDING", sized(10_000_000, 20_000)))
PENDING_BODY = 128
PENDING_TOPIC = "pending"
SOONEST_MS, DUE_RANGE_MS = 20 * 86_400_000, 30 * 86_400_000  # due in 20 to 50 days
USABLE_S = 10 * 86_400  # after that a directory is made anew
STATE_FILE = "made.json"
PORTION = 10_000_000  # made at a time; the log of those before may go then
LOG_BYTES_MAX = 10 << 30
LOG_BYTES_EACH, STORE_BYTES_EACH = 750, 300  # of disk; the store twice while it is put in order
STORED_S = 1e-4  # what one order may take until it is in the store, and
STORED_S_MIN = 60.0
SILENCE_S = 30.0
LEADS = 4  # tries to have everything stored before it is due
Chosen = TypeVar("Chosen")
CONSUMERS = 4
LINGER_MS = 500
EDGES_MS = (1, 2, 5, 10, 20, 50, 100, 1_000)


@dataclass
class Rig:
    """`data`: the directory. `facts`: how many are pending, and what making them was like."""

    data: Path
    server: Running
    service: Running
    facts: dict[str, Any]
    _names: int = field(default=0)

    def stop(self) -> None:
        self.service.stop()
        self.server.stop()

    def restart_service(self) -> None:
        """After it was killed."""
        self.service = start_service(self.data)

    def topic(self, what: str) -> bytes:
        """A new topic with a group of the same name that waits for its messages."""
        self._names += 1
        name = f"{what}-{time.time_ns():x}-{self._names}".encode()
        groups.establish(self.server, name, name)
        return name

    def numbers(self, count: int) -> int:
        """The first of so many order numbers that nobody has had in this directory."""
        path = self.data.parent / STATE_FILE
        state = json.loads(path.read_text())
        first: int = state["numbers"]
        path.write_text(json.dumps(state | {"numbers": first + count}))
        return first


def start_server(data: Path) -> Running:
    """Producer and consumer proxy."""
    return start(["bench.serve_parts", str(data)])


def start_service(data: Path, config: Path | None = None) -> Running:
    """The delay service."""
    arguments = ["ddmq", "delay-service", "--data-dir", str(data), "--admin", "127.0.0.1:0"]
    return start(arguments + (["--config", str(config)] if config else []), {CLIENT_CORE})


def pending(service: Running) -> int:
    """How many messages wait in its stores."""
    count: int = groups.admin(service, "GET", "/delay")["pending"]
    return count


def wait_stored(service: Running, pending_count: int, count: int) -> None:
    """Until so many are pending; `count`: how many of them are new."""
    give_up = time.monotonic() + STORED_S_MIN + count * STORED_S * 10
    while (actual := pending(service)) != pending_count:
        if time.monotonic() > give_up:
            raise AssertionError(f"{pending_count} are to be pending, {actual} are")
        time.sleep(0.02)


def stored_ahead(
    service: Running, lead_s: float, count: int, put: Callable[[float], Chosen]
) -> tuple[Chosen, float]:
    """Have `put` add so many messages, the first due at the time that it is given; all of them are in the
    store before that. What it chose (topics, a new one each time) and when the first is due. On a machine
    that was too slow it is done again with more time, when those that came too late are gone.
    """
    before = pending(service)
    for _ in range(LEADS):
        due_s = time.time() + lead_s
        chosen = put(due_s)
        while pending(service) != before + count and time.time() < due_s:
            time.sleep(0.02)
        if time.time() < due_s:
            return chosen, due_s
        wait_stored(service, before, count)
        lead_s *= 4
    raise AssertionError(f"the machine is too slow: {count} messages were due before all were stored")


@contextmanager
def rig(count: int = PENDING) -> Iterator[Rig]:
    """Servers over a directory with `count` pending (and what was left there by benchmarks before)."""
    folder = prepared(count)
    state = json.loads((folder / STATE_FILE).read_text())
    server = start_server(folder / "data")
    try:
        service = start_service(folder / "data")
    except BaseException:
        server.stop()
        raise
    servers = Rig(folder / "data", server, service, state["facts"])
    try:
        yield servers
    finally:
        servers.stop()


# --- the directory


def prepared(count: int = PENDING) -> Path:
    """The folder with so many pending; made when there is none that can be used. Takes minutes then."""
    folder = scratch() / f"pending-{count}"
    try:
        state = json.loads((folder / STATE_FILE).read_text())
    except (OSError, ValueError):
        state = {"at": 0.0}
    if time.time() - state["at"] < USABLE_S:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    required_bytes = 2 * (min(count, PORTION) * LOG_BYTES_EACH + count * STORE_BYTES_EACH)
    if free < required_bytes:
        raise SystemExit(
            f"{folder.parent}: {free} bytes free; {required_bytes} are wanted for {count} pending: "
            "choose another disk (DDMQ_BENCH_DIR), or fewer (--pending)"
        )
    due_ms = int(time.time() * 1_000) + SOONEST_MS
    facts = _make(folder / "data", count, due_ms)
    state = {"at": time.time(), "numbers": count, "due_ms": due_ms, "span_ms": DUE_RANGE_MS, "facts": facts}
    (folder / STATE_FILE).write_text(json.dumps(state))
    print(f"   made {folder.name}: {json.dumps(facts)}", flush=True)
    return folder


def _make(data: Path, count: int, due_ms: int) -> dict[str, Any]:
    """Orders into the inner topic, then a delay service that takes them in."""
    appended_s = ingested_s = 0.0
    anonymous = 0
    config = data.parent / "config"
    config.mkdir(parents=True)
    (config / "file_log.yaml").write_text(f"retention:\n  log_bytes_max: {LOG_BYTES_MAX}\n")
    for first in range(0, count, PORTION):
        portion = min(PORTION, count - first)
        appended_s += portion / delay_orders.add(
            data, PENDING_TOPIC, first, portion, PENDING_BODY, due_ms, DUE_RANGE_MS
        )
        began = time.perf_counter()
        service = start_service(data, config)
        try:
            wait_stored(service, first + portion, portion)
            ingested_s += time.perf_counter() - began
            anonymous = max(anonymous, service.anonymous_bytes())
        finally:
            service.stop()
    return {
        "pending": count,
        "pending_body": PENDING_BODY,
        "appended_per_s": round(count / appended_s),
        "taken_in_per_s": round(count / ingested_s),
        "rss_anon_mib_after": round(anonymous / (1 << 20), 1),
        "log_mib": _mib(data / "commitlog"),
        "store_mib": _mib(data / "delay"),
    }


def _mib(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) >> 20


# --- clients


def delay_add(topic: bytes, body: bytes, due_ms: int, uuid: bytes, timeout_ms: int = 5_000) -> bytes:
    """sendDelaySync of an add of type 2 due at a millisecond (field 101, of ours)."""
    message = (
        b"\x18" + frames.text(topic) + b"\x28" + frames.text(body) + b"\x18" + frames.text(b"tag")
        + b"\x15" + zigzag(1) + b"\x25" + zigzag(2) + b"\x48" + frames.text(uuid)
        + b"\x28" + frames.text(b"bench") + b"\x06" + zigzag(101) + zigzag(due_ms) + b"\x00"
    )  # fmt: skip
    return frames.call("sendDelaySync", b"\x1c" + message + b"\x16" + zigzag(timeout_ms) + b"\x00")


def send(server: Running, requests: Iterator[bytes], connections: int = 64) -> list[float]:
    """All of them, one call under way on each connection; seconds that each took."""
    sockets = load.connect(server.addresses["producer"], connections)

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        if reply is not None and b"\x02OK" not in reply:
            raise AssertionError(f"not stored: {reply!r}")
        return next(requests, None)

    try:
        return load.closed_loop(sockets, next_frame)
    finally:
        for one in sockets:
            one.close()


class Receiver:
    """Clients that wait for messages of several topics, `CONSUMERS` each. Times are epoch seconds.
    `gaps`: offsets of an answer need not follow each other, as on Kafka, where transactions end between them.

    `dues`, `late`: topic → due time and lateness (seconds) of each message as it came.
    """

    def __init__(self, server: Running, message_counts: Mapping[bytes, int], *, gaps: bool = False) -> None:
        self._message_counts = dict(message_counts)
        self._gaps = gaps
        self.dues: dict[bytes, list[float]] = {topic: [] for topic in message_counts}
        self.late: dict[bytes, list[float]] = {topic: [] for topic in message_counts}
        self.first_at: dict[bytes, float] = {}
        self.last_at: dict[bytes, float] = dict.fromkeys(message_counts, 0.0)
        self._poll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, bytes, bytearray]] = {}
        for topic in message_counts:
            for one in load.connect(server.addresses["consumer"], CONSUMERS):
                self._sockets[one.fileno()] = one, topic, bytearray()
                self._poll.register(one, select.EPOLLIN)
                one.send(frames.pull(topic, topic, 100, LINGER_MS, None))

    @property
    def complete(self) -> bool:
        return all(len(self.late[topic]) >= count for topic, count in self._message_counts.items())

    def by_due(self, topic: bytes) -> list[tuple[float, float]]:
        """(due, late) of each of its messages."""
        return list(zip(self.dues[topic], self.late[topic], strict=True))

    def run(self, until: float) -> None:
        """Until all came and are acknowledged. Raises AssertionError when `until` (epoch seconds) has passed
        and nothing came for a while; when more came than were to come; when one came early."""
        while self._sockets:
            for fd, _ in self._poll.poll(1.0):
                self._receive(fd)
            silent = time.time() - max(until, *self.last_at.values())
            if silent > SILENCE_S:
                raise AssertionError(f"to come: {self._message_counts}, came: {self._came()}, then nothing")
        if self._came() != self._message_counts:
            raise AssertionError(f"to come: {self._message_counts}, came: {self._came()}")
        earliest = min(min(late) for late in self.late.values() if late)
        if earliest < 0:
            raise AssertionError(f"a message came {-earliest * 1000:.3f} ms early")

    def _came(self) -> dict[bytes, int]:
        return {topic: len(late) for topic, late in self.late.items()}

    def _receive(self, fd: int) -> None:
        one, topic, buffer = self._sockets[fd]
        data = one.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        buffer += data
        payload = load.thrift_payload(bytes(buffer))
        if payload is None:
            return
        buffer.clear()
        now = time.time()
        answer = frames.pulled(payload)
        if answer is None:
            if self.complete:
                self._poll.unregister(one)
                del self._sockets[fd]
                one.close()
                return
            one.send(frames.pull(topic, topic, 100, LINGER_MS, None))
            return
        offsets = list(frames.offsets(payload, answer) if self._gaps else answer.offsets)
        came = stamps(payload)
        if len(came) != answer.messages:
            raise AssertionError(f"{answer.messages} messages in an answer, {len(came)} are ours")
        self.dues[topic] += came
        self.late[topic] += [now - due for due in came]
        self.first_at.setdefault(topic, now)
        self.last_at[topic] = now
        one.send(frames.pull(topic, topic, 100, LINGER_MS, (answer.qid, offsets)))


def lateness(late: list[float]) -> dict[str, float]:
    """p50, p99, p99.9, the worst, and the histogram: how many per cent were at most so late."""
    figures = percentiles(late) | {"max_ms": max(late) * 1e3}
    for edge in EDGES_MS:
        figures[f"within_{edge}_ms_%"] = 100 * sum(one * 1e3 <= edge for one in late) / len(late)
    return figures
