"""Redis Streams, RabbitMQ, NATS JetStream and beanstalkd as queues, each in the words of its own protocol."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import redis

from bench import load
from bench.peers import amqp
from bench.peers.programs import BeanstalkServer, NatsServer, RabbitServer, RedisServer
from bench.peers.queued import BODY, GROUP, QUEUE, TAKE, Taker, Wired, stored

# --- Redis


class RedisStreams(RedisServer, Wired):
    name = "Redis Streams"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._redis: Any = redis.Redis(port=self.port)
        self._redis.xgroup_create(QUEUE, GROUP, "0", mkstream=True)

    def request(self, index: int, batch: int) -> bytes:
        return command(b"XADD", QUEUE.encode(), b"*", b"k", b"key-%d" % index, b"b", BODY) * batch

    def answer(self, batch: int, data: bytes) -> bytes | None:
        return stored(data.count(b"\r\n") == 2 * batch, data.startswith(b"$") and b"\r\n-" not in data, data)

    def taker(self, index: int) -> Taker:
        return RedisTaker(load.connect(self.address, 1)[0], b"taker-%d" % index)

    def count_unacknowledged(self) -> int:
        group = self._redis.xinfo_groups(QUEUE)[0]
        return int(group["pending"]) + int(group["lag"])


def command(*words: bytes) -> bytes:
    """As Redis reads one."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class RedisTaker(Taker):
    """What it asks for ends with a PING, whose answer says that all is there."""

    END = b"+PONG\r\n"
    ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")

    def __init__(self, connection: socket.socket, name: bytes) -> None:
        super().__init__(connection)
        group, queue = GROUP.encode(), QUEUE.encode()
        read = command(b"XREADGROUP", b"GROUP", group, name, b"COUNT", b"%d" % TAKE, b"STREAMS", queue, b">")
        self._read = read + command(b"PING")

    def begin(self) -> None:
        self.socket.sendall(self._read)

    def read(self) -> int:
        if not self.buffer.endswith(self.END):
            return 0
        ids = self.ID.findall(self.buffer)
        self.buffer.clear()
        if ids:
            self.socket.sendall(command(b"XACK", QUEUE.encode(), GROUP.encode(), *ids) + self._read)
        return len(ids)


# --- RabbitMQ


class RabbitQuorum(RabbitServer, Wired):
    name = "RabbitMQ quorum queue"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._channel = amqp.Channel(self.address)
        self._channel.declare(QUEUE, {"x-queue-type": "quorum"})

    def senders(self, count: int) -> list[socket.socket]:
        channels = [amqp.Channel(self.address) for _ in range(count)]
        for one in channels:
            one.confirms()
            one.socket.setblocking(False)
        return [one.socket for one in channels]

    def request(self, index: int, batch: int) -> bytes:
        return amqp.message(QUEUE, BODY) * batch

    def answer(self, batch: int, data: bytes) -> bytes | None:
        confirms = list(amqp.confirms(data))
        if not confirms:
            return None
        before = (confirms[0].tag - 1) // batch * batch
        upto = max((one.tag for one in confirms if one.multiple), default=before)
        singly = sum(one.tag > upto for one in confirms)
        return stored(upto + singly == before + batch, True, data)

    def taker(self, index: int) -> Taker:
        return RabbitTaker(amqp.Channel(self.address))

    def count_unacknowledged(self) -> int:
        return self._channel.waiting(QUEUE)


class RabbitTaker(Taker):
    def __init__(self, channel: amqp.Channel) -> None:
        super().__init__(channel.socket)
        self._channel = channel

    def begin(self) -> None:
        self._channel.consume(QUEUE, 2 * TAKE)

    def take(self) -> int:
        return self.read()

    def read(self) -> int:
        return len(self._channel.delivered())


# --- NATS


class NatsJetStream(NatsServer, Wired):
    name = "NATS JetStream"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._requests = self._connected(b"_A")
        stream = b'{"name":"bench","subjects":["bench"],"storage":"file","retention":"workqueue"}'
        consumer = (
            b'{"stream_name":"bench","config":{"durable_name":"group","ack_policy":"explicit",'
            b'"max_ack_pending":-1,"ack_wait":600000000000}}'
        )
        self._request(b"STREAM.CREATE.bench", stream)
        self._request(b"CONSUMER.DURABLE.CREATE.bench.group", consumer)

    def _connected(self, inbox: bytes) -> socket.socket:
        """A connection that gets what is sent to `inbox`."""
        connection = socket.create_connection(self.address, timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB %b 1\r\nPING\r\n' % inbox
        )
        came = b""
        while b"PONG\r\n" not in came:
            came += connection.recv(1 << 16)
        return connection

    def _request(self, what: bytes, payload: bytes = b"") -> bytes:
        self._requests.sendall(nats_pub(b"$JS.API." + what, b"_A", payload))
        came = b""
        while not came.endswith(b"}\r\n"):
            came += self._requests.recv(1 << 16)
            came = came.replace(b"PING\r\n", b"")
        if b'"error"' in came:
            raise AssertionError(f"{what!r}: {came!r}")
        return came

    def senders(self, count: int) -> list[socket.socket]:
        connections = [self._connected(b"_R.%d" % index) for index in range(count)]
        for one in connections:
            one.setblocking(False)
        return connections

    def request(self, index: int, batch: int) -> bytes:
        return nats_pub(QUEUE.encode(), b"_R.%d" % index, BODY) * batch

    def answer(self, batch: int, data: bytes) -> bytes | None:
        return stored(data.count(b"}\r\n") == batch, b'"error"' not in data and b"-ERR" not in data, data)

    def taker(self, index: int) -> Taker:
        inbox = b"_P.%d" % index
        return NatsTaker(self._connected(inbox), inbox)

    def count_unacknowledged(self) -> int:
        reply = self._request(b"CONSUMER.INFO.bench.group")
        return sum(int(number) for number in re.findall(rb'"num_(?:ack_)?pending":(\d+)', reply))


def nats_pub(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


class NatsTaker(Taker):
    def __init__(self, connection: socket.socket, inbox: bytes) -> None:
        super().__init__(connection)
        self._next = nats_pub(
            b"$JS.API.CONSUMER.MSG.NEXT.bench.group", inbox, b'{"batch":%d,"expires":1000000000}' % TAKE
        )
        self._due = TAKE

    def begin(self) -> None:
        self.socket.sendall(self._next)

    def read(self) -> int:
        buffer, at, is_expired = self.buffer, 0, False
        answers = []
        while (end := buffer.find(b"\r\n", at)) >= 0:
            words = bytes(buffer[at:end]).split()
            behind = end + 2
            if words[0] in (b"MSG", b"HMSG"):
                behind += int(words[-1]) + 2
                if len(buffer) < behind:
                    break
                if words[0] == b"MSG":
                    answers.append(b"PUB %b 4\r\n+ACK\r\n" % words[3])
                else:
                    is_expired = True  # a status: no more of these 100 come
            at = behind
        del buffer[:at]
        came = len(answers)
        self._due -= came
        if is_expired or not self._due:
            self._due = TAKE
            answers.append(self._next)
        if answers:
            self.socket.sendall(b"".join(answers))
        return came


# --- beanstalkd


class BeanstalkTube(BeanstalkServer, Wired):
    name = "beanstalkd"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._requests = socket.create_connection(self.address, timeout=30)

    def request(self, index: int, batch: int) -> bytes:
        return b"put 0 0 600 %d\r\n%b\r\n" % (len(BODY), BODY) * batch

    def answer(self, batch: int, data: bytes) -> bytes | None:
        lines = data.count(b"\r\n")
        return stored(lines == batch, data.count(b"INSERTED ") >= lines, data)

    def taker(self, index: int) -> Taker:
        return BeanstalkTaker(load.connect(self.address, 1)[0])

    def count_unacknowledged(self) -> int:
        self._requests.sendall(b"stats-tube default\r\n")
        reply = self._requests.recv(1 << 16)
        return sum(int(number) for number in re.findall(rb"current-jobs-(?:ready|reserved): (\d+)", reply))


class BeanstalkTaker(Taker):
    """A reserve gives one job, so 100 of them are asked for in a row."""

    RESERVE = b"reserve-with-timeout 0\r\n" * TAKE

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._due = TAKE
        self._reserved = 0  # of the last ones that were asked for

    def begin(self) -> None:
        self.socket.sendall(self.RESERVE)

    def read(self) -> int:
        buffer, at = self.buffer, 0
        done = []
        while (end := buffer.find(b"\r\n", at)) >= 0:
            words = bytes(buffer[at:end]).split()
            behind = end + 2
            if words[0] == b"RESERVED":
                behind += int(words[2]) + 2
                if len(buffer) < behind:
                    break
                done.append(b"delete %b\r\n" % words[1])
            elif words[0] not in (b"TIMED_OUT", b"DELETED"):
                raise AssertionError(f"beanstalkd answered {bytes(buffer[at:end])!r}")
            self._due -= words[0] != b"DELETED"
            at = behind
        del buffer[:at]
        came = len(done)
        self._reserved += came
        if not self._due and self._reserved:
            self._due, self._reserved = TAKE, 0
            done.append(self.RESERVE)
        if done:
            self.socket.sendall(b"".join(done))
        return came
