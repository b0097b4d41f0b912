"""Systems with delayed messages, and ours, behind one shape.

`python -m bench.peers.delayed PORT` is the poller of the sorted set: every 10 ms what is due moves to a list.
"""

from __future__ import annotations

import select
import socket
import sys
import time
import uuid
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import redis

from bench import delay_rig, frames, groups, load
from bench.delay_orders import stamped
from bench.harness import CLIENT_CORE
from bench.peers import amqp
from bench.peers.programs import BeanstalkServer, RabbitServer, RedisServer
from bench.peers.system import System, launch

BATCH = 100
POLL_S = 0.01
RECEIVE_S = 1.0
DELAYED, READY = "delayed", "ready"
MOVE = """local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
for at = 1, #due, 100 do
  local part = {unpack(due, at, math.min(at + 99, #due))}
  redis.call('RPUSH', KEYS[2], unpack(part))
  redis.call('ZREM', KEYS[1], unpack(part))
end
return #due"""


class Delays(System):
    """`sends_per_s`: the slowest sending that due times allow for."""

    sends_per_s: ClassVar[int] = 1_000

    @abstractmethod
    def send(self, dues: list[float], body: int) -> None:
        """Messages of so many bytes with these due times (epoch seconds, ascending), durable."""

    @abstractmethod
    def receive(self) -> list[bytes]:
        """What a waiting client gets next, acknowledged; [] after a second without any."""


class DdmqDelays(Delays):
    name = "ours"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        data = self.folder / "data"
        server = delay_rig.start_server(data)
        self.rig = delay_rig.Rig(data, server, delay_rig.start_service(data), {})
        self.topic = self.rig.topic("peers")
        self._sockets = load.connect(server.addresses["consumer"], delay_rig.CONSUMERS)
        for one in self._sockets:
            one.send(self._pull(None))
        self._buffers = {one: bytearray() for one in self._sockets}

    def _pull(self, answer: frames.Pulled | None) -> bytes:
        done = None if answer is None else (answer.qid, list(answer.offsets))
        return frames.pull(self.topic, self.topic, 100, 500, done)

    def send(self, dues: list[float], body: int) -> None:
        requests = (
            delay_rig.delay_add(self.topic, stamped(due_ms, body), due_ms, str(uuid.uuid4()).encode())
            for due_ms in (int(due * 1e3) for due in dues)
        )
        delay_rig.send(self.rig.server, requests)

    def receive(self) -> list[bytes]:
        bodies = []
        for one in select.select(self._sockets, (), (), RECEIVE_S)[0]:
            buffer = self._buffers[one]
            buffer += one.recv(1 << 18)
            payload = load.thrift_payload(bytes(buffer))
            if payload is not None:
                buffer.clear()
                answer = frames.pulled(payload)
                one.send(self._pull(answer))
                bodies += [] if answer is None else [payload]
        return bodies

    def stop(self) -> None:
        if groups.lag(self.rig.server, self.topic):
            time.sleep(RECEIVE_S)  # the last answers are acknowledged with the pulls that wait now
        for one in self._sockets:
            one.close()
        self.rig.stop()


class RedisSortedSet(RedisServer, Delays):
    name = "Redis sorted set, 10 ms poll"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        poller = [sys.executable, "-m", "bench.peers.delayed", str(self.port)]
        self.processes.append(launch(poller, self.folder / "log", CLIENT_CORE))
        self._redis: Any = redis.Redis(port=self.port)
        self._number = 0

    def send(self, dues: list[float], body: int) -> None:
        for start in range(0, len(dues), BATCH):
            pipeline = self._redis.pipeline(transaction=False)
            for due in dues[start : start + BATCH]:
                self._number += 1  # members of a set differ
                pipeline.zadd(DELAYED, {stamped_exactly(due, body - 8) + b"%08x" % self._number: due})
            pipeline.execute()

    def receive(self) -> list[bytes]:
        popped = self._redis.blmpop(RECEIVE_S, 1, READY, direction="LEFT", count=BATCH)
        return [] if popped is None else list(popped[1])


class RabbitTtl(RabbitServer, Delays):
    name = "RabbitMQ TTL, dead-letter exchange"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sender, self._receiver = amqp.Channel(self.address), amqp.Channel(self.address, RECEIVE_S)
        self._sender.declare(READY, {})
        self._sender.declare(DELAYED, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": READY})
        self._sender.confirms()
        self._receiver.consume(READY, 1_000)

    def send(self, dues: list[float], body: int) -> None:
        for start in range(0, len(dues), BATCH):
            now = time.time()
            batch = [
                (max(-int((now - due) * 1e3), 0) + 1, stamped_exactly(due, body))
                for due in dues[start : start + BATCH]
            ]
            self._sender.publish(DELAYED, batch)

    def receive(self) -> list[bytes]:
        try:
            return self._receiver.delivered()
        except TimeoutError:
            return []

    def stop(self) -> None:
        self._sender.close()
        self._receiver.close()
        super().stop()


class Beanstalkd(BeanstalkServer, Delays):
    name = "beanstalkd, whole seconds"
    sends_per_s = 300

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._sender = socket.create_connection(self.address, timeout=60)
        self._receivers = load.connect(self.address, delay_rig.CONSUMERS)
        self._buffers = dict.fromkeys(self._receivers, b"")
        for one in self._receivers:
            one.send(b"reserve\r\n")

    def send(self, dues: list[float], body: int) -> None:
        for start in range(0, len(dues), BATCH):
            commands = []
            now = time.time()
            for due in dues[start : start + BATCH]:
                delay = max(round(due - now), 1)
                commands.append(
                    b"put 0 %d 600 %d\r\n%b\r\n" % (delay, body, stamped_exactly(now + delay, body))
                )
            self._sender.sendall(b"".join(commands))
            answers = b""
            while answers.count(b"\r\n") < len(commands):
                answers += self._sender.recv(1 << 16)
            if answers.count(b"INSERTED") != len(commands):
                raise AssertionError(f"beanstalkd answered {answers[:80]!r}")

    def receive(self) -> list[bytes]:
        bodies = []
        for one in select.select(self._receivers, (), (), RECEIVE_S)[0]:
            data = self._buffers[one] + one.recv(1 << 16)
            while data.startswith(b"DELETED\r\n"):
                data = data[9:]
            head, _, rest = data.partition(b"\r\n")
            words = head.split()
            if len(words) == 3 and len(rest) >= int(words[2]) + 2:
                bodies.append(rest[: int(words[2])])
                data = rest[int(words[2]) + 2 :]
                one.send(b"delete %b\r\nreserve\r\n" % words[1])
            self._buffers[one] = data
        return bodies

    def stop(self) -> None:
        for one in (self._sender, *self._receivers):
            one.close()
        super().stop()


ALL: tuple[type[Delays], ...] = (DdmqDelays, RedisSortedSet, RabbitTtl, Beanstalkd)


def stamped_exactly(due_s: float, body: int) -> bytes:
    """As `stamped`, with a due time that need not be a whole millisecond."""
    return stamped(due_s * 1e3, body)


def poll(port: int) -> None:
    """What is due moves to the list, as long as this process lives."""
    server: Any = redis.Redis(port=port)
    move = server.register_script(MOVE)
    while True:
        began = time.monotonic()
        while move(keys=[DELAYED, READY], args=[time.time()]):
            pass
        time.sleep(max(POLL_S - (time.monotonic() - began), 0))


if __name__ == "__main__":
    poll(int(sys.argv[1]))
