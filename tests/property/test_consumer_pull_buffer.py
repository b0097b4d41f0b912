"""PullBuffer against a naive model: one dictionary entry per message, no runs, no ack map.

The model keeps for every message what may happen to it next. Reads are answered from a plain list,
commits go to the real GroupProgress and may fail, and a restart makes a new PullBuffer from what is
durable. More examples: DDMQ_PROPERTY_EXAMPLES=2000 .venv/bin/python -m pytest tests/property -k pull_buffer
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.progress.group_progress import GroupProgress
from backend.records import (
    FLAG_PRESSURE,
    Bounds,
    ProgressDelta,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
)
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_feed import FeedState
from proxy_consumer.core.steps import Delivery, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Tally
from tests.examples import examples

EXAMPLES = os.environ.get("DDMQ_PROPERTY_EXAMPLES")
QUEUES = 2
TIMEOUT_S = 5.0
INTERVALS_MS = (1000,)
TIMEOUTS_MAX = 1
STEPS = 2
CONCURRENCY = 12
RETRYING_MAX = 5


class FlagsBatch(ReadBatch):
    """Columns over plain lists."""

    def __init__(
        self, status: ReadStatus, messages: Sequence[tuple[int, int]], next_offset: int, bounds: Bounds
    ) -> None:
        self.status = status
        self.offsets = [offset for offset, _ in messages]
        self.flags = [flags for _, flags in messages]
        self.deliveries = [b"x" * (offset % 5 + 1) for offset, _ in messages]
        self.next_offset = next_offset
        self.bounds = bounds if status is ReadStatus.OUT_OF_RANGE else None
        self.at_end = next_offset == bounds.next

    def record(self, index: int) -> StoredRecord:
        raise AssertionError("the core needs no records")


class RecordedTimes:
    """An observer that keeps every value."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def observe(self, value: float) -> None:
        self.values.append(value)


class QueueLog:
    """One queue: offset → flags, None for a gap."""

    def __init__(self) -> None:
        self.flags: list[int | None] = []
        self.min = 0

    def read(self, offset: int, count_max: int) -> FlagsBatch:
        bounds = Bounds(self.min, len(self.flags))
        if not self.min <= offset <= len(self.flags):
            return FlagsBatch(ReadStatus.OUT_OF_RANGE, [], offset, bounds)
        records: list[tuple[int, int]] = []
        at = offset
        while at < len(self.flags) and len(records) < count_max:
            flags = self.flags[at]
            if flags is not None:
                records.append((at, flags))
            at += 1
        if not records:
            return FlagsBatch(ReadStatus.NONE, [], at, bounds)
        return FlagsBatch(ReadStatus.DATA, records, at, bounds)


PATTERNS = ["......", ".", "..p..", "-..", "..-.p-..", "ppp", "............"]  # message, pressure, gap
OUTCOMES = ["stored", "failed", "stored but not known"]
RETRYING = ("waiting", "ready", "burying")


@dataclass
class Job:
    """What the model knows of one message."""

    state: str = "new"  # new, leased, back (nobody looked at it), waiting, ready, burying, done
    lease: int = 0
    deadline: float = 0.0
    since: float = 0.0
    due: float = 0.0
    fails: int = 0
    timeouts: int = 0

    @property
    def waits_for_redelivery(self) -> bool:
        """Also what is known to have been delivered before a restart."""
        return self.state in ("waiting", "ready") or (
            self.state in ("new", "back") and self.fails + self.timeouts > 0
        )


class PullBufferMachine(RuleBasedStateMachine):
    """See the module."""

    @initialize()
    def begin(self) -> None:
        self.now = 100.0
        self.logs = [QueueLog() for _ in range(QUEUES)]
        self.durable = [GroupProgress() for _ in range(QUEUES)]
        self.refs = [QueueRef("T", 1, number) for number in range(QUEUES)]
        self.lease_ids = count(1)
        self.earlier_leases = [0]
        self.open_commits: list[tuple[int, ProgressDelta]] = []
        self.paused = False
        self.jobs: list[dict[int, Job]] = [{} for _ in range(QUEUES)]
        self.acked: list[set[int]] = [set() for _ in range(QUEUES)]
        self.load()
        for number in range(QUEUES):
            self.append(number, "........")

    def load(self) -> None:
        """A new process: what is durable is all it knows."""
        config = SubscriptionDefaults(
            ack_timeout_ms=int(TIMEOUT_S * 1000),
            retry_intervals_ms=INTERVALS_MS,
            max_timeout_redeliveries=TIMEOUTS_MAX,
            concurrency=CONCURRENCY,
            retrying_max=RETRYING_MAX,
            batch_max=6,
            retry_steps=STEPS,
        )
        self.process_times: list[float] = []
        self.expected_times: list[float] = []
        self.redelivered = 0
        tally = Tally(process=RecordedTimes(self.process_times))
        self.buffer = PullBuffer(
            config, 10_000, lambda count_max: (count_max * 2, 10_000), self.lease_ids, tally
        )
        self.buffer.set_paused(self.paused)
        self.tails: set[int] = set()
        self.open_commits = []
        for number, log in enumerate(self.logs):
            view = self.durable[number].view()
            self.buffer.assign_queue(self.refs[number], view, Bounds(log.min, len(log.flags)))
            committed = log.min if view.committed is None else view.committed
            done = set(range(committed)) | {o for start, end in view.finished for o in range(start, end)}
            fresh: dict[int, Job] = {}
            for offset, flags in enumerate(log.flags):
                job = fresh[offset] = Job()
                packed = view.attempts.get(offset, 0)
                job.fails, job.timeouts = packed & 0xFFFF, packed >> 16
                if offset in done or not self.deliverable(flags) or offset < log.min:
                    job.state = "done"
                elif job.fails > len(INTERVALS_MS) or job.timeouts > TIMEOUTS_MAX:
                    job.state = "burying"
            self.jobs[number] = fresh
            self.acked[number] = {offset for offset, job in fresh.items() if job.state == "done"} & done

    @staticmethod
    def deliverable(flags: int | None) -> bool:
        return flags is not None and not flags & FLAG_PRESSURE

    def state(self, number: int) -> SubscribedQueue:
        return self.buffer.queues[self.refs[number]]

    # --- rules

    @rule(number=st.integers(0, QUEUES - 1), pattern=st.sampled_from(PATTERNS))
    def append(self, number: int, pattern: str) -> None:
        kinds: list[int | None] = [{".": 0, "p": FLAG_PRESSURE, "-": None}[kind] for kind in pattern]
        for flags in kinds:
            self.jobs[number][len(self.logs[number].flags)] = Job(
                "new" if self.deliverable(flags) else "done"
            )
            self.logs[number].flags.append(flags)
        if kinds and number in self.tails:
            self.tails.discard(number)
            self.buffer.on_data_arrived(self.state(number))

    @rule(count_max=st.integers(1, 9))
    def pull_one(self, count_max: int) -> None:
        self.pull(count_max)

    @rule(times=st.integers(1, 5))
    def pull_some(self, times: int) -> None:
        for _ in range(times):
            self.pull(6)

    @rule(paused=st.sampled_from([True, False, False]))
    def pause_or_resume(self, paused: bool) -> None:
        """Also over a restart: what changes meanwhile is the same, but nothing is delivered and read."""
        self.paused = paused
        self.buffer.set_paused(paused)

    def pull(self, count_max: int) -> None:
        if self.paused:
            assert not self.buffer.can_deliver
            assert self.buffer.next_step(self.now, count_max) is None
            return
        retrying = self.count(*RETRYING)
        while True:
            step = self.buffer.next_step(self.now, count_max)
            if not isinstance(step, ReadRequest):
                break
            number = step.queue.ref.queue_id
            self.buffer.on_loaded(step, self.logs[number].read(step.offset, step.count_max), self.now)
            if step.queue.feed.state is FeedState.TAIL:
                self.tails.add(number)
        if step is None:
            self.check_nothing_to_deliver()
        else:
            offsets = step.messages.offsets
            new = [offset for offset in offsets if self.jobs[step.queue.ref.queue_id][offset].state == "new"]
            assert not new or retrying < RETRYING_MAX
            self.check_delivery(step, count_max)
            assert self.count("leased") <= CONCURRENCY

    def count(self, *states: str) -> int:
        return sum(job.state in states for jobs in self.jobs for job in jobs.values())

    def check_nothing_to_deliver(self) -> None:
        if self.count("leased") >= CONCURRENCY:
            return
        assert self.count("ready", "back") == 0
        assert self.count(*RETRYING) >= RETRYING_MAX or self.count("new") == 0

    def check_delivery(self, delivery: Delivery, count_max: int) -> None:
        offsets = list(delivery.messages.offsets)
        jobs = self.jobs[delivery.queue.ref.queue_id]
        assert 0 < len(offsets) <= min(count_max, 6)
        assert offsets == sorted(set(offsets))
        assert delivery.lease.id not in self.earlier_leases
        self.earlier_leases.append(delivery.lease.id)
        for offset, attempt, raw in zip(
            offsets, delivery.attempt_numbers(), delivery.messages.deliveries, strict=True
        ):
            job = jobs[offset]
            assert job.state in ("new", "ready", "back"), (offset, job)
            assert attempt == job.fails + job.timeouts + 1
            assert raw == b"x" * (offset % 5 + 1)
            job.state, job.lease, job.deadline = "leased", delivery.lease.id, self.now + TIMEOUT_S
            job.since = self.now
            self.redelivered += attempt > 1
        assert self.buffer.tally.redelivered.value == self.redelivered

    @rule(number=st.integers(0, QUEUES - 1), data=st.data(), with_leases=st.booleans())
    def ack_some(self, number: int, data: st.DataObject, with_leases: bool) -> None:
        offsets = data.draw(self.some_offsets(number))
        self.ack(number, offsets, data.draw(self.some_leases(number, offsets)) if with_leases else None)

    def ack(self, number: int, offsets: list[int], leases: list[int] | None) -> None:
        before = self.done(number)
        lease_of = {} if leases is None else dict(zip(reversed(leases), reversed(offsets), strict=True))
        firsts = [(None, offset) for offset in offsets[:1]] if leases is None else list(lease_of.items())
        for lease, offset in firsts:
            job = self.jobs[number].get(offset)
            if job is not None and job.state == "leased" and lease in (None, job.lease):
                self.expected_times.append((self.now - job.since) * 1e6)
        for index, offset in enumerate(offsets):
            job = self.jobs[number].get(offset)
            if job is None:
                continue
            leased = job.state == "leased" and (leases is None or job.lease == leases[index])
            if leased or (leases is None and job.waits_for_redelivery):
                job.state = "done"
                self.acked[number].add(offset)
        finished = self.state(number).finish_messages(offsets, leases, self.now)
        self.buffer.on_news(self.state(number))
        assert sorted(self.process_times) == pytest.approx(sorted(self.expected_times))
        assert finished == self.done(number) - before

    @rule(number=st.integers(0, QUEUES - 1), data=st.data(), with_leases=st.booleans())
    def fail(self, number: int, data: st.DataObject, with_leases: bool) -> None:
        offsets = data.draw(self.some_offsets(number))
        leases = data.draw(self.some_leases(number, offsets)) if with_leases else None
        delays = data.draw(st.none() | st.lists(st.integers(-1, 4000), max_size=len(offsets)))
        self.fail_all(number, offsets, leases, delays)

    def fail_all(
        self, number: int, offsets: list[int], leases: list[int] | None, delays: list[int] | None
    ) -> None:
        jobs, failed, failed_count = self.state(number), 0, 0
        for index, offset in enumerate(offsets):
            delay_ms = delays[index] if delays and index < len(delays) and delays[index] >= 0 else None
            failed_count += jobs.fail(offset, leases[index] or None if leases else None, delay_ms, self.now)
            job = self.jobs[number].get(offset)
            fenced = leases is not None and job is not None and job.lease != leases[index]
            if job is None or job.state != "leased" or fenced:
                continue
            failed += 1
            job.fails += 1
            delay = delays[index] if delays and index < len(delays) else -1
            if job.fails > len(INTERVALS_MS) + (STEPS if delay >= 0 else 0):
                job.state = "burying"
            else:
                wait_ms = delay if delay >= 0 else INTERVALS_MS[job.fails - 1]
                job.state, job.due = "waiting", self.now + wait_ms / 1000
        assert failed_count == failed
        self.buffer.on_news(self.state(number))
        self.make_due()
        self.buffer.expire_due(self.now)

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def extend(self, number: int, data: st.DataObject) -> None:
        current = [job.lease for job in self.jobs[number].values() if job.state == "leased"]
        leases = data.draw(st.lists(st.sampled_from(current or self.earlier_leases), max_size=3))
        self.state(number).extend(leases, self.now)
        for job in self.jobs[number].values():
            if job.state == "leased" and job.lease in leases:
                job.deadline = self.now + TIMEOUT_S

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def extend_messages(self, number: int, data: st.DataObject) -> None:
        offsets = sorted(set(data.draw(self.some_offsets(number))))
        leases = data.draw(self.some_leases(number, offsets))
        expected: list[int] = []
        for offset, lease in zip(offsets, leases, strict=True):
            job = self.jobs[number].get(offset)
            if job is not None and job.state == "leased" and job.lease == lease:
                job.deadline = self.now + TIMEOUT_S
            else:
                expected.append(offset)
        assert sorted(self.state(number).extend_messages(offsets, leases, self.now)) == expected
        assert self.buffer.next_event() <= self.earliest()

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def take_back(self, number: int, data: st.DataObject) -> None:
        offsets = sorted(set(data.draw(self.some_offsets(number))))
        leases = data.draw(self.some_leases(number, offsets))
        expected = 0
        for offset, lease in zip(offsets, leases, strict=True):
            job = self.jobs[number].get(offset)
            if job is not None and job.state == "leased" and job.lease == lease:
                job.state = "back"
                expected += 1
        assert self.buffer.take_back(self.state(number), offsets, leases) == expected

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 5.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        for jobs in self.jobs:
            for job in jobs.values():
                if job.state == "leased" and job.deadline <= self.now:
                    job.timeouts += 1
                    job.state = "burying" if job.timeouts > TIMEOUTS_MAX else "ready"
        self.make_due()
        assert self.buffer.next_event() <= self.earliest()
        self.buffer.expire_due(self.now)
        assert self.buffer.next_event() > self.now

    def make_due(self) -> None:
        for jobs in self.jobs:
            for job in jobs.values():
                if job.state == "waiting" and job.due <= self.now:
                    job.state = "ready"

    def earliest(self) -> float:
        waits = [job.due for jobs in self.jobs for job in jobs.values() if job.state == "waiting"]
        leases = [job.deadline for jobs in self.jobs for job in jobs.values() if job.state == "leased"]
        return min([*waits, *leases], default=float("inf"))

    @rule(number=st.integers(0, QUEUES - 1), stored=st.booleans())
    def bury(self, number: int, stored: bool) -> None:
        state = self.state(number)
        for job in state.table.take_spent():
            assert self.jobs[number][job.offset].state == "burying"
            if stored:
                self.durable[number].apply(state.build_finish("G", job.offset))
                state.on_published(job.offset)
                self.buffer.on_news(state)
                self.jobs[number][job.offset].state = "done"
            else:
                state.table.spent.append(job)

    @rule(times=st.integers(1, 3))
    def fail_everything_repeatedly(self, times: int) -> None:
        for _ in range(times):
            self.pull(6)
            for number in range(QUEUES):
                leased = [offset for offset, job in self.jobs[number].items() if job.state == "leased"]
                self.fail_all(number, leased, None, None)
            self.advance(1.0)

    @rule(times=st.integers(1, 4), keep=st.integers(0, 2), outcome=st.sampled_from(OUTCOMES))
    def work(self, times: int, keep: int, outcome: str) -> None:
        """A client that pulls, acknowledges all but `keep` messages, and whose acks are committed."""
        for _ in range(times):
            self.pull(6)
        for number in range(QUEUES):
            leased = [offset for offset, job in self.jobs[number].items() if job.state == "leased"]
            self.ack(number, leased[keep:], None)
            self.start_commit(number)
        while self.open_commits:
            self.end_commit(outcome)

    @rule(number=st.integers(0, QUEUES - 1))
    def start_commit(self, number: int) -> None:
        delta = self.state(number).collect_progress("G")
        if delta is not None:
            self.open_commits.append((number, delta))

    @precondition(lambda self: self.open_commits)
    @rule(outcome=st.sampled_from(OUTCOMES))
    def end_commit(self, outcome: str) -> None:
        number, delta = self.open_commits.pop(0)
        if outcome != "failed":
            self.durable[number].apply(delta)
        if outcome == "stored":
            self.state(number).on_stored(delta)
        else:
            jobs = self.state(number)
            jobs.uncommitted.restore(delta, jobs.table.jobs)

    @rule()
    def flush(self) -> None:
        """Everything is stored: what was acknowledged and attempted must be durable now."""
        while self.open_commits:
            self.end_commit("stored")
        for number in range(QUEUES):
            self.start_commit(number)
        while self.open_commits:
            self.end_commit("stored")
        for number, jobs in enumerate(self.jobs):
            stored = self.durable[number]
            assert not [offset for offset in self.acked[number] if not stored.acks.is_finished(offset)]
            attempts = stored.acks.attempts
            for offset, job in jobs.items():
                if job.state != "done":
                    assert attempts.get(offset, 0) == job.timeouts << 16 | job.fails

    @rule()
    def drop_read_ahead(self) -> None:
        self.buffer.filter_by(None)

    @rule(what=st.sampled_from(["nothing"] * 4 + ["restart", "flush and restart", "flush and restart"]))
    def restart(self, what: str) -> None:
        if what.startswith("flush"):
            self.flush()
        if what != "nothing":
            self.load()

    # --- draws

    def some_offsets(self, number: int) -> st.SearchStrategy[list[int]]:
        jobs = self.jobs[number]
        leases: dict[int, list[int]] = {}
        for offset, job in jobs.items():
            if job.state == "leased":
                leases.setdefault(job.lease, []).append(offset)
        retrying = [offset for offset, job in jobs.items() if job.state in RETRYING]
        mixed = st.integers(0, len(jobs) + 3)
        kinds: list[st.SearchStrategy[list[int]]] = [st.lists(mixed, max_size=10, unique=True)]
        if leases:
            complete_lease = st.sampled_from(list(leases.values())).map(list)
            kinds += [
                complete_lease,
                complete_lease.flatmap(lambda offsets: st.lists(st.sampled_from(offsets), unique=True)),
            ]
        if retrying:
            kinds.append(st.lists(st.sampled_from(retrying), unique=True))
        return st.one_of(kinds)

    def some_leases(self, number: int, offsets: list[int]) -> st.SearchStrategy[list[int]]:
        def lease(offset: int) -> st.SearchStrategy[int]:
            job = self.jobs[number].get(offset)
            right = [job.lease] if job is not None and job.lease else []
            return st.sampled_from([*right * 3, *self.earlier_leases[1:][-3:], 999_999])

        return st.tuples(*map(lease, offsets)).map(list)

    def done(self, number: int) -> int:
        return sum(job.state == "done" for job in self.jobs[number].values())

    # --- invariants

    @invariant()
    def budget_is_what_the_model_counts(self) -> None:
        jobs = [job.state for each in self.jobs for job in each.values()]
        assert self.buffer.budget.leased == jobs.count("leased")
        retrying = jobs.count("waiting") + jobs.count("ready") + jobs.count("burying")
        assert self.buffer.budget.retrying == retrying

    @invariant()
    def committed_never_passes_an_unfinished_message(self) -> None:
        for number, jobs in enumerate(self.jobs):
            unfinished = [offset for offset, job in jobs.items() if job.state != "done"]
            lowest = min(unfinished, default=len(self.logs[number].flags))
            assert self.state(number).ack_map.committed <= lowest
            durable = self.durable[number].view().committed
            assert durable is None or durable <= lowest

    @invariant()
    def only_what_the_model_finished_is_finished(self) -> None:
        for number, jobs in enumerate(self.jobs):
            finished = self.state(number).ack_map.is_finished
            assert not [offset for offset, job in jobs.items() if finished(offset) and job.state != "done"]


PullBufferMachine.TestCase.settings = settings(
    max_examples=int(EXAMPLES or examples(90)),
    stateful_step_count=60,
    deadline=None,
    derandomize=EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
)
TestPullBuffer = PullBufferMachine.TestCase
