"""A small proxy for the client's tests: both services over threads, with faults on command.

It speaks through thriftpy2's own compact protocol, so that the client's codec is read by another one. It
stores in memory, leases messages and takes results; it checks nothing. `Standin.faults` holds what shall go
wrong with the next calls of a method, in order:

    refuse(code)    answer this code, store nothing        HOLD    wait for `release()`, go on as usual
    BEFORE, AFTER   close the connection before / after storing
    HALF            store, answer half of the frame, close
    GARBAGE, OTHER_SEQUENCE, FAULT, PULL_ERROR             answers of those kinds

With `recognises` it stores what has a key or a sequence once, as docs/wire-additions.md says, else it passes
over both; `takes_keys` False: it refuses keys. `known` is what it recognises: two that share it and `stored`
are proxies of one cluster.

Transactions are in standin_transactions.py.

A delayed message waits in `delayed` by its uuid; one added, cancelled or fired before is known as such.

A fetch gives one queue for each topic, where the messages have the offsets that they have in `stored`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from thriftpy2.protocol.compact import TCompactProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TMemoryBuffer

from ddmq_client.idl import consumer as consumer_idl
from ddmq_client.idl import producer as producer_idl
from tests.service.client.standin_transactions import StandinTransactions
from tests.support.ports import port_of, reserved

LONG_MS = 10_000


class Fault(NamedTuple):
    kind: str
    code: int = 0


BEFORE, AFTER, HALF = Fault("before"), Fault("after"), Fault("half")
GARBAGE, OTHER_SEQUENCE, FAULT = Fault("garbage"), Fault("sequence"), Fault("fault")
HOLD = Fault("hold")
PULL_ERROR = Fault("pull error")


def refuse(code: int) -> Fault:
    return Fault("refuse", code=code)


class Closed(Exception):
    pass


class Standin(StandinTransactions):
    """Listens on a port of its own; `stop` and `restart` keep the port and what is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.stored: list[Any] = []  # producer Messages, in the order they were stored
        self.full = False
        self.closed: set[str] = set()  # topics that take nothing for now
        self.calls: list[tuple[str, Any]] = []  # (method, arguments), in order, without heartbeats
        self.recognises = False
        self.takes_keys = True
        self.stored_identities: dict[tuple[Any, ...], int] = {}  # identity -> index in `stored`
        self.below: dict[bytes, int] = defaultdict(int)  # producer -> the highest answeredBelow it said
        self.results: list[Any] = []  # every element of every ConsumeResult taken
        self.leases: dict[int, tuple[str, int]] = {}  # lease -> (topic, offset)
        self.done: set[tuple[str, int]] = set()
        self.delayed: dict[str, Any] = {}  # uuid -> DelayMessage that waits
        self.past: dict[str, int] = {}  # uuid -> outcome of one that waits no more
        self.acked: dict[str, int] = {}  # topic -> next offset, by ack
        self.lease_ms: int | None = None  # which a proxy of the first release does not tell
        self.assigned = True  # whether a fetch gets any queues
        self.heartbeats = 0
        self.connections = 0
        self._released = threading.Semaphore(0)
        self._attempts: dict[tuple[str, int], int] = defaultdict(int)
        self._open: set[socket.socket] = set()
        self.reserved = reserved()  # also while it is stopped
        self.port = port_of(self.reserved)
        self._listener = self._listen()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait(self, what: Any, seconds: float = 20.0) -> None:
        """Until `what()` holds, looked at after every change."""
        until = time.monotonic() + seconds
        with self.changed:
            while not what():
                left = until - time.monotonic()
                assert left > 0, f"did not happen within {seconds} s: calls={self.calls[-5:]}"
                self.changed.wait(min(left, 0.02))

    def put(self, topic: str, *bodies: bytes) -> None:
        """Messages to pull, as if they had been sent."""
        with self.changed:
            self.stored += [producer_idl.Message(topic=topic, body=body, key="k") for body in bodies]
            self.changed.notify_all()

    def requeue(self, topic: str, offset: int) -> None:
        """A lease has ended: the message is delivered again."""
        with self.changed:
            for lease, where in list(self.leases.items()):
                if where == (topic, offset):
                    del self.leases[lease]
            self.changed.notify_all()

    def release(self) -> None:
        """One call that is on HOLD goes on."""
        self._released.release()

    def stop(self) -> None:
        _end(self._listener)  # closing alone would leave accept, and the port, as they are
        for connection in list(self._open):
            _end(connection)
        with self.changed:
            self.life += 1
            self.leases.clear()
            self.changed.notify_all()

    def restart(self) -> None:
        self._listener = self._listen()

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.add(connection)
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while True:
                size = int.from_bytes(_exactly(connection, 4), "big")
                answer = self._answer(_exactly(connection, size))
                if answer is not None:
                    connection.sendall(answer)
        except (OSError, Closed) as error:
            half = error.args[0] if isinstance(error, Closed) and error.args else b""
            if half:
                connection.sendall(half)
        finally:
            self._open.discard(connection)
            _end(connection)

    def _answer(self, payload: bytes) -> bytes | None:
        reader = TCompactProtocol(TMemoryBuffer(payload))
        method, kind, sequence_id = reader.read_message_begin()
        if method == "settle":  # as a proxy of the first release, which lacks it
            return _unknown_method(method, sequence_id)
        service = (
            consumer_idl.ConsumerService
            if method in consumer_idl.ConsumerService.thrift_services
            else producer_idl.ProducerService
        )
        args = getattr(service, method + "_args")()
        args.read(reader)
        with self.changed:
            fault = self._next_fault(method, args)
            if not _is_heartbeat(method, args):
                self.calls.append((method, args))
            self.changed.notify_all()
        if fault is HOLD:
            assert self._released.acquire(timeout=30)
            fault = None
        value = self._do(method, args, fault)
        if kind == TMessageType.ONEWAY:
            return None
        result = getattr(service, method + "_result")()
        if fault is not None and fault.kind == "pull error":
            result.error = consumer_idl.PullException(code=7, message="filter is wrong at 3")
        else:
            result.success = value
        return _written(method, sequence_id, result, fault)

    def _next_fault(self, method: str, args: Any) -> Fault | None:
        if _is_heartbeat(method, args):
            return None
        return self.faults[method].popleft() if self.faults[method] else None

    def _do(self, method: str, args: Any, fault: Fault | None) -> Any:
        if fault is not None and fault.kind == "before":
            raise Closed
        if fault is not None and fault.kind in ("garbage", "fault", "sequence", "pull error"):
            return None
        value = getattr(self, "_" + method)(args, fault)
        if fault is not None and fault.kind == "after":
            raise Closed
        return value

    def _sendSync(self, args: Any, fault: Fault | None) -> Any:  # noqa: N802
        if args.message.topic == "carrera_heartbeat":
            self.heartbeats += 1
            return producer_idl.Result(code=0, msg="OK")
        return self._store(args.message, fault.code if fault else 0)

    def _sendBatch(self, args: Any, fault: Fault | None) -> Any:  # noqa: N802
        """A refusal hits the first member only; when it is `full`, all get 15."""
        code, others = (15, 15) if self.full else (fault.code if fault else 0, 0)
        codes = [code] + [others] * (len(args.messages) - 1)
        return [self._store(*pair) for pair in zip(args.messages, codes, strict=True)]

    def _sendOneway(self, args: Any, fault: Fault | None) -> Any:  # noqa: N802
        self._store(args.message, 0)

    def _sendDelaySync(self, args: Any, fault: Fault | None) -> Any:  # noqa: N802
        message = args.delayMessage
        if fault is not None and fault.code:
            return producer_idl.DelayResult(code=fault.code, msg=f"FAILED: told to answer {fault.code}")
        ident = message.uniqDelayMsgId or f"1700000000-5-0000000000-0-0-0-0-{message.uuid}"
        with self.changed:
            outcome, fired, due = self._delay(message, ident.split("-", 7)[7])
            self.changed.notify_all()
        return producer_idl.DelayResult(
            code=0, msg="OK", uniqDelayMsgId=ident, outcome=outcome, firedAtMs=fired, dueMs=due
        )

    def _delay(self, message: Any, uuid: str) -> tuple[int, int | None, int | None]:
        """(outcome, firedAtMs, dueMs)."""
        due = message.dueMs or 1_700_000_000_000 + (message.delayMs or 0)
        if message.action == 1:
            self.delayed.setdefault(uuid, message)
            return 1, None, due
        if uuid not in self.delayed:
            outcome = self.past.get(uuid, 4)
            return outcome, 1_700_000_000_123 if outcome == 3 else None, None
        if message.action == 100:
            return 1, None, due
        self.past[uuid] = 2 if message.action == 2 else 3
        del self.delayed[uuid]
        return self.past[uuid], None if message.action == 2 else 1_700_000_000_123, None

    def _store(self, message: Any, code: int) -> Any:
        if message.topic in self.closed:
            return producer_idl.Result(code=13, msg=f"FAILED: topic {message.topic!r} is not writable")
        if code:
            return _refused(code)
        identity = _identity(message)
        if identity is None:
            return _refused(11)
        with self.changed:
            if identity and not self.takes_keys and identity[0] == "key":
                return producer_idl.Result(code=11, msg="FAILED: cannot tell whether it was stored before")
            duplicate = self._duplicate(message, identity)
            if duplicate == -1:
                return _refused(11)
            if not duplicate:
                self.stored.append(message)
                if identity:
                    self.stored_identities[identity] = len(self.stored) - 1
            offset = self.stored_identities[identity] if identity else len(self.stored) - 1
            self.changed.notify_all()
        extended_fields = {"messageId": f"{offset:032x}", "queueId": 0, "offset": offset, "durability": 1}
        if self.recognises and identity:
            extended_fields["duplicate"] = duplicate
        return producer_idl.Result(code=0, msg="OK", **(extended_fields if message.clientId else {}))

    def _duplicate(self, message: Any, identity: tuple[Any, ...]) -> int:
        """As on the wire; -1: nobody can tell any more."""
        if not self.recognises or not identity:
            return 0
        if identity in self.stored_identities:
            first = self.stored[self.stored_identities[identity]]
            return 1 if first.body == message.body else 2
        if message.producerId is not None:
            self.below[message.producerId] = max(self.below[message.producerId], message.answeredBelow or 0)
            return -1 if message.sequence < self.below[message.producerId] else 0
        return 0

    def _pull(self, args: Any, fault: Fault | None) -> Any:
        request = args.request
        self._take(request.result)
        until = time.monotonic() + max(20, request.maxLingerTime or 0) / 1000
        with self.changed:
            life = self.life
            while True:
                if life != self.life:
                    raise Closed
                topic, messages = self._lease(request)
                left = until - time.monotonic()
                if messages or left <= 0:
                    break
                self.changed.wait(left)
        context = consumer_idl.Context(request.groupId, topic, "q0") if messages else consumer_idl.Context()
        return consumer_idl.PullResponse(context=context, messages=messages, leaseMs=self.lease_ms)

    def _lease(self, request: Any) -> tuple[str, list[Any]]:
        leased_positions = set(self.leases.values())
        chosen, leased = "", []
        for offset, message in enumerate(self.stored):
            position = (message.topic, offset)
            if (
                request.topic not in (None, message.topic)
                or position in leased_positions
                or position in self.done
            ):
                continue
            if (chosen and message.topic != chosen) or len(leased) >= (request.maxBatchSize or 8):
                continue
            chosen = message.topic
            leased.append(self._delivered(message, offset))
        return chosen, leased

    def _delivered(self, message: Any, offset: int) -> Any:
        position = (message.topic, offset)
        lease = len(self.leases) + 1000 * (1 + self._attempts[position])
        while lease in self.leases:
            lease += 1
        self.leases[lease] = position
        self._attempts[position] += 1
        return consumer_idl.Message(
            key=message.key,
            value=message.body,
            tag=message.tags,
            offset=offset,
            properties=message.properties,
            messageId=f"{offset:032x}",
            leaseId=lease,
            attempt=self._attempts[position],
            bornMs=1,
            storedMs=2,
            nextOffset=len(self.stored),
        )

    def _submit(self, args: Any, fault: Fault | None) -> Any:
        self._take(args.result)
        return True

    def _fetch(self, args: Any, fault: Fault | None) -> Any:
        request = args.request
        if fault is not None:
            return consumer_idl.FetchResponse(code=11, results=[], error="told to refuse")
        until = time.monotonic() + (request.maxLingerTime or 20) / 1000
        starts: dict[str, int] = {}
        with self.changed:
            while True:
                results = self._queues(request, starts)
                left = until - time.monotonic()
                if left <= 0 or any(one.messages for one in results):
                    return consumer_idl.FetchResponse(results=results)
                self.changed.wait(min(left, 0.05))

    def _queues(self, request: Any, starts: dict[str, int]) -> list[Any]:
        newest = len(self.stored)
        topics = {message.topic for message in self.stored if request.topics in (None, [message.topic])}
        queues = []
        for topic in sorted(topics if self.assigned else ()):
            first = self.acked.get(topic, newest if request.model == "broadcasting" else 0)
            wish = (request.fetchOffset or {}).get(topic, {}).get("q0")
            start = starts.setdefault(topic, first if wish is None else wish)
            offsets = [n for n, one in enumerate(self.stored) if one.topic == topic and n >= start]
            chosen_offsets = offsets[: request.maxBatchSize or 1]
            messages = [
                consumer_idl.Message(key="k", value=self.stored[n].body, offset=n, messageId=f"{n:032x}")
                for n in chosen_offsets
            ]
            after = newest if chosen_offsets == offsets else chosen_offsets[-1] + 1
            queues.append(consumer_idl.QidResponse(topic, "q0", max(start, after), messages))
        return queues

    def _ack(self, args: Any, fault: Fault | None) -> Any:
        if fault is not None:
            return False
        with self.changed:
            for topic, queues in args.result.offsets.items():
                self.acked[topic] = queues["q0"]
            self.changed.notify_all()
        return True

    def _take(self, result: Any) -> None:
        with self.changed:
            while result is not None:
                self.results.append(result)
                topic = result.context.topic
                for offset in result.successOffsets or ():
                    self.done.add((topic, offset))
                delays = result.failDelaysMs or [-1] * len(result.failLeases or ())
                for lease, delay_ms in zip(result.failLeases or (), delays, strict=True):
                    if delay_ms < LONG_MS:  # others stay away for longer than any test lasts
                        self.leases.pop(lease, None)
                for lease in result.returnLeases or ():
                    self.leases.pop(lease, None)
                result = result.nextResult
            self.changed.notify_all()


def _refused(code: int) -> Any:
    return producer_idl.Result(code=code, msg=f"FAILED: told to answer {code}")


def _identity(message: Any) -> tuple[Any, ...] | None:
    """How a second one is recognised, () where it is not; None for both ways at a time."""
    key = message.idempotencyKey
    if key is None:
        key = (message.properties or {}).get("idempotency-key")
    if key is None:
        return () if message.sequence is None else ("sequence", message.producerId, message.sequence)
    return ("key", message.topic, key) if message.sequence is None else None


def _unknown_method(method: str, sequence_id: int) -> bytes:
    buffer = TMemoryBuffer()
    writer = TCompactProtocol(buffer)
    writer.write_message_begin(method, TMessageType.EXCEPTION, sequence_id)
    TApplicationException(TApplicationException.UNKNOWN_METHOD, method).write(writer)
    writer.write_message_end()
    return len(buffer.getvalue()).to_bytes(4, "big") + buffer.getvalue()


def _written(method: str, sequence_id: int, result: Any, fault: Fault | None) -> bytes:
    kind = fault.kind if fault else ""
    buffer = TMemoryBuffer()
    writer = TCompactProtocol(buffer)
    if kind == "fault":
        result = TApplicationException(TApplicationException.INTERNAL_ERROR, "broken inside")
        writer.write_message_begin(method, TMessageType.EXCEPTION, sequence_id)
    else:
        writer.write_message_begin(method, TMessageType.REPLY, sequence_id + (kind == "sequence"))
    result.write(writer)
    writer.write_message_end()
    payload = b"\x82garbage" if kind == "garbage" else buffer.getvalue()
    frame = len(payload).to_bytes(4, "big") + payload
    if kind == "half":
        raise Closed(frame[: len(frame) // 2])
    return frame


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise Closed
        data += more
    return data


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


@contextmanager
def standing_in() -> Iterator[Standin]:
    standin = Standin()
    try:
        yield standin
    finally:
        standin.stop()
        standin.reserved.close()


def _is_heartbeat(method: str, args: Any) -> bool:
    return bool(method == "sendSync" and args.message.topic == "carrera_heartbeat")
