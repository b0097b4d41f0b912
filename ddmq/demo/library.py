"""The demo's material: the files of Python's standard library, sent until each is acknowledged."""

from __future__ import annotations

import hashlib
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ddmq_client import NotStoredError, Producer, UnknownOutcomeError

BODY_BYTES_MAX = 2 << 20
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages"}
SENDERS = 8
GIVE_UP_S = 120.0
RETRY_DELAY_S = 0.05


class LibraryFile(NamedTuple):
    """A file of the library: `module` is its top-level module, `path` relative to the library."""

    module: str
    path: str
    size: int

    def read(self) -> bytes:
        return (library_root() / self.path).read_bytes()


def library_root() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def list_files() -> tuple[list[LibraryFile], list[LibraryFile]]:
    """Return (files that fit into a message, files that do not: empty ones and those over 2 MiB)."""
    fit: list[LibraryFile] = []
    rest: list[LibraryFile] = []
    for file in _walk_library():
        (fit if 0 < file.size <= BODY_BYTES_MAX else rest).append(file)
    return fit, rest


def _walk_library() -> Iterator[LibraryFile]:
    base = library_root()
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        if not _LEFT_OUT.intersection(relative.parts) and path.is_file():
            module = relative.parts[0].removesuffix(".py")
            yield LibraryFile(module, str(relative), path.stat().st_size)


def checksum(body: bytes) -> str:
    """Return the SHA-256 of a body in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


class FileMessage(NamedTuple):
    """A message of the demo that carries one source file.

    `number`: its place within its module. Files with the same `shard_key` go to the same queue.
    """

    topic: str
    file: LibraryFile
    number: int
    shard_key: str | None = None


@dataclass
class Sent:
    """The results of all sender threads, guarded by `lock`."""

    acknowledged: dict[str, str] = field(default_factory=dict)  # path → checksum
    latencies_ms: list[float] = field(default_factory=list)
    answered: list[tuple[int, str]] = field(default_factory=list)  # (wall clock in ms, module)
    resends: int = 0
    body_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    failure: Exception | None = None

    @property
    def answered_ms(self) -> list[int]:
        """The wall times in epoch ms at which sends were answered."""
        return [at_ms for at_ms, _ in self.answered]

    def record_answer(self, file: LibraryFile, digest: str, start: float) -> None:
        with self.lock:
            self.acknowledged[file.path] = digest
            self.latencies_ms.append((time.monotonic() - start) * 1000)
            self.answered.append((time.time_ns() // 1_000_000, file.module))
            self.body_bytes += file.size


def send_all(
    address: str,
    runs: Iterable[list[FileMessage]],
    sent: Sent,
    when_at: Callable[[int], None] = lambda _: None,
) -> float:
    """Send all messages from SENDERS threads, those of one run one after the other; return the seconds that
    it took.

    `when_at(count)` is called with the number of acknowledged messages. Raises the first error that a sender
    thread could not handle.
    """
    start = time.monotonic()
    pending = iter(runs)
    lock = threading.Lock()

    def send_runs(producer: Producer) -> None:
        while sent.failure is None:
            with lock:
                run = next(pending, None)
            if run is None:
                return
            try:
                for message in run:
                    send_one(producer, message, sent)
                    when_at(len(sent.acknowledged))
            except Exception as error:
                sent.failure = error
                return

    with Producer(address, timeout_ms=5_000) as producer:
        run_threads([lambda: send_runs(producer)] * SENDERS)
    if sent.failure is not None:
        raise sent.failure
    return time.monotonic() - start


def send_one(producer: Producer, message: FileMessage, sent: Sent) -> None:
    """Send a message again and again until it is acknowledged. After a lost answer it may be stored twice."""
    file = message.file
    body = file.read()
    digest = checksum(body)
    properties = {"path": file.path, "sha256": digest, "number": str(message.number)}
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        start = time.monotonic()
        try:
            producer.send(
                message.topic, body, key=file.module, properties=properties, shard_key=message.shard_key
            )
        except (UnknownOutcomeError, NotStoredError):
            if time.monotonic() > deadline:
                raise
            with sent.lock:
                sent.resends += 1
            time.sleep(RETRY_DELAY_S)  # the server is being started again; nothing to wait for but time
            continue
        sent.record_answer(file, digest, start)
        return


def run_threads(works: list[Callable[[], None]]) -> None:
    """Run each function in a thread of its own, and wait until all have returned."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
