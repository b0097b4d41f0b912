"""Who sends while servers are killed: real Producers, numbered by themselves, and keys that many send again.

All choices come from the seed. Each body is unique; that of a key is the key's, whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thrift.Thrift import TException

from ddmq_client import OutgoingMessage, Producer
from ddmq_client.errors import NotStoredError, SendError, UnknownOutcomeError
from ddmq_client.outgoing import SendResult
from tests.crash.kit.load_thread import LoadThread
from tests.crash.once_ledger import OnceLedger, StoredAt
from tests.interop.apache_client import Client, Message

TOPICS = ("once", "once-written")  # durable; and class "written", which survives kill -9 as well
TIMEOUTS_MS = (300, 2_000, 10_000, 60_000)
KEYS = 400  # at a time; the run goes through them from the first to the last
KEY_STEP = 40  # sends of keys, until the oldest of them is left for a new one
OLD_S, ASYNC_S = 20.0, 300.0
PAUSE_S = 0.02


class OnceWorker(LoadThread):
    """Sends, and notes what is said of it; each `work` is the life of one client."""

    def __init__(self, name: str, seed: int, ledger: OnceLedger, ports: Callable[[], Sequence[int]]) -> None:
        super().__init__(name, seed)
        self.ledger = ledger
        self.ports = ports

    def producer(self) -> Producer:
        """One that knows all proxies."""
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports())
        return Producer(addresses, timeout_ms=self.random.choice(TIMEOUTS_MS), batch_messages=50)

    def record_result(self, message: OutgoingMessage, result: SendResult) -> None:
        """What the library says of one message."""
        if result.error is not None:
            self.record_error(message, result.error)
            return
        location = StoredAt(message.topic, result.queue_id or 0, result.offset or 0, result.message_id or "")
        self.ledger.confirmed(bytes(message.body), location, result.duplicate)
        if result.body_differs:
            self.ledger.violated(f"{message.body[:40]!r}: told that the first had another body")

    def record_error(self, message: OutgoingMessage, error: SendError) -> None:
        """Nothing but these two is right here: no message is illegal, and no sequence unknown."""
        if isinstance(error, UnknownOutcomeError):
            self.ledger.unknown(bytes(message.body))
        elif isinstance(error, NotStoredError):
            self.ledger.refused(bytes(message.body))
        else:
            self.ledger.violated(f"{message.body[:40]!r}: {error!r}")


class NumberedSender(OnceWorker):
    """Sends new messages by every way that a Producer has; it closes now and then, and is another one."""

    count = 0

    def work(self) -> None:
        with self.producer() as producer:
            for _ in range(self.random.randrange(20, 300)):
                if self.stopping.is_set():
                    return
                self._step(producer)

    def _step(self, producer: Producer) -> None:
        way = self.random.random()
        if way < 0.5:
            self._send(producer, self._message())
            return
        messages = [self._message() for _ in range(self.random.randrange(2, 60))]
        if way < 0.75:
            for message, result in zip(messages, producer.send_batch(messages), strict=True):
                self.record_result(message, result)
            return
        for message, future in [(message, producer.send_async(message)) for message in messages]:
            error = future.exception(ASYNC_S)
            if error is None:
                self.record_result(message, future.result())
            elif isinstance(error, SendError):
                self.record_error(message, error)
            else:
                raise error

    def _send(self, producer: Producer, message: OutgoingMessage) -> None:
        try:
            self.record_result(message, producer.send_message(message))
        except SendError as error:
            self.record_error(message, error)

    def _message(self) -> OutgoingMessage:
        self.count += 1
        size = self.random.choice((1, 100, 1_000, 20_000 if self.count % 50 == 0 else 2_000))
        body = b"%s/%d/%s" % (self.name.encode(), self.count, self.random.randbytes(size))
        return OutgoingMessage(self.random.choice(TOPICS), body)


class KeySender(OnceWorker):
    """Sends the keys that all others like it send, each many times; half of it is an old client."""

    counted = 0

    def work(self) -> None:
        if self.random.random() < 0.5:
            self._old_life()
            return
        with self.producer() as producer:
            for _ in range(self.random.randrange(20, 100)):
                if self.stopping.is_set():
                    return
                messages = [self.message(self._number()) for _ in range(self.random.choice((1, 1, 5, 30)))]
                for message in messages:
                    self.ledger.key(bytes(message.body))
                for message, result in zip(messages, producer.send_batch(messages), strict=True):
                    self.record_result(message, result)

    def _number(self) -> int:
        """Keys of now, and some that were left long ago."""
        self.counted += 1
        return self.random.randrange(self.newest - KEYS if self.random.random() < 0.9 else 0, self.newest)

    @property
    def newest(self) -> int:
        """Numbers below this have been, or may be, sent."""
        return KEYS + self.counted // KEY_STEP

    @staticmethod
    def message(number: int) -> OutgoingMessage:
        topic, body = TOPICS[number % len(TOPICS)], b"key %d/%s" % (number, b"x" * (number % 997))
        return OutgoingMessage(topic, body, idempotency_key=f"key {number}")

    def _old_life(self) -> None:
        """One connection of an old client: it hears code 0 or another, and no more."""
        try:
            with Client(self.random.choice(self.ports()), timeout_s=OLD_S) as client:
                for _ in range(self.random.randrange(1, 50)):
                    if self.stopping.is_set():
                        return
                    self._old_send(client, self.message(self._number()))
        except (OSError, TException, EOFError):
            self.stopping.wait(PAUSE_S)

    def _old_send(self, client: Client, message: OutgoingMessage) -> None:
        body = bytes(message.body)
        self.ledger.key(body)
        properties = {"idempotency-key": message.idempotency_key}
        old = Message(topic=message.topic, body=body, properties=properties, partitionId=-2)
        try:
            code = client.call("sendSync", message=old, timeout=self.random.choice(TIMEOUTS_MS)).code
        except BaseException:
            self.ledger.unknown(body)
            raise
        if code == 0:
            self.ledger.confirmed(body, None, None)
        elif code in (10, 12):
            self.ledger.unknown(body)
        elif code in (15, 20, 21):
            self.ledger.refused(body)
        else:
            self.ledger.violated(f"{body[:40]!r}: an old client was answered {code}")
