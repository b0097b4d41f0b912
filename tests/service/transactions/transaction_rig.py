"""Producer proxies over one backend, with a clock and beats that the test gives by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import gevent

from backend.port import Backend
from backend.records import NewRecord, StoredRecord, TopicInfo
from ddmq_client.idl import producer
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import decode, encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_DEAD_TOPIC, TRANSACTION_GROUP
from ddmq_rpc.codec import structs
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits
from proxy_producer.config import ProducerConfig, TransactionLimits
from proxy_producer.service import ProducerService
from proxy_producer.transactions.codec import HalfMark, half_record, shard_of
from proxy_producer.transactions.core.clock import PAUSE_MS_MAX
from tests.support.backend_rig import BackendRig
from tests.support.waits import PATIENCE_S, until
from tests.unit.producer.producer_rig import Args, FakeCall, FakeTimer, Wire, message

S = structs(producer)
COMMIT, ROLLBACK, NOT_KNOWN_YET = 8, 12, 0
COMMITTED, ROLLED_BACK, NEVER_THERE, NO_LONGER_KNOWN, DEAD_LETTER, OPEN = range(1, 7)
GROUP = b"bank"
SHARDS = 4
_IDS = itertools.count(1)


class TransactionProxy:
    """One proxy. `address` "": nobody passes calls on to it."""

    def __init__(self, rig: TransactionRig, *, served: bool, **limits: Any) -> None:
        self._rig = rig
        self.metrics = Registry()
        self.timer, self.tick_timer = FakeTimer(), FakeTimer()
        transactions = TransactionLimits(**{"shards": SHARDS, **limits})
        self.config = ProducerConfig(transactions=transactions)
        self.proxy = ProducerService(
            rig.backend,
            self.config,
            self.metrics,
            rig.clock,
            Random(),
            timer=self.timer,
            transaction_timer=self.tick_timer,
        )
        self.handlers = self.proxy.service().handlers
        self.server: RpcServer | None = None
        if served:
            self.server = RpcServer(
                self.proxy.service(), "127.0.0.1", 0, RpcLimits(), self.metrics, rig.clock
            )
            self.server.start()
            self.proxy.transactions.advertise(f"127.0.0.1:{self.server.address[1]}")

    def call(self, method: str, request: Any) -> FakeCall:
        args = Args(request=request)
        call = FakeCall(args, self._rig.clock.monotonic(), 200, Wire.COMPACT, method)
        self.handlers[method](call)
        return call

    def answer(self, method: str, request: Any) -> Any:
        call = self.call(method, request)
        retry = self.proxy.transactions.retry_waiting  # what a beat brings to who waits for an owner
        until(lambda: bool(call.answers) or retry(), f"{method} is answered")
        return call.answer

    def prepare(self, transaction: bytes, *messages: Any, group: bytes = GROUP, **fields: Any) -> Any:
        """By default one message to `orders`."""
        return self.answer("sendPrepared", prepare_request(transaction, *messages, group=group, **fields))

    def ending(self, transaction: bytes, action: int, group: bytes = GROUP, **fields: Any) -> FakeCall:
        return self.call("endTransaction", end_request(transaction, action, group, **fields))

    def end(self, transaction: bytes, action: int, group: bytes = GROUP, **fields: Any) -> Any:
        """Asked again as long as the shard moves, as clients do."""

        def settled() -> Any:
            answer = self.answer("endTransaction", end_request(transaction, action, group, **fields))
            return answer if answer.code != 15 else None

        return until(settled, "the transaction is ended, or refused for good")

    def polling(self, timeout: int = 10_000, group: bytes = GROUP, **fields: Any) -> FakeCall:
        request = S.PollChecksRequest(
            producerGroup=group, clientId=b"c", countMax=16, timeout=timeout, **fields
        )
        return self.call("pollTransactionChecks", request)

    def tick(self) -> None:
        """What a second brings."""
        self.proxy.transactions.run_periodic_work()
        self._rig.settle()

    @property
    def shards(self) -> set[int]:
        """Those that it owns and is through with."""
        return {owned.shard.number for owned in self.proxy.transactions.list_ready_shards()}

    @property
    def postponed(self) -> int:
        """How many commits wait for a topic that is not known."""
        return sum(len(owned.deciding.postponed) for owned in self.proxy.transactions.list_ready_shards())

    def counted(self, name: str, **labels: str) -> float:
        rows = self.metrics.snapshot().get(name, [])
        return sum(float(row["value"]) for row in rows if labels.items() <= row.items())

    def kill(self) -> None:
        """What is under way is not waited for."""
        if self.server is not None:
            self.server.close()
        self.proxy.close()


def prepare_request(transaction: bytes, *messages: Any, group: bytes = GROUP, **fields: Any) -> Any:
    contents = list(messages) or [message(partitionId=0)]
    return S.PrepareRequest(
        transactionId=transaction, producerGroup=group, messages=contents, clientId=b"c", **fields
    )


def end_request(transaction: bytes, action: int, group: bytes, **fields: Any) -> Any:
    return S.EndTransactionRequest(
        transactionId=transaction, producerGroup=group, action=action, clientId=b"c", **fields
    )


class TransactionRig(BackendRig):
    """One proxy, `self.proxy`; `beside` makes more."""

    def __init__(
        self,
        backend: Backend | None = None,
        clock: ManualClock | None = None,
        topics: Sequence[TopicInfo] = (TopicInfo("orders", 0, 4), TopicInfo("bills", 0, 1)),
        **limits: Any,
    ) -> None:
        super().__init__(backend, clock)
        self.proxies: list[TransactionProxy] = []
        self._limits = limits
        for info in topics:
            self.change(info)
        self.proxy = self.beside(served=False)

    def beside(self, *, served: bool = True) -> TransactionProxy:
        proxy = TransactionProxy(self, served=served, **self._limits)
        self.proxies.append(proxy)
        return proxy

    def serve(self, count: int = 1, **limits: Any) -> list[TransactionProxy]:
        """Other proxies instead of the first one, that pass calls on to each other, and share the shards."""
        for proxy in self.proxies:
            proxy.kill()
        self._limits |= limits
        self.proxies = []
        self.proxies = [self.beside() for _ in range(count)]
        self.proxy = self.proxies[0]
        assert self.proxy.prepare(self.new_id()).code == 0
        until(lambda: self.shared() or self.tick(), "they share the shards")
        return self.proxies

    def shared(self) -> bool:
        """Whether each shard has an owner, and no proxy more of them than its share."""
        owned = [proxy.shards for proxy in self.proxies]
        most = -(-SHARDS // len(self.proxies))
        return sum(map(len, owned)) == SHARDS and max(map(len, owned)) <= most

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.kill()
        self.backend.close()

    def settle(self) -> None:
        for _ in range(30):
            gevent.sleep(0)

    def pass_time(self, seconds: float) -> None:
        """Move the clock while every proxy runs."""
        while seconds > 0:
            step_s = min(seconds, PAUSE_MS_MAX / 1_000)
            seconds -= step_s
            self.clock.advance(step_s)
            for proxy in self.proxies:
                proxy.proxy.transactions.now_ms()

    def advance(self, seconds: float) -> None:
        """The same; every proxy looks, each hour and at the end."""
        while seconds > 0:
            step_s = min(seconds, 3_600.0)
            seconds -= step_s
            self.pass_time(step_s)
            self.tick()

    def append_half(self, transaction: bytes, content: bytes, group: str = "bank") -> int:
        """What an owner of before stored when it had lost the shard already; where it is."""
        info = self.backend.topic(HALF_TOPIC)
        assert info is not None
        delivery = encode(b"", content, b"", None)
        record = NewRecord("orders", 0, next(_IDS).to_bytes(16, "big"), 0, delivery)
        mark = HalfMark(transaction.decode(), group, "orders", 0)
        shard = shard_of(bytes.fromhex(mark.id), info.queues)
        return self.backend.append([half_record(shard, record, mark)], self.soon()).wait(60)[0].offset

    def soon(self) -> float:
        return self.clock.monotonic() + 60

    def tick(self) -> None:
        for proxy in self.proxies:
            proxy.tick()

    def new_id(self, shard: int | None = None) -> bytes:
        """32 digits; of that shard, where it matters."""
        while True:
            head = f"{self.clock.wall_ms():012x}7000"
            digits = f"{head}8000{next(_IDS):012x}".encode()
            if shard is None or shard_of(bytes.fromhex(digits.decode()), SHARDS) == shard:
                return digits

    def begin(self, *messages: Any, **fields: Any) -> bytes:
        """A transaction that is prepared."""
        transaction = self.new_id()
        answer = self.proxy.prepare(transaction, *messages, **fields)
        assert answer.code == 0, answer
        self.caught_up()
        return transaction

    def caught_up(self) -> None:
        """The proxy owns every shard, and has read what is there."""
        until(lambda: len(self.proxy.shards) == SHARDS, "all shards are owned")
        self.proxy.tick()

    def everything(self, topic: str = "orders") -> list[StoredRecord]:
        info = self.backend.topic(topic)
        queues = 0 if info is None else info.queues
        return [record for queue_id in range(queues) for record in self.stored(topic, queue_id)]

    def bodies(self, topic: str = "orders") -> list[bytes]:
        return [decode(bytes(record.delivery)).value for record in self.everything(topic)]

    def dead(self) -> list[StoredRecord]:
        return self.everything(TRANSACTION_DEAD_TOPIC)

    def ops(self) -> list[StoredRecord]:
        return self.everything(OP_TOPIC)

    def unfinished(self) -> int:
        """Half messages that are not finished."""
        info = self.backend.topic(HALF_TOPIC)
        assert info is not None
        views = self.backend.progress(TRANSACTION_GROUP, info.refs()).wait(PATIENCE_S)
        ends = self.backend.bounds(info.refs()).wait(PATIENCE_S)
        left = 0
        for view, bounds in zip(views, ends, strict=True):
            assert bounds is not None
            done = sum(end - start for start, end in view.finished)
            left += bounds.next - (view.committed or bounds.min) - done
        return left


def body(text: bytes, **fields: Any) -> Any:
    return message(body=text, **{"partitionId": 0, **fields})
