"""What a queue is to the work on it, and ours: what connections send, how they take and acknowledge.

Everything on the wire is prebuilt bytes, so that a client costs as little as it can; the answers are read as
far as is needed to know that all is stored, and how many messages came.
"""

from __future__ import annotations

import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import frames, groups, load
from bench.peers.system import System
from bench.servers import start_ddmq
from bench.t02_batch import request as ddmq_request

BODY = bytes(1024)
QUEUE, GROUP = "bench", "group"
TAKE = 100  # messages that are asked for at a time
TAKERS = 8
SILENCE_S = 30.0
SETTLED_S = 120.0


class Taker(ABC):
    """A connection that takes messages and acknowledges them."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.buffer = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @abstractmethod
    def begin(self) -> None:
        """Ask for the first ones."""

    def take(self) -> int:
        """Read what came: acknowledge it, ask for more; how many messages there were."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection under load")
        self.buffer += data
        return self.read()

    @abstractmethod
    def read(self) -> int:
        """Read the complete answers in the buffer; return how many messages they hold."""


class Queued(System):
    """`sends` and `pulls` are measured; `count_unacknowledged`: messages not taken or not acknowledged."""

    @abstractmethod
    def sends(self, connections: int, batch: int, calls: int) -> dict[str, float]:
        """So many calls of `batch` messages, one under way on each; raises unless all are stored."""

    @abstractmethod
    def pulls(self, count: int) -> dict[str, float]:
        """Take what is stored, which must be `count` messages; ends when all of it is acknowledged."""


class Wired(Queued):
    """With requests and answers on connections of its own."""

    address: tuple[str, int]

    def sends(self, connections: int, batch: int, calls: int) -> dict[str, float]:
        requests = [self.request(index, batch) for index in range(connections)]
        figures = load.driven(
            self.senders(connections),
            load.answered_ok(requests, calls, bool),
            calls,
            self.cpu_us,
            partial(self.answer, batch),
        )
        return figures | {"per_s": figures["per_s"] * batch, "cpu_us": figures["cpu_us"] / batch}

    def pulls(self, count: int) -> dict[str, float]:
        takers = [self.taker(index) for index in range(TAKERS)]
        began, last_at = time.perf_counter(), 0.0

        def act() -> int:
            nonlocal last_at
            came = 0
            for one in takers:
                one.begin()
            while came < count:
                ready = select.select(takers, (), (), SILENCE_S)[0]
                if not ready:
                    raise AssertionError(f"{self.name}: {count} stored, {came} came")
                came += sum(one.take() for one in ready)
            if came > count:
                raise AssertionError(f"{self.name}: {count} stored, {came} came")
            self._settle()
            last_at = time.perf_counter()
            return count

        cost_us = self.cpu_us(act)
        for one in takers:
            one.socket.close()
        return {"per_s": count / (last_at - began), "cpu_us": cost_us}

    def _settle(self) -> None:
        give_up = time.monotonic() + SETTLED_S
        while remaining := self.count_unacknowledged():
            if time.monotonic() > give_up:
                raise AssertionError(f"{self.name}: all is acknowledged, {remaining} are left")
            time.sleep(0.01)

    def senders(self, count: int) -> list[socket.socket]:
        """Connections on which requests can be sent."""
        return load.connect(self.address, count)

    @abstractmethod
    def request(self, index: int, batch: int) -> bytes:
        """What connection `index` sends."""

    @abstractmethod
    def answer(self, batch: int, data: bytes) -> bytes | None:
        """What has come, when all of the batch are stored; None before. Raises for a refusal."""

    @abstractmethod
    def taker(self, index: int) -> Taker:
        """A connection that takes messages."""

    @abstractmethod
    def count_unacknowledged(self) -> int:
        """Messages not taken, or not acknowledged durably."""


def stored(complete: bool, good: bool, data: bytes) -> bytes | None:
    """For `Wired.answer`."""
    if not good:
        raise AssertionError(f"not stored: {data[:200]!r}")
    return data if complete else None


# --- ours


class DdmqQueue(Wired):
    name = "ours"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = start_ddmq(self.folder / "data")
        self.address = self._server.addresses["producer"]
        groups.establish(self._server, QUEUE.encode(), GROUP.encode())

    def request(self, index: int, batch: int) -> bytes:
        return ddmq_request(QUEUE.encode(), index, batch, len(BODY))

    def answer(self, batch: int, data: bytes) -> bytes | None:
        payload = load.thrift_payload(data)
        return None if payload is None else stored(True, frames.reply_ok(payload), payload)

    def taker(self, index: int) -> Taker:
        return DdmqTaker(load.connect(self._server.addresses["consumer"], 1)[0])

    def count_unacknowledged(self) -> int:
        return groups.lag(self._server, GROUP.encode())

    def cpu_us(self, act: Callable[[], int]) -> float:
        return self._server.cpu_us(act)

    def stop(self) -> None:
        self._server.stop()


class DdmqTaker(Taker):
    def begin(self) -> None:
        self._pull(None)

    def _pull(self, answer: frames.Pulled | None) -> None:
        done = None if answer is None else (answer.qid, answer.offsets)
        self.socket.sendall(frames.pull(GROUP.encode(), QUEUE.encode(), TAKE, 20, done))

    def read(self) -> int:
        payload = load.thrift_payload(bytes(self.buffer))
        if payload is None:
            return 0
        self.buffer.clear()
        answer = frames.pulled(payload)
        self._pull(answer)
        return 0 if answer is None else answer.messages
