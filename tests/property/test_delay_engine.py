"""What the delay service decides, against a naive account of what was asked and what came.

Orders, fires, clock steps both ways, commits that succeed, are refused, or of which nobody knows, owners that
die with and without what they had not flushed, in any order. At the end everything left is fired. Then:
nothing came early, nothing is lost, nothing came twice, and every answer to a cancel is true. Nothing of a
held topic or of a held message fires, and what was overdue at its release fires in due order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from backend.progress.ack_map import AckMap
from backend.records import StoredRecord, short_record
from ddmq_common.delays.command import (
    ADD,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    COMMAND_PROPERTY,
    FIRE,
    HOLD,
    ONCE,
    RELEASE,
    RESCHEDULE,
    SCHEDULE,
    UNKNOWN,
    DelayCommand,
    Schedule,
    encode_command,
)
from ddmq_common.delivery import encode
from ddmq_common.names import DELAY_TOPIC
from delay_service.context import UnrecordedOffsets
from delay_service.core import decider
from delay_service.core.commands import CommandDecisions, DecisionContext, command_of
from delay_service.core.decider import INGESTED
from delay_service.core.due_scans import DueScans, FirePlan, SliceLimits
from delay_service.core.fire_command import FireCommand, progress_of
from delay_service.due.backend import TargetTopic
from delay_service.store.port import Scan, StoreChanges
from tests.examples import examples
from tests.service.delay.delay_rig import RetainedStore

BEGIN_MS = 1_700_000_000_000
IDS_KEPT_MS = 72 * 3_600_000
SERIES = 3
NUMBERS = st.integers(1, 6)
ALL = "all"
OPEN, CLOSED = "open", "closed"


class FireCommit(NamedTuple):
    """A commit under way, decided at a wall time."""

    at: int
    fires: list[FireCommand]
    over: list[int]


class Process:
    """One owner's memory."""

    def __init__(self, world: World) -> None:
        store, log = world.disk, world.log
        self.acks = AckMap()
        self.acks.finish((offset, offset + 1) for offset in log.finished)
        for offset, attempts in log.attempts.items():
            self.acks.record_attempts(offset, attempts)
        self.due_scans = DueScans(store, self.acks, world.find_topic, SliceLimits(4, 1 << 20, IDS_KEPT_MS))
        self.decisions = DecisionContext(store, self.acks, self.due_scans.busy, IDS_KEPT_MS)
        ingested = store.meta(INGESTED)
        self.stored_to = 0 if ingested is None else int(ingested)
        self.position = min(log.committed, self.stored_to)
        self.caught_up = len(log.orders)
        self.unrecorded = UnrecordedOffsets(store)
        self.over = self.unrecorded.offsets
        self.fire_commits: list[FireCommit] = []
        self.ready: list[CommandDecisions] = []
        self.ready_end = self.position


class CommandLog:
    """What is durable."""

    def __init__(self) -> None:
        self.orders: list[StoredRecord] = []
        self.committed = 0
        self.finished: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.fired: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # number → (delivery, when)
        self.reply_codes: defaultdict[int, set[int]] = defaultdict(set)  # reply → codes


class World:
    """Log, disk, clock."""

    def __init__(self) -> None:
        self.log = CommandLog()
        self.disk = RetainedStore()
        self.now = BEGIN_MS
        self.open = True
        self.held: set[str] = set()
        self.released_ms: dict[str, int] = {}  # as this owner has heard

    def find_topic(self, topic: str) -> TargetTopic | None:
        return TargetTopic(1, (topic != CLOSED or self.open) and topic not in self.held)


class DelayMachine(RuleBasedStateMachine):
    """See the module's text."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.process = Process(self.world)
        self.added: dict[int, DelayCommand] = {}
        self.floor: dict[int, int] = {}  # number → it may not fire before
        self.changed: set[int] = set()  # rescheduled, or told to fire
        self.moved: set[int] = set()  # rescheduled: what of a series fell due meanwhile is passed over
        self.cancels: dict[int, int] = {}  # reply → number
        self.holds: list[tuple[int, int, bool]] = []  # offset of the command, number, hold or release
        self.first_add: dict[int, int] = {}  # number → offset of its first add

    # --- asking

    def _append(self, order: DelayCommand, number: int) -> None:
        orders = self.world.log.orders
        delivery = encode(b"", b"%d" % number, b"", None)
        offset = len(orders)
        system = {COMMAND_PROPERTY: encode_command(order)}
        orders.append(
            StoredRecord(DELAY_TOPIC, 0, offset, -1, offset.to_bytes(16, "big"), 1, 1, 0, 0, delivery, system)
        )

    @rule(number=NUMBERS, wait=st.integers(-5, 12), series=st.booleans(), closing=st.booleans())
    def add(self, number: int, wait: int, series: bool, closing: bool) -> None:
        order = self.added.get(number)
        if order is None:
            schedule = Schedule(period_ms=7, repeat=SERIES - 1, catch_up=ALL) if series else None
            due = self.world.now + wait
            order = DelayCommand(
                ADD,
                _uuid(number),
                CLOSED if closing else OPEN,
                SCHEDULE if series else ONCE,
                due,
                due // 1000,
                schedule=schedule,
            )
            self.added[number] = order
            self.floor[number] = min(due, self.floor.get(number, due))
        self.first_add.setdefault(number, len(self.world.log.orders))
        self._append(order, number)

    @rule(number=NUMBERS)
    def cancel(self, number: int) -> None:
        reply = len(self.cancels) + 1
        self.cancels[reply] = number
        self._append(DelayCommand(CANCEL, _uuid(number), reply_queue=0, reply_id=reply), number)

    @rule(number=NUMBERS, wait=st.integers(-5, 40))
    def reschedule(self, number: int, wait: int) -> None:
        self.changed.add(number)
        self.moved.add(number)
        due = self.world.now + wait
        self.floor[number] = min(due, self.floor.get(number, due))
        self._append(DelayCommand(RESCHEDULE, _uuid(number), due_ms=due), number)

    @rule(number=NUMBERS)
    def fire_now(self, number: int) -> None:
        self.changed.add(number)
        self.floor[number] = 0
        self._append(DelayCommand(FIRE, _uuid(number)), number)

    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        """Like a move, because deliveries of a series that fall due during the hold may be passed over."""
        self.moved.add(number)
        self.holds.append((len(self.world.log.orders), number, True))
        self._append(DelayCommand(HOLD, _uuid(number)), number)

    @rule(number=NUMBERS)
    def release(self, number: int) -> None:
        self.holds.append((len(self.world.log.orders), number, False))
        self._append(DelayCommand(RELEASE, _uuid(number)), number)

    def _is_held(self, number: int) -> bool:
        """Whether the last command about the hold of a message that waits, as far as commands are ingested,
        is a hold."""
        add = self.first_add.get(number)
        state = False
        for offset, other, held in self.holds:
            if other == number and add is not None and add < offset < self.process.position:
                state = held
        return state

    # --- the world

    @rule(step=st.sampled_from((-30, 1, 3, 10, 10, 40)))
    def time_passes(self, step: int) -> None:
        self.world.now += step

    @rule(count=st.sampled_from((1, 50, 50)), step=st.integers(0, 10))
    def take_in_and_fire(self, count: int, step: int) -> None:
        """The usual course, so that what is unusual meets it often."""
        self.world.now += step
        self.ingest(count)
        if self.process.position >= self.process.caught_up:
            self.fire()

    @rule()
    def closed_topic_opens_or_closes(self) -> None:
        self.world.open = not self.world.open

    @rule(topic=st.sampled_from((OPEN, CLOSED)))
    def an_operator_holds_or_releases(self, topic: str) -> None:
        world = self.world
        if topic in world.held:
            world.held.discard(topic)
            world.released_ms[topic] = world.now
            self.process.due_scans.on_released(topic, world.now)
        else:
            world.held.add(topic)
            world.released_ms.pop(topic, None)

    def _check_order(self, busy: set[int], plan: FirePlan) -> None:
        """What was overdue at a release comes behind what was due before it, but for what comes aside just
        now, and for what was fired although the store does not know it."""
        world, changes = self.world, plan.changes
        done = busy | world.log.finished
        aside = [] if changes is None else [one.offset for one in (*changes.deferred, *changes.removed)]
        for fire in plan.fires:
            message = fire.message
            assert message.topic not in world.held
            assert not self._is_held(int(fire.record.delivery[-1:])), "a held message fires"
            done.add(message.offset)
            if message.due_ms > world.released_ms.get(message.topic, -1):
                continue
            waiting = world.disk.scan(Scan(message.topic, 0, message.due_ms + 1, 1_000, None, 1 << 30))
            before = [one.offset for one in waiting if one.key < message.key and one.offset not in done]
            assert set(before) <= set(aside), (message, before)

    # --- the owner's steps

    def _write(self, changes: StoreChanges, unrecorded: Collection[int] = ()) -> None:
        self.process.due_scans.on_added(changes.added)
        self.process.unrecorded.add_offsets(unrecorded, changes)
        self.world.disk.write(changes)

    @rule(count=st.sampled_from((1, 2, 50, 50)))
    def ingest(self, count: int) -> None:
        process = self.process
        end = min(process.position + count, len(self.world.log.orders))
        is_replay = process.position < process.stored_to
        if is_replay:
            end = min(end, process.stored_to)
        orders = [
            command_of(short_record(record, COMMAND_PROPERTY))
            for record in self.world.log.orders[process.position : end]
        ]
        if not orders:
            return
        decisions = (decider.replay_commands if is_replay else decider.decide_commands)(
            process.decisions, orders, self.world.now
        )
        process.position += decisions.commands
        if not is_replay and decisions.commands:
            decisions.changes.meta[INGESTED] = b"%d" % process.position
            self._write(decisions.changes, decisions.unrecorded)
        process.ready.append(decisions)
        process.ready_end = process.position

    @rule(lives=st.booleans(), applied=st.booleans())
    def flush_and_commit(self, lives: bool, applied: bool) -> None:
        process = self.process
        self.world.disk.flush()
        ready, process.ready = process.ready, []
        if lives or applied:
            self._commit_decisions(ready, process.ready_end)
        if not lives:
            self._new_owner()

    def _commit_decisions(self, ready: list[CommandDecisions], end: int) -> None:
        log = self.world.log
        log.committed = max(log.committed, end)
        for decisions in ready:
            log.finished.update(decisions.done)
            self._finished(decisions.done)
            for reply in decisions.replies:
                log.reply_codes[reply.outcome.reply_id].add(reply.outcome.code)

    def _finished(self, offsets: list[int]) -> None:
        self.process.acks.finish((offset, offset + 1) for offset in offsets)
        self.process.unrecorded.on_recorded(offsets)

    @precondition(lambda self: self.process.position >= self.process.caught_up)
    @rule()
    def fire(self) -> None:
        process = self.process
        busy = set(process.due_scans.busy)
        plan = process.due_scans.plan_fires(self.world.now)
        self._check_order(busy, plan)
        if plan.changes is not None:
            self._write(plan.changes, plan.passed_offsets)
        over, process.over = process.over + plan.passed_offsets, []
        if plan.fires or over:
            process.fire_commits.append(FireCommit(self.world.now, plan.fires, over))

    @precondition(lambda self: self.process.fire_commits)
    @rule(which=st.integers(0, 3), fate=st.sampled_from(("stored", "stored", "refused", "aside")))
    def settle(self, which: int, fate: str) -> None:
        process = self.process
        fire_commit = process.fire_commits.pop(which % len(process.fire_commits))
        if fate == "stored":
            self._commit_fired(fire_commit)
            finished, attempts = progress_of(fire_commit.fires)
            self._finished(finished + fire_commit.over)
            for offset, count in attempts:
                process.acks.record_attempts(offset, count)
            process.due_scans.on_commit_done(fire_commit.fires, True)
            self._write(process.due_scans.changes_of(fire_commit.fires, self.world.now))
            return
        process.over += fire_commit.over
        changes = process.due_scans.defer_messages(fire_commit.fires) if fate == "aside" else None
        process.due_scans.on_commit_done(fire_commit.fires, False)
        if changes is not None:
            self._write(changes)

    def _commit_fired(self, fire_commit: FireCommit) -> None:
        log = self.world.log
        finished, attempts = progress_of(fire_commit.fires)
        log.finished.update(finished, fire_commit.over)
        log.attempts.update(attempts)
        for one in fire_commit.fires:
            number = int(one.record.delivery[-1:])
            log.fired[number].append((one.message.occurrence, fire_commit.at))

    @rule(applied=st.booleans(), store_survives=st.booleans())
    def owner_dies(self, applied: bool, store_survives: bool) -> None:
        """Commits under way count or not; what was not flushed is there or not."""
        for fire_commit in self.process.fire_commits:
            if applied:
                self._commit_fired(fire_commit)
        if not store_survives:
            self.world.disk.crash()
        self._new_owner()

    @rule(step=st.integers(0, 10), applied=st.booleans(), store_survives=st.booleans())
    def fires_and_dies(self, step: int, applied: bool, store_survives: bool) -> None:
        self.take_in_and_fire(50, step)
        self.owner_dies(applied, store_survives)

    def _new_owner(self) -> None:
        self.world.released_ms.clear()
        self.process = Process(self.world)

    # --- the account

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self._finish()
        log = self.world.log
        assert log.finished == set(range(len(log.orders))), "something is never done"
        assert not self.world.disk.counts()
        for number, order in self.added.items():
            self._check(number, order, log.fired[number])
        assert set(log.fired) <= set(self.added) | {n for n, one in log.fired.items() if not one}

    def _finish(self) -> None:
        self.world.open = True
        for number in self.added:
            self.release(number)
        for topic in list(self.world.held):
            self.an_operator_holds_or_releases(topic)
        for _ in range(200):
            self.world.now += 10
            while self.process.position < len(self.world.log.orders):
                before = self.process.position
                self.ingest(5)
                if self.process.position == before:
                    break
            if self.process.position >= self.process.caught_up:
                self.fire()
            while self.process.fire_commits:
                self.settle(0, "stored")
            self.flush_and_commit(True, True)
            if len(self.world.log.finished) == len(self.world.log.orders) and not self.world.disk.counts():
                return

    def _check(self, number: int, order: DelayCommand, fired: list[tuple[int, int]]) -> None:
        deliveries = [delivery for delivery, _ in fired]
        assert len(set(deliveries)) == len(deliveries), f"{number} came twice: {fired}"
        assert all(when >= self.floor[number] for _, when in fired), f"{number} came early: {fired}"
        if number not in self.changed:
            for delivery, when in fired:
                assert when >= order.due_ms + (delivery >> 20), f"{number} came early: {fired}"
        expected_count = SERIES if order.schedule is not None else 1
        cancels = [reply for reply, what in self.cancels.items() if what == number]
        codes = [self.world.log.reply_codes[reply] for reply in cancels]
        assert all(len(answers) <= 1 for answers in codes), f"two answers for one cancel of {number}: {codes}"
        codes_sent = {code for answers in codes for code in answers}
        if not cancels or codes_sent == {ALREADY_FIRED}:
            fewest = 1 if number in self.moved else expected_count
            assert fewest <= len(fired) <= expected_count, (
                f"{number} came {len(fired)} times of {expected_count}"
            )
        if codes_sent & {CANCELLED, UNKNOWN}:
            assert len(fired) < expected_count, f"{number} was cancelled and came"
            assert ALREADY_FIRED not in codes_sent


def _uuid(number: int) -> str:
    return str(UUID(int=number))


TestDelay = DelayMachine.TestCase
TestDelay.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)


def test_a_move_lost_by_a_power_failure_ends_with_its_message() -> None:
    """The log knows that the delivery has fired, the store only of the move before the last."""
    machine = DelayMachine()
    machine.begin()
    machine.add(number=1, wait=2, series=True, closing=False)
    machine.fire_now(number=1)
    machine.take_in_and_fire(count=50, step=7)
    machine.flush_and_commit(lives=False, applied=True)
    machine.reschedule(number=1, wait=10)
    machine.time_passes(step=40)
    machine.take_in_and_fire(count=50, step=5)
    machine.settle(which=0, fate="stored")
    machine.fires_and_dies(step=0, applied=False, store_survives=False)
    machine.teardown()


def test_a_new_owner_fires_what_was_released_before_it_knew_it_in_due_order() -> None:
    """It replays the first message after the release, and the second falls due with it."""
    machine = DelayMachine()
    machine.begin()
    machine.add(number=1, wait=0, series=False, closing=False)
    machine.an_operator_holds_or_releases(topic=OPEN)
    machine.fires_and_dies(step=0, applied=False, store_survives=False)
    machine.an_operator_holds_or_releases(topic=OPEN)
    machine.add(number=2, wait=0, series=False, closing=False)
    machine.take_in_and_fire(count=1, step=0)
    for _ in machine.process.fire_commits[:]:
        machine.settle(which=0, fate="aside")
    machine.take_in_and_fire(count=1, step=0)
    machine.teardown()
