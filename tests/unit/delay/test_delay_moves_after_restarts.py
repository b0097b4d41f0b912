"""What was ordered last holds, whatever became of the store: every way to fire, move and take back a message,
with the store damaged, lost or whole, against the seconds at which a plain reader would deliver it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from uuid import UUID

import pytest

from backend.progress.ack_map import AckMap
from ddmq_common.delays.command import (
    ADD,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    FIRE,
    ONCE,
    RESCHEDULE,
    SCHEDULE,
    DelayCommand,
    Schedule,
    encode_command,
)
from ddmq_common.delivery import encode
from delay_service.core import decider
from delay_service.core.commands import CommandDecisions, CommandRecord, DecisionContext
from delay_service.core.decider import INGESTED
from delay_service.core.due_scans import DueScans, SliceLimits
from delay_service.core.fire_command import catch_up_delivery, progress_of
from delay_service.due.backend import TargetTopic
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import StoreChanges
from tests.examples import some_of

NOW = 1_700_000_000_000
UUID_TEXT = "00000000-0000-0000-0000-000000000007"
IDS_KEPT_MS = 3_600_000
FIRST_S, PERIOD_S, REPEAT = 50, 60, 2
SOONER_S, LATER_S = 30, 120  # behind the order that moves it
END_S = 400
OPS = (FIRE, "sooner", "later", CANCEL)
WAYS = some_of([ops for length in range(4) for ops in product(OPS, repeat=length)])


def model(ops: tuple[str, ...], repeats: bool, away: range) -> tuple[list[int], bool]:
    """At which seconds it is delivered, and whether it was taken back. The nth order comes in second n."""
    seconds = [FIRST_S + PERIOD_S * due_s for due_s in range(REPEAT + 1 if repeats else 1)]
    waits: int | None = seconds[0]
    delivered: list[int] = []
    cancelled = False
    for second in range(END_S):
        if second < len(ops) and waits is not None:
            op = ops[second]
            cancelled = op == CANCEL
            moved = {FIRE: second, "sooner": second + SOONER_S, "later": second + LATER_S, CANCEL: None}
            waits = moved[op]
        if waits is not None and waits <= second and second not in away:
            delivered.append(second)
            seconds = [due_s for due_s in seconds[1:] if due_s > waits]
            waits = seconds[0] if seconds else None
    return delivered, cancelled


class Service:
    """One shard: its log, its store, and whoever owns it; nothing runs beside a test."""

    def __init__(self) -> None:
        self.log: list[CommandRecord] = []
        self.acks = AckMap(0)  # as the log has it
        self.committed = 0
        self.store = MemoryDelayStore()
        self.second = 0
        self.delivered: list[int] = []
        self.outcome = 0
        self.start()

    @property
    def now_ms(self) -> int:
        return NOW + self.second * 1_000

    def start(self) -> None:
        """As delay_service/shard.py does it: all orders are taken in before anything fires."""
        limits = SliceLimits(64, 1 << 20, IDS_KEPT_MS, 1_000)
        self.due_scans = DueScans(self.store, self.acks, lambda _: TargetTopic(1, True), limits)
        ingested = self.store.meta(INGESTED)
        self.position = int(ingested) if ingested else 0
        self.decisions = DecisionContext(
            self.store,
            self.acks,
            self.due_scans.busy,
            IDS_KEPT_MS,
            self.committed,
            lost_position=ingested is None,
        )
        self.take()

    def order(self, *orders: DelayCommand) -> None:
        uuid, delivery = UUID(UUID_TEXT).bytes, encode(b"", b"x", b"", None)
        for command in orders:
            text = encode_command(command)
            record = CommandRecord(len(self.log), command, uuid, text, bytes(16), self.now_ms, 0, delivery)
            self.log.append(record)
        self.take()

    def take(self) -> None:
        while self.position < len(self.log):
            decisions = decider.decide_commands(self.decisions, self.log[self.position :], self.now_ms)
            assert decisions.commands
            self.position += decisions.commands
            self.apply_decisions(decisions)

    def apply_decisions(self, decisions: CommandDecisions) -> None:
        if self.position >= self.decisions.position_from:
            decisions.changes.meta[INGESTED] = b"%d" % self.position
        self.write(decisions.changes)
        self.acks.finish([(offset, offset + 1) for offset in decisions.done])
        self.committed = max(self.committed, self.position)
        for reply in decisions.replies:
            self.outcome = reply.outcome.code

    def write(self, changes: StoreChanges) -> None:
        self.due_scans.on_added(changes.added)
        self.store.write(changes)

    def fire(self, fire_known: bool = True) -> None:
        """Fire every due delivery. Without `fire_known` a kill comes before the store records the fires."""
        while True:
            plan = self.due_scans.plan_fires(self.now_ms)
            if plan.changes is not None:
                self.write(plan.changes)
            finished, attempts = progress_of(plan.fires)
            self.acks.finish([(offset, offset + 1) for offset in [*finished, *plan.passed_offsets]])
            for offset, count in attempts:
                self.acks.record_attempts(offset, count)
            self.delivered += [self.second] * len(plan.fires)
            self.due_scans.on_commit_done(plan.fires, True)
            if plan.fires and not fire_known:
                return
            self.write(self.due_scans.changes_of(plan.fires, self.now_ms))
            if not plan.fires and plan.changes is None:
                return

    def to_command(self, op: str) -> DelayCommand:
        if op in (FIRE, CANCEL):
            return DelayCommand(op, UUID_TEXT, reply_queue=0, reply_id=1)
        moved_s = SOONER_S if op == "sooner" else LATER_S
        return DelayCommand(RESCHEDULE, UUID_TEXT, due_ms=self.now_ms + moved_s * 1_000)


def nothing(store: MemoryDelayStore) -> None:
    """The process is started anew."""


def position_lost(store: MemoryDelayStore) -> None:
    """Salvaged, and nothing else was damaged."""
    store._meta.clear()


def message_lost(store: MemoryDelayStore) -> None:
    """Salvaged: the block with the message was damaged."""
    store._meta.clear()
    for message in list(store._due.messages.values()):
        store.write(StoreChanges(removed=[message], ids={message.uuid: None}))


def state_lost(store: MemoryDelayStore) -> None:
    """Salvaged: the block with the states was damaged; what waits has its state again."""
    store._meta.clear()
    waiting = {message.uuid for message in store._due.messages.values()}
    for uuid in set(store._ids) - waiting:
        store.write(StoreChanges(ids={uuid: None}))


def all_lost(store: MemoryDelayStore) -> None:
    """The folder is gone."""
    store.__dict__.update(MemoryDelayStore().__dict__)


HARM: tuple[Callable[[MemoryDelayStore], None], ...] = (
    nothing,
    position_lost,
    message_lost,
    state_lost,
    all_lost,
)


def begun(repeats: bool) -> Service:
    service = Service()
    schedule = Schedule(period_ms=PERIOD_S * 1_000, repeat=REPEAT) if repeats else None
    kind, due_ms = SCHEDULE if repeats else ONCE, NOW + FIRST_S * 1_000
    service.order(DelayCommand(ADD, UUID_TEXT, "t", kind, due_ms, due_ms // 1_000, schedule=schedule))
    return service


def waiting(service: Service) -> list[tuple[int, int] | None]:
    """As the lanes see it: what the log knows to have fired is what comes after it."""
    deliveries = []
    for one in service.store._due.messages.values():
        fired = service.acks.attempts.get(one.offset, 0)
        behind = fired > one.occurrence
        message = catch_up_delivery(one, fired, service.now_ms, 1_000) if behind else one
        deliveries.append(None if message is None else (message.occurrence, message.due_ms))
    return deliveries


def run_to_end(service: Service) -> None:
    while service.second < END_S - 1:
        service.second += 1
        service.fire()
    service.order(service.to_command(CANCEL))
    assert not waiting(service)
    assert service.acks.committed == len(service.log), "nothing is left behind"


@pytest.mark.parametrize("fire_known", [True, False])
@pytest.mark.parametrize("away_s", [0, 40])
@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("repeats", [False, True])
def test_the_last_order_holds(
    repeats: bool, harm: Callable[[MemoryDelayStore], None], away_s: int, fire_known: bool
) -> None:
    """Without `fire_known` the owner is killed after the last fire, before the store records it."""
    for ops in WAYS:
        service = begun(repeats)
        for op in ops:
            service.order(service.to_command(op))
            service.fire(fire_known or service.second < len(ops) - 1)
            service.second += 1
        before = waiting(service)
        harm(service.store)
        service.second += away_s
        service.start()
        if not away_s and fire_known:
            assert waiting(service) == before, f"{ops}: the same delivery waits for the same moment"
        expected, cancelled = model(ops, repeats, range(len(ops), service.second))
        service.fire()
        run_to_end(service)
        assert service.delivered == expected, ops
        assert service.outcome == (CANCELLED if cancelled else ALREADY_FIRED), ops


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("repeats", [False, True])
def test_the_last_of_several_overtaking_orders_holds(
    repeats: bool, harm: Callable[[MemoryDelayStore], None]
) -> None:
    """All of them come before anything fires: the last one decides, and the same waits after the harm."""
    for ops in WAYS:
        service = begun(repeats)
        service.order(*map(service.to_command, ops))
        before = waiting(service)
        harm(service.store)
        service.start()
        assert waiting(service) == before, ops
        service.fire()
        before = waiting(service)
        harm(service.store)
        service.start()
        assert waiting(service) == before, ops
        run_to_end(service)


def test_repeated_harm_changes_nothing() -> None:
    for ops in WAYS:
        service = begun(repeats=True)
        for number, op in enumerate(ops):
            service.order(service.to_command(op))
            service.fire()
            service.second += 1
            HARM[number % len(HARM)](service.store)
            service.start()
            service.fire()
        expected, _ = model(ops, True, range(0))
        run_to_end(service)
        assert service.delivered == expected, ops
