"""The clients of a mixed run: producers, old clients and our own, which come and go.

Old clients are one connection each to one proxy, know no leases and bring their results with the next
pull, by submit, or over a connection to another proxy. Ours are `ddmq_client.Consumer`, told of all proxies;
tap.py writes down their calls. What becomes of a message is drawn from the seed: most are
acknowledged, some failed, a few never answered; "poison" is always failed, a "stone" never answered.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from thrift.Thrift import TException

from ddmq_client import Consumer
from ddmq_client import Message as OurMessage
from tests.crash.mixed.history import Delivery, History, Plan, Settlement, Unseen
from tests.crash.mixed.reading import body_id
from tests.crash.mixed.tap import Tap
from tests.interop.apache_client import (
    Client,
    ConsumeResult,
    Message,
    PullError,
    PullResponse,
    chained,
)

BROKEN = (OSError, TException, EOFError)
CALL_S = 8.0
PAUSE_S = 0.03
SEND_TIMEOUT_MS = 3_000
LINGER_MS = 150
FAIL_SHARE, SILENT_SHARE = 0.05, 0.01
POISON, STONE = "poison", "stone"
REASONS = ("no stock", "database away", "on purpose")


@dataclass
class Proxy:
    """A process as clients see it. `life` counts its starts."""

    name: str
    port: Callable[[], int]
    life: int = 0


class Surroundings(NamedTuple):
    """What all clients share. `gentle`: nothing is failed or left but what always is."""

    history: History
    proxies: Sequence[Proxy]
    gentle: threading.Event
    over: threading.Event


def choice(random: Random, kind: str, gentle: bool) -> str:
    """ack, fail or leave."""
    if kind:
        return "fail" if kind == POISON else "leave"
    chance = random.random()
    if gentle or chance >= FAIL_SHARE + SILENT_SHARE:
        return "ack"
    return "fail" if chance < FAIL_SHARE else "leave"


# --- producers


class Load(NamedTuple):
    """What is sent: `messages` in all, over so many keys, to these topics (name → queues)."""

    messages: int
    keys: int
    topics: Mapping[str, int]
    hot_keys: int = 10
    hot_share: float = 0.05
    poison_share: float = 0.003
    stone_share: float = 0.0003


class Sender(threading.Thread):
    """Sends its share, one request at a time; what was not answered is not sent again."""

    def __init__(
        self, number: int, senders: int, seed: int, load: Load, around: Surroundings, proxy: Proxy
    ) -> None:
        super().__init__(name=f"sender-{number}", daemon=True)
        self.random = Random(f"{seed}/{self.name}")
        self.number = number
        self.pace_s = 0.0
        self.failure: BaseException | None = None
        self._senders = senders
        self._load = load
        self._history = around.history
        self._over = around.over
        self._proxy = proxy
        self._extended = number % 2 == 0  # it gives a clientId, and hears places

    def run(self) -> None:
        """Everything, over as many connections as it takes."""
        try:
            at = self.number
            while at < self._load.messages and not self._over.is_set():
                try:
                    with Client(
                        self._proxy.port(), self.random.choice(("compact", "binary")), True, CALL_S
                    ) as client:
                        while at < self._load.messages and not self._over.is_set():
                            count = 1 if self.random.random() < 0.5 else self.random.randrange(2, 30)
                            batch = [self._message(at + n * self._senders) for n in range(count)]
                            batch = [each for each in batch if each is not None]
                            at += count * self._senders
                            self._send(client, batch)
                            self._over.wait(self.pace_s * count)
                except BROKEN:
                    self._over.wait(PAUSE_S)
        except BaseException as error:
            self.failure = error

    def _message(self, number: int) -> Message | None:
        load, random = self._load, self.random
        if number >= load.messages:
            return None
        hot = random.random() < load.hot_share
        key = f"key-{random.randrange(load.hot_keys) if hot else number % load.keys}"
        chance = random.random()
        kind = POISON if chance < load.poison_share else ""
        if not kind and chance < load.poison_share + load.stone_share:
            kind = STONE
        body = json.dumps(
            {"id": f"m{number}", "k": key, "kind": kind, "fill": "x" * random.choice((0, 50, 500))}
        )
        topic, queues = random.choice(list(load.topics.items()))
        message = Message(
            topic=topic, key=key, body=body.encode(), partitionId=zlib.crc32(key.encode()) % queues
        )
        message.clientId = self.name if self._extended else None
        return message

    def _send(self, client: Client, batch: list[Any]) -> None:
        now = time.monotonic()
        sent = [self._history.send(body_id(each.body), each.topic, each.key, now) for each in batch]
        if len(batch) == 1:
            answers = [client.call("sendSync", message=batch[0], timeout=SEND_TIMEOUT_MS)]
        else:
            answers = client.call("sendBatch", messages=batch, timeout=SEND_TIMEOUT_MS)
        for each, answer in zip(sent, answers, strict=True):
            each.code = answer.code
            if answer.code == 0 and answer.offset is not None:
                each.location = (each.topic, answer.queueId, answer.offset)


# --- consumers


class Visit(threading.Thread):
    """One client that comes, consumes for a while and goes."""

    def __init__(self, name: str, seed: int, plan: Plan, around: Surroundings, seconds: float) -> None:
        super().__init__(name=name, daemon=True)
        self.random = Random(f"{seed}/{name}")
        self.plan = plan
        self.around = around
        self.until = time.monotonic() + seconds
        self.failure: BaseException | None = None

    @property
    def staying(self) -> bool:
        return time.monotonic() < self.until and not self.around.over.is_set()

    def run(self) -> None:
        """Until its time is up."""
        try:
            self.consume()
        except BaseException as error:
            self.failure = error

    def consume(self) -> None:
        """What it does all the time."""


class Waiting(NamedTuple):
    """A result that has not left."""

    result: ConsumeResult
    acked: list[Delivery]
    failed: list[Delivery]


class OldVisit(Visit):
    """A client as they were: no leases, one connection, results when it suits."""

    def __init__(self, name: str, seed: int, plan: Plan, around: Surroundings, seconds: float) -> None:
        super().__init__(name, seed, plan, around, seconds)
        self.proxy = self.random.choice(around.proxies)
        self._waiting: list[Waiting] = []
        self._life = 0

    def consume(self) -> None:
        """Connect again and again; leaves some results unsaid when it goes."""
        while self.staying:
            life = self.proxy.life
            try:
                with Client(
                    self.proxy.port(), self.random.choice(("compact", "binary")), True, CALL_S
                ) as client:
                    if life == self.proxy.life:
                        self._life = life
                        self._talk(client)
            except BROKEN:
                self.around.over.wait(PAUSE_S)

    def _talk(self, client: Client) -> None:
        while self.staying:
            waiting, self._waiting = self._waiting, []
            if waiting and self.random.random() < 0.15:
                self._elsewhere(waiting)
            elif waiting and self.random.random() < 0.3:
                self._submit(client, waiting)
            else:
                self._pull(client, waiting)
        if self._waiting and self.random.random() < 0.7:
            self._submit(client, self._waiting)

    def _elsewhere(self, waiting: list[Waiting]) -> None:
        """Over a connection of the moment to any proxy."""
        proxy = self.random.choice(self.around.proxies)
        try:
            with Client(proxy.port(), "compact", True, CALL_S) as client:
                self._submit(client, waiting, proxy.name)
        except BROKEN:
            self._back(waiting)

    def _submit(self, client: Client, waiting: list[Waiting], proxy: str = "") -> None:
        settlements = self._leave(waiting, proxy)
        try:
            client.submit(chained([each.result for each in waiting]))  # type: ignore[arg-type]
        except PullError:
            self._back(waiting)
            self.around.over.wait(PAUSE_S)
        except BROKEN:
            self._back(waiting)
            raise
        else:
            answered(settlements)

    def _pull(self, client: Client, waiting: list[Waiting]) -> None:
        settlements = self._leave(waiting)
        topic = self.random.choice((None, *self.plan.topics))
        count = self.random.choice((1, 4, 16, 64))
        requested = time.monotonic()
        result = chained([each.result for each in waiting])
        try:
            answer = client.pull(
                self.plan.name, topic, maxBatchSize=count, maxLingerTime=LINGER_MS, result=result
            )
        except PullError:
            self._back(waiting)
            self.around.over.wait(PAUSE_S)
            return
        except BROKEN:
            self._missed(requested)
            self._back(waiting)
            raise
        answered(settlements)
        self._take(answer, requested, time.monotonic())

    def _missed(self, requested: float) -> None:
        over = time.monotonic()
        self.around.history.unseen.append(Unseen(self.plan.name, self.proxy.name, requested, over))

    def _leave(self, waiting: list[Waiting], proxy: str = "") -> list[Settlement]:
        now, history, settlements = time.monotonic(), self.around.history, []
        for each in waiting:
            settlements += history.settle(each.acked, proxy or self.proxy.name, now, ack=True)
            settlements += history.settle(each.failed, proxy or self.proxy.name, now, ack=False)
        return settlements

    def _back(self, waiting: list[Waiting]) -> None:
        """Not answered: mostly said again."""
        if self.random.random() < 0.8:
            for each in waiting:
                each.result.nextResult = None
            self._waiting = waiting + self._waiting

    def _take(self, answer: PullResponse, requested: float, read: float) -> None:
        acked: list[Delivery] = []
        failed: list[Delivery] = []
        life = self._life if self._life == self.proxy.life else -1
        for message in answer.messages:
            body = json.loads(message.value)
            delivery = self.around.history.give(
                self.plan.name,
                body["id"],
                topic=answer.context.topic,
                qid=answer.context.qid,
                offset=message.offset,
                proxy=self.proxy.name,
                life=life,
                lease=0,
                requested=requested,
                read=read,
                client=self.name,
            )
            verdict = choice(self.random, body["kind"], self.around.gentle.is_set())
            if verdict != "leave":
                (acked if verdict == "ack" else failed).append(delivery)
        if acked or failed:
            offsets = [each.offset for each in acked], [each.offset for each in failed]
            result = ConsumeResult(context=answer.context, successOffsets=offsets[0], failOffsets=offsets[1])
            self._waiting.append(Waiting(result, acked, failed))


class OurVisit(Visit):
    """Our own client, at all proxies, with a handler in two threads."""

    def consume(self) -> None:
        """Until the time is up; half of them then stop without finishing what they hold."""
        tap = Tap(self.around.history, self.around.proxies, self.name)
        consumer = Consumer(
            [f"127.0.0.1:{proxy.port()}" for proxy in self.around.proxies],
            self.plan.name,
            () if self.random.random() < 0.5 else self.plan.topics,
            handler=self._handle,
            threads=2,
            max_batch=self.random.choice((4, 16, 64)),
            linger_ms=LINGER_MS,
            lease_ms=int(self.plan.ack_timeout_s * 1000),
            auto_ack=False,
            extend_for_ms=0,
            client_id=self.name,
        )
        with tap.installed():
            consumer.start()
        while self.staying:
            self.around.over.wait(PAUSE_S)
        consumer.stop(timeout_ms=self.random.choice((0, 3_000)))

    def _handle(self, message: OurMessage) -> None:
        verdict = choice(self.random, json.loads(message.body)["kind"], self.around.gentle.is_set())
        if verdict == "ack":
            message.ack()
        elif verdict == "fail":
            message.fail(reason=self.random.choice(REASONS))


def answered(settlements: Sequence[Settlement]) -> None:
    """The answer is here."""
    now = time.monotonic()
    for each in settlements:
        each.answered = now
