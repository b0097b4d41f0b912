"""The main job, told in steps: send, kill -9, restart, consume with four clients, prove.

What is proven: every file that was acknowledged came out with the same bytes; a file whose answer was
lost in the kill is sent again, so it may come twice, which is counted and shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from ddmq.demo import library
from ddmq.demo.library import LibraryFile
from ddmq.demo.server import DemoServer
from ddmq_client import Consumer, Message, NotStoredError, Producer, UnknownOutcomeError

TOPIC = "library"
GROUP = "demo"
SENDERS = 8
CONSUMERS = 4
GIVE_UP_S = 120.0


@dataclass
class Sent:
    """What the senders know, guarded by `lock`."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # path → checksum
    latencies_ms: list[float] = field(default_factory=list)
    sent_again: int = 0
    body_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    failure: Exception | None = None

    def note(self, file: LibraryFile, digest: str, began: float) -> None:
        with self.lock:
            self.acknowledged[file.path] = digest
            self.latencies_ms.append((time.monotonic() - began) * 1000)
            self.body_bytes += file.size


@dataclass
class Received:
    """What the consumers saw, guarded by `lock`."""

    intact: dict[str, int] = field(default_factory=dict)  # path → deliveries
    damaged: list[str] = field(default_factory=list)
    by_consumer: dict[int, int] = field(default_factory=dict)
    latencies_ms: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def send_all(address: str, files: list[LibraryFile], sent: Sent, when_at: Callable[[int], None]) -> None:
    """Send every file from SENDERS threads; `when_at(count)` hears how many are acknowledged."""
    pending = iter(files)
    lock = threading.Lock()

    def work(producer: Producer) -> None:
        while sent.failure is None:
            with lock:
                file = next(pending, None)
            if file is None:
                return
            try:
                send_one(producer, file, sent)
            except Exception as error:
                sent.failure = error
                return
            when_at(len(sent.acknowledged))

    with Producer(address, timeout_ms=5_000) as producer:
        run_threads([lambda: work(producer)] * SENDERS)
    if sent.failure is not None:
        raise sent.failure


def send_one(producer: Producer, file: LibraryFile, sent: Sent) -> None:
    """Send until it is acknowledged. A lost answer means: send again, maybe twice stored, never lost."""
    body = file.read()
    digest = library.checksum(body)
    give_up = time.monotonic() + GIVE_UP_S
    while True:
        began = time.monotonic()
        try:
            producer.send(
                TOPIC,
                body,
                key=file.module,
                properties={"path": file.path, "sha256": digest},
                shard_key=file.module,
            )
        except (UnknownOutcomeError, NotStoredError):
            if time.monotonic() > give_up:
                raise
            with sent.lock:
                sent.sent_again += 1
            time.sleep(0.05)  # the server is being started again; nothing to wait for but time
            continue
        sent.note(file, digest, began)
        return


def consume_all(address: str, wanted: dict[str, str], received: Received) -> float:
    """Consume with CONSUMERS clients until every wanted path came; returns the seconds it took."""
    began = time.monotonic()
    done = threading.Event()

    def handler_of(number: int) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            check(message, number, received)
            if len(received.intact) >= len(wanted):
                done.set()

        return handle

    consumers = [
        Consumer(address, GROUP, [TOPIC], handler=handler_of(n), threads=1) for n in range(CONSUMERS)
    ]
    for consumer in consumers:
        consumer.start()
    done.wait(GIVE_UP_S)
    seconds = time.monotonic() - began
    for consumer in consumers:
        consumer.stop()
    return seconds


def check(message: Message, number: int, received: Received) -> None:
    """Compare the body with the checksum that travelled beside it."""
    path = message.properties["path"]
    intact = library.checksum(message.body) == message.properties["sha256"]
    with received.lock:
        received.by_consumer[number] = received.by_consumer.get(number, 0) + 1
        if intact:
            received.intact[path] = received.intact.get(path, 0) + 1
        else:
            received.damaged.append(path)


def run_threads(works: list[Callable[[], None]]) -> None:
    """Run each in a thread of its own, and wait for all."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Story:
    """The steps, with what people read."""

    def __init__(self, server: DemoServer) -> None:
        self.server = server
        self.sent = Sent()
        self.received = Received()
        self._killed = threading.Event()
        self._restart_s = 0.0

    def run(self) -> bool:
        """True when everything was proven."""
        fit, rest = library.files()
        self._say(f"starting a server over {self.server.data_dir}")
        self._say(f"ready after {self.server.start():.2f} s: {self._where()}")
        self._create_group()
        self._say(f"sending {len(fit):,} files of {library.root()} (key = module, property = path)")
        if rest:
            self._say(f"left out: {len(rest)} files that are empty or over 2 MiB")
        send_s = self._send(fit)
        self._say(f"consuming with {CONSUMERS} clients as group {GROUP!r} (created with start first)")
        consume_s = consume_all(str(self.server.addresses["consumer"]), self.sent.acknowledged, self.received)
        return self._prove(len(fit), send_s, consume_s)

    def _create_group(self) -> None:
        from ddmq.cli.admin_client import AdminClient

        admin = AdminClient(self.server.addresses["admin"])
        admin.post("topics", TOPIC, body={"create": True})
        admin.post("groups", GROUP, body={"topics": [TOPIC], "start": "first"})

    def _send(self, files: list[LibraryFile]) -> float:
        began = time.monotonic()
        half = len(files) // 2

        def when_at(count: int) -> None:
            if count >= half and not self._killed.is_set():
                with self.sent.lock:
                    first = not self._killed.is_set()
                    self._killed.set()
                if first:
                    self._kill_and_restart(count)

        send_all(str(self.server.addresses["producer"]), files, self.sent, when_at)
        return time.monotonic() - began

    def _kill_and_restart(self, count: int) -> None:
        self._say(f"kill -9 after {count:,} acknowledged files, while the others are on their way")
        self.server.kill()
        self._restart_s = self.server.start()
        self._say(f"started again, ready after {self._restart_s:.2f} s")

    def _prove(self, files: int, send_s: float, consume_s: float) -> bool:
        sent, received = self.sent, self.received
        missing = sorted(set(sent.acknowledged) - set(received.intact))
        twice = sum(count > 1 for count in received.intact.values())
        shares = ", ".join(f"{received.by_consumer.get(n, 0):,}" for n in range(CONSUMERS))
        latency = sorted(sent.latencies_ms)
        p50, p99 = (latency[int(len(latency) * share)] for share in (0.5, 0.99))
        facts = [
            (
                "acknowledged",
                f"{len(sent.acknowledged):,} of {files:,} files, {sent.body_bytes / 1e6:,.1f} MB",
            ),
            (
                "send rate",
                f"{files / send_s:,.0f} files/s, kill and restart included ({self._restart_s:.2f} s)",
            ),
            ("send latency", f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, each answered after fsync"),
            ("sent again", f"{sent.sent_again:,} sends whose answer was lost in the kill"),
            ("delivered", f"{sum(received.by_consumer.values()):,} (to the four clients: {shares})"),
            ("consume rate", f"{len(received.intact) / consume_s:,.0f} files/s, checksums included"),
            ("arrived twice", f"{twice:,} (may be: sent again after an answer was lost)"),
            ("damaged", f"{len(received.damaged):,}"),
            ("lost", f"{len(missing):,}"),
        ]
        for name, value in facts:
            click.echo(f"  {name:<14} {value}")
        for path in missing[:10]:
            click.echo(f"  lost: {path}", err=True)
        proven = not missing and not received.damaged and len(sent.acknowledged) == files
        verdict = "every acknowledged file arrived intact" if proven else "NOT PROVEN: see above"
        self._say(verdict)
        return proven

    def _where(self) -> str:
        return " ".join(f"{part}={address}" for part, address in self.server.addresses.items())

    def _say(self, text: str) -> None:
        click.echo(f"[demo] {text}")
