"""The load under which processes are killed: senders and consumers as independent Thrift clients.

Each sender counts its messages per queue and sends one request at a time; after an answer that did not
come it sends the same again, or goes on. Consumers acknowledge most, fail some, leave some to time out;
they send results with the next pull, as a linked list, or by submit. All choices come from the seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from thrift.Thrift import TException

from tests.crash.kill_nine_ledger import Ack, Body, DeliveredMessage, Ledger, Location
from tests.crash.kit.load_thread import LoadThread
from tests.interop.apache_client import (
    Client,
    ConsumeResult,
    Context,
    Message,
    PullError,
    PullResponse,
    chained,
)

TOPIC, GROUP, QUEUES = "kill", "checker", 4
CALL_S = 10.0  # a client's patience
PAUSE_S = 0.02  # between tries to connect
SEND_TIMEOUT_MS = 3_000
BROKEN = (OSError, TException, EOFError)
UNKNOWN_CODES = (10, 12)


def queue_of(qid: str) -> int:
    return int(qid.rpartition("_")[2])


class Worker(LoadThread):
    """A thread with a connection that it renews; `step` does one step."""

    join_s = 60.0

    def __init__(self, name: str, seed: object, ledger: Ledger, port: Callable[[], int]) -> None:
        super().__init__(name, seed)
        self.ledger = ledger
        self.protocol = self.random.choice(["compact", "binary"])
        self.life = -1
        self._port = port
        self._client: Client | None = None

    def work(self) -> None:
        client = self._connected()
        if client is None:
            self.stopping.wait(PAUSE_S)
        else:
            self.step(client)

    def step(self, client: Client) -> None:
        """One unit of work. A failed call ends in `hang_up`."""
        raise NotImplementedError

    def _connected(self) -> Client | None:
        """A connection of the present life, or None when nobody listens."""
        if self._client is None:
            life = self.ledger.life
            try:
                client = Client(self._port(), self.protocol, timeout_s=CALL_S)
            except BROKEN:
                return None
            if life != self.ledger.life:
                client.close()
                return None
            self._client, self.life = client, life
        return self._client

    def hang_up(self) -> None:
        """The connection is of no use any more."""
        if self._client is not None:
            self._client.close()
            self._client = None


class Sender(Worker):
    """Sends numbered messages to all queues."""

    def __init__(self, number: int, seed: object, ledger: Ledger, port: Callable[[], int]) -> None:
        super().__init__(f"sender-{number}", seed, ledger, port)
        self.number = number
        self.counts = [0] * QUEUES
        self.own = self.random.random() < 0.5  # whether it is a client of ours, which hears the offset
        self._unanswered: list[Message] = []

    def step(self, client: Client) -> None:
        messages, self._unanswered = self._unanswered or self._next(), []
        try:
            codes = self._send(client, messages)
        except BROKEN:
            self.hang_up()
            codes = None
        if codes is None:
            for message in messages:
                self.ledger.unknown(message.body)
            if self.random.random() < 0.5:
                self._unanswered = messages

    def _next(self) -> list[Message]:
        """One message, or a few for one queue."""
        count = 1 if self.random.random() < 0.8 else self.random.randrange(2, 20)
        queue = self.random.randrange(QUEUES)
        return [self._message(queue) for _ in range(count)]

    def _message(self, queue: int) -> Message:
        number, self.counts[queue] = self.counts[queue], self.counts[queue] + 1
        body = Body(self.number, queue, number, poison=self.random.random() < 0.01)
        size = self.random.choice((10, 200, 1_000, 1_000, 60_000 if number % 50 == 0 else 2_000))
        message = Message(topic=TOPIC, body=body.encode(self.random.randbytes(size)), partitionId=queue)
        message.clientId = "checker" if self.own else None
        return message

    def _send(self, client: Client, messages: list[Message]) -> Any:
        """Notes what was answered; None when that is: perhaps."""
        if len(messages) == 1:
            results = [client.call("sendSync", message=messages[0], timeout=SEND_TIMEOUT_MS)]
        elif self.own:
            results = client.call("sendBatch", messages=messages, timeout=SEND_TIMEOUT_MS)
        else:
            results = [client.call("sendBatchSync", messages=messages)] * len(messages)
            if results[0].code:  # of a batch that failed some may be stored
                return None
        for message, result in zip(messages, results, strict=True):
            self._record_result(message, result)
        return results

    def _record_result(self, message: Message, result: Any) -> None:
        if result.code == 0:
            location = None if result.offset is None else (result.queueId, result.offset)
            self.ledger.stored(message.body, location)
        elif result.code in UNKNOWN_CODES:
            self.ledger.unknown(message.body)
        else:
            self.ledger.refused()


class Consumer(Worker):
    """Pulls and settles. `gentle`: everything but poison is acknowledged."""

    def __init__(self, number: int, seed: object, ledger: Ledger, port: Callable[[], int]) -> None:
        super().__init__(f"consumer-{number}", seed, ledger, port)
        self.gentle = False
        self._results: list[tuple[ConsumeResult, list[Ack], list[Location]]] = []

    def step(self, client: Client) -> None:
        waiting, self._results = self._results, []
        if self.random.random() < 0.2:  # kept for later, so that results of several contexts meet
            self._results, waiting = waiting, []
        if waiting and self.random.random() < 0.3:
            self._submit(client, waiting)
            return
        self._pull(client, waiting)

    def last(self) -> None:
        if self._client is not None and self._results:
            self._submit(self._client, self._results)

    def _pull(self, client: Client, waiting: list[Any]) -> None:
        acks = self._leave(waiting)
        topic = TOPIC if self.random.random() < 0.5 else None
        count = self.random.choice((1, 2, 8, 32))
        life, sent_at = self.life, time.monotonic()
        try:
            answer = client.pull(
                GROUP,
                topic,
                maxBatchSize=count,
                maxLingerTime=200,
                result=chained([r for r, _, _ in waiting]),
            )
        except PullError:
            self._back(waiting)
            return
        except BROKEN:
            self.hang_up()
            self.ledger.answer_lost(life)
            self._back(waiting)
            return
        read_at = time.monotonic()
        self.ledger.acks_answered(acks, life, read_at)
        self._settle(answer, life, sent_at, read_at)

    def _submit(self, client: Client, waiting: list[Any]) -> None:
        acks = self._leave(waiting)
        life = self.life
        try:
            client.submit(chained([result for result, _, _ in waiting]))  # type: ignore[arg-type]
        except PullError:
            self._back(waiting)
        except BROKEN:
            self.hang_up()
            self._back(waiting)
        else:
            self.ledger.acks_answered(acks, life, time.monotonic())

    def _leave(self, waiting: list[Any]) -> list[Ack]:
        acks = [ack for _, queue_acks, _ in waiting for ack in queue_acks]
        self.ledger.acks_sent(acks)
        for _, _, failed in waiting:
            self.ledger.fails_sent(failed)
        return acks

    def _back(self, waiting: list[Any]) -> None:
        """Not answered: most clients say it again."""
        if self.random.random() < 0.8:
            for result, _, _ in waiting:
                result.nextResult = None
            self._results = waiting + self._results

    def _settle(self, answer: PullResponse, life: int, sent_at: float, read_at: float) -> None:
        if not answer.messages:
            return
        queue = queue_of(answer.context.qid)
        deliveries = [DeliveredMessage((queue, each.offset), each.value) for each in answer.messages]
        acks = self.ledger.delivered(deliveries, life, sent_at, read_at)
        done: list[Ack] = []
        failed: list[Location] = []
        for each, ack in zip(deliveries, acks, strict=True):
            choice = self._choice(each)
            if choice == "ack":
                done.append(ack)
            elif choice == "fail":
                failed.append(each.location)
            else:
                self.ledger.left(1)
        self._results.append((_result(answer.context, done, failed), done, failed))

    def _choice(self, each: DeliveredMessage) -> str:
        if Body.decode(each.data).poison:
            return "fail"
        chance = self.random.random()
        if self.gentle or chance < 0.88:
            return "ack"
        return "fail" if chance < 0.96 else "leave"


def _result(context: Context, done: list[Ack], failed: list[Location]) -> ConsumeResult:
    return ConsumeResult(
        context=context,
        successOffsets=[ack.location[1] for ack in done],
        failOffsets=[offset for _, offset in failed],
    )
