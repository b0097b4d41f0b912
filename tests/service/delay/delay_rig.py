"""The delay service over a backend and stores in memory, with a clock and alarms that tests move by hand.

`Disks` keeps the stores across restarts of the service; `Disks.crash` takes back what was not flushed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from uuid import UUID

import gevent

from backend.port import Backend
from backend.records import AppendStatus, NewRecord, QueueRef
from ddmq_common.clock import ManualClock
from ddmq_common.delays.command import (
    ADD,
    CANCEL,
    COMMAND_PROPERTY,
    FIRE,
    HOLD,
    RELEASE,
    RESCHEDULE,
    CommandOutcome,
    DelayCommand,
    decode_outcome,
    encode_command,
    shard_of,
)
from ddmq_common.delivery import decode, encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC, FIRED_GROUP, OUTCOME_TOPIC, WAITING_TOPIC
from delay_service.config import DelayConfig
from delay_service.service import DelayService
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import DelayStore, Pending, StoreChanges
from delay_service.waiting.rows import read_row
from tests.service.delay.hand_alarm import HandAlarms
from tests.support.backend_rig import BackendRig
from tests.support.waits import PATIENCE_S, until


class RetainedStore(MemoryDelayStore):
    """A store that outlives its owner; what was not flushed can be taken back.

    `flush` is for a native thread beside the hub, which writes meanwhile: each waits for the other here, or
    what is kept would be half of one write and half of the next.
    """

    def __init__(self) -> None:
        super().__init__()
        self._durable = copy.deepcopy(self.__dict__)
        self._one = threading.Lock()

    def __deepcopy__(self, memo: dict[int, object]) -> RetainedStore:
        copied = type(self)()
        copied.__dict__.update(
            copy.deepcopy(self._state(), memo), _durable=copy.deepcopy(self._durable, memo)
        )
        return copied

    def _state(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_durable", "_one")}

    def write(self, changes: StoreChanges) -> None:
        with self._one:
            super().write(changes)

    def flush(self) -> None:
        super().flush()
        with self._one:
            self._durable = copy.deepcopy(self._state())

    def crash(self) -> None:
        self.__dict__.update(copy.deepcopy(self._durable))

    def close(self) -> None:
        """It stays open for the next owner."""


class Disks:
    """The stores of all shards."""

    def __init__(self) -> None:
        self.stores: dict[int, RetainedStore] = {}

    def open(self, queue: QueueRef, epoch: int) -> DelayStore:
        return self.stores.setdefault(queue.queue_id, RetainedStore())

    def crash(self) -> None:
        for store in self.stores.values():
            store.crash()


class DelayRig(BackendRig):
    """One service. The backend is the rig's own unless it is given."""

    def __init__(
        self,
        config: DelayConfig | None = None,
        backend: Backend | None = None,
        clock: ManualClock | None = None,
        disks: Disks | None = None,
        quota_of: Callable[[str], int] | None = None,
    ) -> None:
        super().__init__(backend, clock)
        self.config = config or DelayConfig(shards=1)
        self.disks = disks or Disks()
        self.quota_of = quota_of
        self.start()

    def start(self) -> None:
        """A service, as after a start of the process; it is to hold every shard and fire."""
        self.serve()
        self.until(lambda: self.ready() or self.alarms.ring(), "every shard fires")

    def serve(self) -> None:
        """The same, whatever becomes of it."""
        self.metrics = Registry()
        self.alarms = HandAlarms()
        self.service = DelayService(
            self.backend, self.config, self.metrics, self.clock, self.disks.open, alarms=self.alarms,
            quota_of=self.quota_of,
        )  # fmt: skip
        self.service.start()

    def ready(self) -> bool:
        return len(self.service.shards) == self.config.shards and self.service.health().ready

    def close(self) -> None:
        self.service.close()
        self.backend.close()

    def until(self, condition: Callable[[], object], what: str) -> None:
        until(condition, lambda: f"{what}; {self.service.health()}")

    def settle(self) -> None:
        """Let everything that can happen at this time happen: until nothing has changed for a while."""
        quiet = 0
        before = None
        while quiet < 3:
            for _ in range(20):
                gevent.sleep(0)
            gevent.sleep(0.001)
            shards = self.service.shards.values()
            busy = [shard for shard in shards if not shard.is_idle]
            now = [(shard.position, shard.context and len(shard.context.due_scans.busy)) for shard in shards]
            quiet = quiet + 1 if now == before and not busy else 0
            before = now

    def advance(self, seconds: float) -> None:
        """Move both clocks, ring the alarms, let the hub run."""
        self.clock.advance(seconds)
        self.ring()

    def ring(self) -> None:
        self.alarms.ring()
        self.settle()

    # --- commands

    def append(self, order: DelayCommand, delivery: bytes = b"", born_ms: int = 0) -> None:
        record = NewRecord(
            DELAY_TOPIC,
            shard_of(order.uuid, self.config.shards),
            self.next_id(),
            born_ms,
            delivery,
            system={COMMAND_PROPERTY: encode_command(order)},
        )
        results = self.backend.append([record], self.clock.monotonic() + 60).wait(PATIENCE_S)
        assert results[0].status is AppendStatus.STORED, results

    def add(
        self, number: int, due_ms: int, body: bytes = b"", born_ms: int = 0, key: bytes = b"", **rest: object
    ) -> None:
        """One order `number` = its uuid; due at an epoch time in ms."""
        rest = {"topic": "orders", "timestamp_s": due_ms // 1000, **rest}
        order = DelayCommand(ADD, uuid_of(number), due_ms=due_ms, **rest)  # type: ignore[arg-type]
        self.append(order, encode(key, body or b"%d" % number, b"red", {b"a": b"b"}), born_ms)

    def cancel(self, number: int, due_ms: int = 0, born_ms: int = 0, **rest: object) -> None:
        order = DelayCommand(CANCEL, uuid_of(number), due_ms=due_ms, **rest)  # type: ignore[arg-type]
        self.append(order, born_ms=born_ms)

    def reschedule(self, number: int, due_ms: int, born_ms: int = 0, **rest: object) -> None:
        order = DelayCommand(RESCHEDULE, uuid_of(number), due_ms=due_ms, **rest)  # type: ignore[arg-type]
        self.append(order, born_ms=born_ms)

    def fire_now(self, number: int, born_ms: int = 0, **rest: object) -> None:
        order = DelayCommand(FIRE, uuid_of(number), **rest)  # type: ignore[arg-type]
        self.append(order, born_ms=born_ms)

    def hold(self, number: int, *, held: bool, born_ms: int = 0, **rest: object) -> None:
        order = DelayCommand(HOLD if held else RELEASE, uuid_of(number), **rest)  # type: ignore[arg-type]
        self.append(order, born_ms=born_ms)

    # --- looking

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [decode(record.delivery).value for record in self.stored(topic, queue_id)]

    def outcomes(self) -> list[CommandOutcome]:
        return [decode_outcome(body) for body in self.bodies(OUTCOME_TOPIC)]

    def fired_to(self, shard: int = 0) -> int | None:
        """Below this nothing is pending, on record."""
        queue = self.queue(DELAY_TOPIC, shard)
        if not self.backend.compacts:
            return self.committed(FIRED_GROUP, queue)
        rows = [read_row(record.delivery) for record in self.stored(WAITING_TOPIC, shard)]
        contents = {row.uuid: row.content for row in rows}.values()
        waiting = [one.offset for one in contents if isinstance(one, Pending)]
        return min(waiting, default=self.committed(DELAY_GROUP, queue))


def uuid_of(number: int) -> str:
    return str(UUID(int=number))
