"""No order that is accepted can stop a shard: whatever gets through the checks can be stored, listed, fired
on and on, late or in time, written to the log, and cancelled by the id that its sender was given.

Orders of every dialect and of sendDelaySync, mostly with values at the edge of something, go the way of a
message in one process, against a naive account of when the first deliveries of a series are due.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import msgspec
import pytest

from backend.progress.ack_map import OFFSET_END, AckMap
from backend.progress.codec import encode_delta
from backend.records import ProgressDelta, QueueRef
from ddmq.server.delays.rows import describe_message
from ddmq_client.idl.codes import DelayAction, DelayType
from ddmq_common.delays.command import (
    ADD,
    CANCEL,
    EXPONENTIAL,
    LOOP,
    SCHEDULE,
    DelayCommand,
    DelayId,
    Schedule,
    decode_command,
    encode_command,
    parse_delay_id,
)
from ddmq_common.delays.schedules import ScheduleLimits, find_schedule_error, first_due_ms
from ddmq_common.delivery import encode
from ddmq_common.names import DELAY_DIALECTS
from delay_service.core import decider
from delay_service.core.commands import CommandRecord, DecisionContext
from delay_service.core.due_scans import DueScans, SliceLimits
from delay_service.due.backend import TargetTopic
from delay_service.store import layout
from delay_service.store.layout import decode_pending, decode_state, encode_pending, encode_state
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import IdKind, Scan, StoreChanges
from proxy_producer.core.delay_requests import (
    DelayRequest,
    add_command,
    changing_command,
    check_delay_id,
    check_delay_request,
    check_timestamp,
    schedule_command,
    schedule_id,
    uuid_of,
)
from proxy_producer.core.dialects import read_command, select_dialects

NOW = 1_795_000_000_000
DAY_MS = 86_400_000
SHARDS = 4
YEARS_100_S = 100 * 366 * 86_400
QUEUE = QueueRef("%DELAY", 1, 0)
NUMBERS = (
    "0", "1", "-1", "2", "3", "999", "1000", "60000", "86400000", "999999999", "1000000000", "4294967295",
    "4294967296", "99999999999", "100000000000", str(NOW), str(NOW + 5_000), str(NOW // 1_000 + 60),
    str(NOW + 62 * DAY_MS), "9223372036854775807", "999999999999999999", "1e5", "", "0.001",
)  # fmt: skip
MOMENTS = (
    "0001-01-01T00:00:00+00:00", "1700-01-01T00:00:00+00:00", "1900-01-01T00:00:00Z", "1969-12-31T23:59:59Z",
    "1970-01-01T00:00:00Z", "2001-09-09T01:46:40Z", "2001-09-09T01:46:39Z", "2026-12-24T18:00:00+01:00",
    "9999-12-31T23:59:59Z", "2100-01-01T00:00:00Z",
)  # fmt: skip
WAITS = ("1s", "1d", "62d", "999999999999d", "0ms", "500ms", "3s", "1h30m")
CRONS = ("* * * * *", "0 9 * * 1-5", "0 0 29 2 *", "30 2 * * *", "0 0 30 2 *", "*/7 * L * *", "nonsense")
ZONES = ("", "UTC", "Europe/Berlin", "Australia/Lord_Howe", "Nowhere/At_All")
WORDS = ("fire_once", "all", "skip", "sometimes", "")
DDMQ_NAMES = ("at", "after", "cron", "zone", "period", "repeat", "occurrences", "catch-up")
NAMES = {
    "amq": ("AMQ_SCHEDULED_DELAY", "AMQ_SCHEDULED_PERIOD", "AMQ_SCHEDULED_REPEAT", "AMQ_SCHEDULED_CRON"),
    "rabbit": ("x-delay",),
    "rocketmq": ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"),
    "ddmq": tuple(f"deliver-{name}" for name in DDMQ_NAMES),
}
INTS = (None, 0, 1, -1, 2, 3, 10, 1_000, 999_999_999, 10**9, NOW // 1_000, NOW // 1_000 + 60, 2**31, 2**32,
        2**62, 2**63 - 1, -(2**63), 9_999_999_999, 10_000_000_000)  # fmt: skip


class Accepted(NamedTuple):
    """An order, and the id that its sender gets."""

    order: DelayCommand
    delay_id: bytes


def of_dialect(random: Random) -> Accepted | None:
    name = random.choice(DELAY_DIALECTS)
    properties = {}
    for property_name in random.sample(NAMES[name], random.randint(1, min(5, len(NAMES[name])))):
        if "cron" in property_name.lower():
            pool = CRONS
        elif "zone" in property_name:
            pool = ZONES
        elif "catch" in property_name:
            pool = WORDS
        elif random.random() < 0.3:
            pool = random.choice((NUMBERS, MOMENTS, WAITS))
        elif property_name.endswith("-at"):
            pool = MOMENTS
        elif property_name.endswith(("repeat", "REPEAT", "occurrences")):
            pool = ("-1", "1", "3", "1000000")
        else:
            pool = WAITS if property_name.startswith("deliver") else NUMBERS
        properties[property_name.encode()] = random.choice(pool).encode()
    seconds = random.choice((62 * 86_400, YEARS_100_S))
    limits = ScheduleLimits(seconds * 1_000, 1_000_000)
    command = read_command(properties, select_dialects([name]), NOW + random.randint(0, 10**9), limits)
    if not isinstance(command, DelayCommand):
        return None
    uuid = uuid_of(random.randbytes(16))
    complete = msgspec.structs.replace(command, uuid=uuid, topic="t", shard=random.randrange(SHARDS))
    text = DelayId(complete.timestamp_s, complete.kind, 0, 0, 0, 0, complete.shard, uuid).text()
    return Accepted(complete, text.encode())


def of_request(random: Random) -> Accepted | None:
    pick = random.choice
    limits = ScheduleLimits(pick((62 * 86_400, YEARS_100_S)) * 1_000, 1_000_000)
    likely = (NOW // 1_000 + 60, 10**9, (NOW + limits.delay_ms_max) // 1_000)
    second, due_ms = (
        pick((*likely, pick(INTS))),
        pick((None, None, NOW + 1, NOW - DAY_MS, 10**12, pick(INTS))),
    )
    kind, times, expire = pick((*DelayType, 9)), pick((0, 1, 3, pick(INTS))), pick((0, 2**33, pick(INTS)))
    if kind == DelayType.DELAY:
        times = pick((0, times))
    request = DelayRequest(
        DelayAction.ADD, b"", second, kind, pick((3, 2, 86_400, pick(INTS))), expire, times, b"", due_ms, True
    )
    uuid = uuid_of(random.randbytes(16))
    if request.kind == DelayType.SCHEDULE:
        return _scheduled(random, request, limits, uuid)
    if check_delay_request(request, limits, SHARDS, NOW) is not None:
        return None
    return Accepted(*add_command(request, "t", uuid, SHARDS))


def _scheduled(random: Random, request: DelayRequest, limits: ScheduleLimits, uuid: str) -> Accepted | None:
    def number() -> int:
        return random.choice(INTS) or 0

    schedule = Schedule(
        number(), random.choice((1_000, number())), random.choice((0, -1, 2, number())),
        random.choice(("", "", "", *CRONS)), random.choice(ZONES) or "UTC",
        random.choice((0, number())), random.choice(WORDS),
    )  # fmt: skip
    if request.due_ms is not None and check_timestamp(request, limits, NOW) is not None:
        return None
    if find_schedule_error(schedule, limits, NOW) is not None:
        return None
    due = request.due_ms if request.due_ms is not None else first_due_ms(schedule, NOW)
    if due is None:
        return None
    command = schedule_command(schedule, due, "t", uuid, SHARDS, (-2, 0))
    return Accepted(command, schedule_id(command))


class Shard:
    """One shard in one process, over a store in memory whose values are encoded as on disk."""

    def __init__(self) -> None:
        self.store, self.acks, self.offset = MemoryDelayStore(), AckMap(), 0
        self.due_scans = DueScans(
            self.store, self.acks, lambda _: TargetTopic(4, True), SliceLimits(64, 1 << 20, 3 * DAY_MS)
        )
        self.decisions = DecisionContext(self.store, self.acks, self.due_scans.busy, 3 * DAY_MS)
        self.codes: list[int] = []

    def take(self, order: DelayCommand, now: int) -> None:
        text = encode_command(order)
        assert decode_command(text) == order
        record = CommandRecord(
            self.offset, order, uuid_bytes_of(order), text, bytes(16), now, 0, encode(b"", b"x", b"", None)
        )
        self.offset += 1
        batch = decider.decide_commands(self.decisions, [record], now)
        assert batch.commands == 1
        assert not batch.dead
        self.write(batch.changes)
        self.codes += [reply.outcome.code for reply in batch.replies]

    def write(self, changes: StoreChanges) -> None:
        for message in changes.added:
            assert decode_pending(encode_pending(message)) == message
            assert layout.read_due(layout.due_key(*message.key)) == message.key
        for uuid, state in changes.ids.items():
            if state is not None:
                assert decode_state(encode_state(state)) == state
                layout.forget_key(state.forget_ms, uuid)
        self.due_scans.on_added(changes.added)
        self.store.write(changes)

    def fire(self, now: int) -> list[int]:
        """What was due and fired: when each was due."""
        fired: list[int] = []
        for _ in range(8):
            plan = self.due_scans.plan_fires(now)
            if plan.changes is not None:
                self.write(plan.changes)
            self.acks.finish((offset, offset + 1) for offset in plan.passed_offsets)
            for one in plan.fires:
                assert not one.reason, f"a dead letter of {one.message.command}"
                assert one.message.due_ms <= now, "early"
                fired.append(one.message.due_ms)
            self._commit(plan.fires, now)
            if not plan.fires and plan.changes is None:
                break
        return fired

    def _commit(self, fires: list, now: int) -> None:  # type: ignore[type-arg]
        last_offsets = [one.message.offset for one in fires if one.following is None]
        attempts = [(o.message.offset, o.message.occurrence + 1) for o in fires if o.following is not None]
        ranges = [(offset, offset + 1) for offset in last_offsets]
        encode_delta(ProgressDelta("g", QUEUE, 1, 1, ranges, attempts))
        for offset, count in attempts:
            assert 0 < count <= OFFSET_END
            self.acks.record_attempts(offset, count)
        self.acks.finish(ranges)
        self.due_scans.on_commit_done(fires, True)
        self.write(self.due_scans.changes_of(fires, now))


def uuid_bytes_of(order: DelayCommand) -> bytes:
    return bytes.fromhex(order.uuid.replace("-", ""))


def naive_dues(order: DelayCommand, many: int) -> list[int]:
    """When the first deliveries are due, one after the other."""
    dues = [order.due_ms]
    schedule = order.schedule
    while len(dues) < many:
        at = len(dues)
        if order.kind == LOOP:
            step_ms, more = order.interval_s * 1_000, at < order.times
        elif order.kind == EXPONENTIAL:
            step_ms, more = min(order.interval_s**at, 86_400) * 1_000, at < order.times
        elif order.kind == SCHEDULE and schedule is not None and not schedule.cron:
            step_ms, more = schedule.period_ms, schedule.repeat < 0 or at <= schedule.repeat
            more = more and not 0 < schedule.occurrences_max <= at
        else:
            return dues
        if not more or (order.kind != SCHEDULE and (dues[-1] + step_ms) // 1_000 > order.expire_s):
            return dues
        dues.append(dues[-1] + step_ms)
    return dues


def check(accepted: Accepted, random: Random) -> None:
    order, delay_id = accepted
    parsed = parse_delay_id(delay_id)
    assert parsed is not None, delay_id
    assert parsed.uuid == order.uuid
    assert check_delay_id(delay_id, SHARDS, extended_client=True) is None
    shard, now = Shard(), NOW
    shard.take(order, now)
    for message in shard.store.scan(Scan(None, 0, layout.DUE_MS_MAX, 10)):
        row = describe_message(message)
        assert row["id"] == delay_id.decode(), "it is listed under the id that the sender got"
    in_time = order.due_ms >= now
    if in_time:
        expected = naive_dues(order, 4)
        for due in expected:
            assert shard.fire(due - 1) == []
            assert shard.fire(due) == [due]
            now = due
    for ahead in (0, 1, 5_000, 10_000, DAY_MS, 400 * DAY_MS, 110 * 366 * DAY_MS):
        now += random.randint(0, ahead) if ahead else 0
        shard.fire(now)
    pending = shard.store.ids([uuid_bytes_of(order)])[0]
    assert pending is not None
    request = DelayRequest(DelayAction.CANCEL, delay_id, None, None, None, None, None, b"", None, True)
    cancel = changing_command(request, "", now // 1_000 + YEARS_100_S, SHARDS).command
    shard.take(msgspec.structs.replace(cancel, reply_queue=0, reply_id=1), now)
    assert shard.codes[-1] == (3 if pending.kind is IdKind.FIRED else 2), "cancelled, or fired before"
    assert shard.fire(now + 400 * DAY_MS) == []
    assert not shard.store.counts()
    assert cancel.op == CANCEL
    assert order.op == ADD


def fuzz(seed: int, count: int) -> dict[str, int]:
    random, counts = Random(seed), {"dialects": 0, "requests": 0}
    for _ in range(count):
        for name, make in (("dialects", of_dialect), ("requests", of_request)):
            accepted = make(random)
            if accepted is not None:
                counts[name] += 1
                try:
                    check(accepted, random)
                except Exception as error:
                    raise AssertionError(f"{accepted}: {type(error).__name__} {error}") from error
    return counts


def test_accepted_commands_can_be_stored_fired_and_cancelled() -> None:
    counts = fuzz(1, 1_500)
    assert min(counts.values()) > 20, counts


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_accepted_commands_can_be_stored_fired_and_cancelled(seed: int) -> None:
    fuzz(seed, 4_000)
