"""Order keys through PullBuffer and OrderScope against a naive model: one list of messages, looked through.

The model keeps every message in log order and says of each what may happen to it next. It asserts, at
every delivery, that each earlier message of the same key is durably finished (but what is in the same
answer), and, whenever nothing is delivered, that nothing could be. Commits take their time, end in any
order, fail, and are lost in crashes, stored or not; no crash may bring back a message that a later one of its
key has followed. Small bounds make chains run dry all the time. More examples:
DDMQ_PROPERTY_EXAMPLES=2000 .venv/bin/python -m pytest tests/property -k test_consumer_order
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.progress.group_progress import GroupProgress
from backend.records import (
    Bounds,
    ProgressDelta,
    ProgressView,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
)
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import JobState, unpack_attempts
from proxy_consumer.core.order import operators
from proxy_consumer.core.order.chains import ChainTable
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_feed import FILTERED, Rejection
from proxy_consumer.core.steps import Delivery, Loaded, ReadRequest
from proxy_consumer.core.tally import Tally
from proxy_consumer.groups.gauges import count_blocked_keys
from tests.examples import examples

EXAMPLES = os.environ.get("DDMQ_PROPERTY_EXAMPLES")
QUEUES = 3
TIMEOUT_S = 5.0
DELIVERIES_MAX = 3
BATCH = 4


@dataclass
class Message:
    """One message of the model. `key` "": unordered. `kind`: plain, filtered, faulty."""

    queue: int
    offset: int
    position: int
    key: str
    kind: str
    state: str = "new"  # new, leased, waiting, ready, burying, parked, done
    lease: int = 0
    deadline: float = 0.0
    due: float = 0.0
    fails: int = 0
    timeouts: int = 0
    replayed: bool = False  # by an operator, since the process started
    stored: bool = False  # its end is durable, and the core was told so
    delivered: bool = False  # ever, to anybody

    @property
    def is_over(self) -> bool:
        """Whether later messages of its key may follow it."""
        return self.state == "done" and self.stored

    @property
    def tries(self) -> int:
        return self.fails + self.timeouts

    def reset_tries(self) -> None:
        """An operator wants it delivered: earlier tries do not count, also after a restart."""
        self.fails = self.timeouts = 0
        self.replayed = True

    @property
    def delivery(self) -> bytes:
        return f"{self.key}/{self.kind}/{self.queue}/{self.offset}".encode()


class Batch(ReadBatch):
    """Columns over the model's messages."""

    def __init__(self, status: ReadStatus, messages: list[Message], next_offset: int) -> None:
        self.status = status
        self.offsets = [message.offset for message in messages]
        self.positions = [message.position for message in messages]
        self.flags = [0] * len(messages)
        self.deliveries = [message.delivery for message in messages]
        self.next_offset = next_offset
        self.bounds = None

    def record(self, index: int) -> StoredRecord:
        raise AssertionError("the core needs no records")


class KindFilter:
    """A filter as the kind of the message says; faults stop when they are mended."""

    tags = None

    def __init__(self) -> None:
        self.mended = False

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        kind = delivery.split(b"/")[1]
        if kind == b"filtered":
            return FILTERED
        return Rejection("does not fit") if kind == b"faulty" and not self.mended else None


def is_finished(view: ProgressView, offset: int) -> bool:
    below = view.committed is not None and offset < view.committed
    return below or any(start <= offset < end for start, end in view.finished)


def key_of(delivery: bytes) -> str | None:
    return delivery.split(b"/")[0].decode() or None


class OrderMachine(RuleBasedStateMachine):
    """See the module."""

    batch = 1
    merged = True
    on_dead_letter = "dead_letter"

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.set_up()
        self.append(data.draw(st.lists(self.kinds(), min_size=5, max_size=30)))

    def set_up(self) -> None:
        self.now = 100.0
        self.messages: list[Message] = []
        self.queues: list[list[Message]] = [[] for _ in range(QUEUES)]
        self.durable = [GroupProgress() for _ in range(QUEUES)]
        self.refs = [QueueRef("T", 1, number) for number in range(QUEUES)]
        self.lease_ids = count(1)
        self.filter = KindFilter()
        self.paused = False  # the subscription that is pulled when a process starts
        self.load()

    @staticmethod
    def kinds() -> Any:
        key = st.sampled_from(["a", "a", "a", "b", "b", "c", "d", ""])
        return st.tuples(
            st.integers(0, QUEUES - 1), key, st.sampled_from(["plain"] * 12 + ["filtered", "faulty"])
        )

    def load(self) -> None:
        """A new process: what is durable is all it knows."""
        config = SubscriptionDefaults(
            order_key="KEY",
            order_scope="topic",
            chain_batch=self.batch,
            ack_timeout_ms=int(TIMEOUT_S * 1000),
            retry_intervals_ms=(1000,),
            max_timeout_redeliveries=1,
            ordered_interval_ms=2000,
            ordered_deliveries_max=DELIVERIES_MAX,
            on_dead_letter=self.on_dead_letter,
            batch_max=BATCH,
            concurrency=10,
        )
        table: ChainTable = ChainTable(self.batch, 2, 6)
        self.pending_commits: list[tuple[int, ProgressDelta]] = []  # by queue
        self.scope = OrderScope(table, merged=self.merged, examined_max=5)
        self.buffer: Any = self.new_buffer(config)
        self.buffer.set_paused(self.paused)
        self.tails: set[int] = set()
        self.open_reads: list[ReadRequest | EndsRequest] = []
        for number, queue in enumerate(self.queues):
            view = self.durable[number].view()
            self.buffer.assign_queue(self.refs[number], view, Bounds(0, len(queue)), (self.scope, key_of))
            self.reload(queue, view)
        self.nothing_came_back()

    def reload(self, queue: list[Message], view: ProgressView) -> None:
        for message in queue:
            if message.kind == "filtered" or is_finished(view, message.offset):
                message.state, message.stored = "done", True
            else:
                message.fails, message.timeouts, _, _ = unpack_attempts(view.attempts.get(message.offset, 0))
                spent = message.tries >= DELIVERIES_MAX
                message.state, message.stored = self.loaded_spent_state(message) if spent else "new", False
                message.lease = 0
            message.replayed = False

    def nothing_came_back(self) -> None:
        """No message is unfinished that a delivered one of its key followed; batches aside, which fail."""
        for message in self.messages if self.batch == 1 else ():
            later = [
                other for other in self.messages if other.delivered and self.stands_before(message, other)
            ]
            assert not later, (message, later)

    def loaded_spent_state(self, message: Message) -> str:
        """The state of a message that has used up its tries, at the start."""
        return "burying"

    def spent(self, message: Message) -> str:
        """The state of a message that uses up its tries."""
        return "burying"

    def new_buffer(self, config: SubscriptionDefaults) -> Any:
        return PullBuffer(
            config,
            10_000,
            lambda count_max: (count_max + 1, 10_000),
            self.lease_ids,
            Tally(),
            None,
            self.filter,
        )

    def queue_state(self, number: int) -> Any:
        return self.buffer.queues[self.refs[number]]

    def blocked(self, message: Message) -> bool:
        """Whether something unfinished of its key stands before it."""
        if not message.key:
            return False
        return any(
            other.key == message.key and other.position < message.position and not other.is_over
            for other in self.messages
            if not self.unseen_move(other)
        )

    @staticmethod
    def unseen_move(other: Message) -> bool:
        """Found spent when the process started: it moves on without its chain."""
        return other.state == "burying" and other.lease == 0

    def may_fail_unseen(self, message: Message) -> bool:
        """Whether it can be its turn."""
        return not self.blocked(message)

    # --- rules

    @rule(kinds=st.data())
    def more(self, kinds: st.DataObject) -> None:
        self.append(kinds.draw(st.lists(self.kinds(), min_size=1, max_size=12)))

    @rule(length=st.integers(10, 60), queue=st.integers(0, QUEUES - 1))
    def many_of_one_key(self, length: int, queue: int) -> None:
        self.append([(queue if n % 7 else n % QUEUES, "a", "plain") for n in range(length)])

    def append(self, kinds: list[tuple[int, str, str]]) -> None:
        for number, key, kind in kinds:
            queue = self.queues[number]
            message = Message(number, len(queue), len(self.messages), key, kind)
            if kind == "filtered":
                message.state, message.stored = "done", True
            queue.append(message)
            self.messages.append(message)
            if number in self.tails:
                self.tails.discard(number)
                self.buffer.on_data_arrived(self.queue_state(number))

    @rule(count_max=st.integers(1, 6), times=st.integers(1, 8))
    def pull(self, count_max: int, times: int) -> None:
        for _ in range(times):
            self.pull_once(count_max)

    @rule(paused=st.sampled_from([True, False, False]))
    def an_operator_pauses_or_resumes(self, paused: bool) -> None:
        """A paused subscription delivers nothing and reads nothing; all else goes on."""
        self.paused = paused
        self.buffer.set_paused(paused)

    def pull_once(self, count_max: int) -> Delivery | None:
        if self.buffer.paused:
            assert self.buffer.next_step(self.now, count_max) is None
            return None
        for _ in range(10_000):
            step = self.buffer.next_step(self.now, count_max)
            if isinstance(step, ReadRequest | EndsRequest):
                self.read(step)
            elif step is None and self.open_reads:
                self.read(self.open_reads.pop(0))
            elif step is None and self.buffer.stopped_early:
                self.buffer.expire_due(self.now)
            else:
                break
        else:
            raise AssertionError("it never comes to an end")
        if isinstance(step, Delivery):
            self.check_delivery(step, count_max)
            return step
        self.check_nothing_to_deliver()
        return None

    @rule(times=st.integers(1, 4))
    def pull_while_reads_wait(self, times: int) -> None:
        for _ in range(times):
            step = self.buffer.next_step(self.now, 2)
            assert step is None or not self.buffer.paused
            if isinstance(step, ReadRequest | EndsRequest):
                self.open_reads.append(step)
            elif isinstance(step, Delivery):
                self.check_delivery(step, 2)

    @rule(data=st.data())
    def a_read_comes_back(self, data: st.DataObject) -> None:
        if self.open_reads:
            self.read(self.open_reads.pop(data.draw(st.integers(0, len(self.open_reads) - 1))))

    def read(self, request: ReadRequest | EndsRequest) -> None:
        if isinstance(request, EndsRequest):
            ends = [len(self.queues[state.ref.queue_id]) for state in request.queues]
            self.scope.on_ends(request, [Bounds(0, end) for end in ends])
            return
        queue = self.queues[request.queue.ref.queue_id]
        messages = queue[request.offset : request.offset + request.count_max]
        status = ReadStatus.DATA if messages else ReadStatus.NONE
        after = request.offset + len(messages)
        batch = Batch(status, messages, after)
        batch.at_end = after == len(queue)
        loaded = self.buffer.on_loaded(request, batch, self.now)
        if loaded is Loaded.TAIL:
            self.tails.add(request.queue.ref.queue_id)
        self.record_failed()

    def record_failed(self) -> None:
        """Faulty messages fail by themselves when their turn comes."""
        for message in self.messages:
            if message.kind != "faulty" or message.state not in ("new", "ready") or self.filter.mended:
                continue
            job = self.queue_state(message.queue).table.jobs.get(message.offset)
            if job is not None and job.fails + job.timeouts > message.tries:
                assert self.may_fail_unseen(message)
                message.lease = -1
                self.one_more_try(message, failed=True)

    def check_nothing_to_deliver(self) -> None:
        if sum(message.state == "leased" for message in self.messages) >= 10 or self.is_stalled:
            return
        for message in self.messages:
            free = message.state in ("new", "ready") and not self.blocked(message)
            assert not free, message

    @property
    def is_stalled(self) -> bool:
        """Whether a message was finished whose key is not known yet, so that all wait for its commit."""
        is_stalled = any(stream.unplaced for stream in self.scope.queues)
        assert is_stalled == bool(self.scope.ledger.unplaced)
        return is_stalled

    def check_delivery(self, delivery: Delivery, count_max: int) -> None:
        number, offsets = delivery.queue.ref.queue_id, list(delivery.messages.offsets)
        assert 0 < len(offsets) <= min(count_max, BATCH)
        assert offsets == sorted(set(offsets))
        delivered_messages = [self.queues[number][offset] for offset in offsets]
        for message, raw in zip(delivered_messages, delivery.messages.deliveries, strict=True):
            assert raw == message.delivery
            assert message.state in ("new", "ready"), message
            before = [other for other in self.messages if self.stands_before(other, message)]
            assert all(other in delivered_messages for other in before), (message, before)
            of_key = [other for other in delivered_messages if other.key == message.key]
            assert len(of_key) <= self.batch or not message.key
        for message, attempt in zip(delivered_messages, delivery.attempt_numbers(), strict=True):
            assert attempt == message.tries + 1
            message.state, message.lease = "leased", delivery.lease.id
            message.deadline = self.now + TIMEOUT_S
            message.delivered = True

    def stands_before(self, other: Message, message: Message) -> bool:
        return (
            bool(message.key)
            and other.key == message.key
            and other.position < message.position
            and not other.is_over
            and not self.unseen_move(other)
        )

    @rule(data=st.data(), keep=st.integers(0, 3))
    def ack(self, data: st.DataObject, keep: int) -> None:
        leased = [message for message in self.messages if message.state == "leased"]
        selected = data.draw(st.lists(st.sampled_from(leased), unique_by=id)) if leased and keep else leased
        for message in selected:
            assert self.finish(message.queue, [message.offset], [message.lease]) == 1
            message.state = "done"

    def finish(self, number: int, offsets: list[int], leases: list[int] | None) -> int:
        done: int = self.queue_state(number).finish_messages(offsets, leases, self.now)
        self.buffer.on_news(self.queue_state(number))
        return done

    @rule(data=st.data(), most=st.integers(1, 5))
    def late_ack_without_lease(self, data: st.DataObject, most: int) -> None:
        """Whatever was tried once is done, wherever it waits; what was not, as far as is known, is not.

        A replayed message counts as new, and may be with the client that had it before: either is right.
        """
        open_states = ("new", "waiting", "ready", "parked")
        out = [
            message
            for message in self.messages
            if message.state in open_states and (message.tries or not message.replayed)
        ]
        tried = [message for message in out if message.tries]
        selected = (
            data.draw(st.lists(st.sampled_from(tried or out), max_size=most, unique_by=id)) if out else []
        )
        for number in range(QUEUES):
            offsets = [message.offset for message in selected if message.queue == number]
            done = [message for message in selected if message.queue == number and message.tries]
            assert self.finish(number, offsets, None) == len(done)
            for message in done:
                message.state = "done"

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        leased = [message for message in self.messages if message.state == "leased"]
        if not leased:
            return
        message = data.draw(st.sampled_from(leased))
        state, placed = self.queue_state(message.queue), self.is_placed(message)
        assert state.fail(message.offset, message.lease, None, self.now)
        self.buffer.on_news(state)
        self.came_back(message, failed=True, placed=placed)

    @rule(data=st.data())
    def an_operator_takes_a_head_away(self, data: st.DataObject) -> None:
        """Whoever had it is late from then on; the delivery counts as a time-out, earlier ones do not."""
        leased = [m for m in self.messages if m.state == "leased" and self.is_placed(m)]
        heads = [m for m in leased if m.key and not self.stands_behind(m)]
        if not heads:
            return
        message = data.draw(st.sampled_from(heads))
        number, offset, late = message.queue, message.offset, message.lease
        state = self.queue_state(number)
        assert operators.take_away(state, offset, self.now)
        self.buffer.on_news(state)
        message.reset_tries()
        self.came_back(message, failed=False)
        assert message.state == "ready"
        assert self.finish(number, [offset], [late]) == 0
        assert not state.fail(offset, late, None, self.now)
        assert state.extend_messages([offset], [late], self.now) == [offset]
        assert not operators.take_away(state, offset, self.now), "nobody has it"

    def stands_behind(self, message: Message) -> bool:
        return any(self.stands_before(other, message) for other in self.messages)

    def came_back(self, message: Message, *, failed: bool, placed: bool = True) -> None:
        """A try is over; what went out behind it goes back untried, and so does it behind others, and before
        its chain has come to it."""
        behind = [
            other
            for other in self.messages
            if other.state == "leased" and other.lease == message.lease and other.key == message.key != ""
        ]
        for other in behind:
            if other.position > message.position:
                other.state = "new"
        leads = not any(other.position < message.position for other in behind)
        self.one_more_try(message, failed=failed)
        if not (leads and placed) and message.state not in ("burying", "parked"):
            message.state = "new"

    def one_more_try(self, message: Message, *, failed: bool) -> None:
        message.fails += failed
        message.timeouts += not failed
        if message.tries >= DELIVERIES_MAX:
            message.state = self.spent(message)
            return
        jobs = self.queue_state(message.queue).table.jobs[message.offset]
        wait = (1.0 if jobs.fails == 1 else 2.0) if failed else (0.0 if jobs.timeouts == 1 else 2.0)
        message.state, message.due = ("waiting", self.now + wait) if wait else ("ready", self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        late = [m for m in self.messages if m.state == "leased" and m.deadline <= self.now]
        placed = {id(message) for message in late if self.is_placed(message)}
        self.buffer.expire_due(self.now)
        for message in sorted(late, key=lambda late_one: late_one.position):
            if message.state == "leased":
                self.came_back(message, failed=False, placed=id(message) in placed)
        for message in self.messages:
            if message.state == "waiting" and message.due <= self.now:
                message.state = "ready"

    @rule()
    def bury(self) -> None:
        for number in range(QUEUES):
            state = self.queue_state(number)
            for job in state.table.take_spent():
                message = self.queues[number][job.offset]
                assert message.state == "burying", message
                self.durable[number].apply(state.build_finish("G", job.offset))
                state.on_published(job.offset)
                self.buffer.on_news(state)
                message.state, message.stored = "done", True

    @rule()
    def mend(self) -> None:
        """The filter's fault is gone: what was read is judged anew."""
        self.filter.mended = True
        self.buffer.filter_by(self.filter)

    @rule(number=st.integers(0, QUEUES - 1))
    def a_queue_is_lost_and_comes_back(self, number: int) -> None:
        """Until all start anew nothing goes out: what the others have placed waits for what it had."""
        self.commit()
        self.scope.mark_invalid()
        self.buffer.revoke_queue(self.refs[number])
        for _ in range(QUEUES):
            assert self.buffer.next_step(self.now, BATCH) is None
        self.load()

    @rule()
    def crash(self) -> None:
        self.commit()
        self.load()

    @rule(data=st.data())
    def crash_with_commits_under_way(self, data: st.DataObject) -> None:
        """What was not committed is gone; of what was under way, any part may have become durable."""
        for number, delta in self.pending_commits:
            if data.draw(st.booleans()):
                self.durable[number].apply(delta)
        self.load()

    @precondition(lambda self: self.batch == 1)
    @rule(data=st.data())
    def the_queues_move(self, data: st.DataObject) -> None:
        """The next owner knows the leases of the one before, and the acknowledgements that may be lost."""
        if any(message.replayed for message in self.messages):
            self.commit()  # otherwise the next owner counts deliveries from before the replay
        states = [self.queue_state(number) for number in range(QUEUES)]
        handover_state = [
            (state.leases.leased_runs(), state.uncommitted.uncertain_acks(state.ack_map)) for state in states
        ]
        for number, delta in self.pending_commits:
            if data.draw(st.booleans()):
                self.durable[number].apply(delta)
        leased = [(message, message.lease) for message in self.messages if message.state == "leased"]
        done = [message for message in self.messages if message.state == "done"]
        self.load()
        for message, lease in leased:
            message.state, message.lease = "leased", lease
        for message in done:
            message.state = "done"
        for number, (runs, acked) in enumerate(handover_state):
            self.queue_state(number).adopt_leases(runs, acked, self.now)
            self.buffer.on_news(self.queue_state(number))

    def is_placed(self, message: Message) -> bool:
        """Whether this owner has read it: its client may have had it before."""
        return message.offset not in self.queue_state(message.queue).out

    @rule()
    def commit(self) -> None:
        """Everything is durable."""
        self.commits_start(range(QUEUES))
        while self.pending_commits:
            self.end_commit(0, "stored")

    @rule(numbers=st.sets(st.integers(0, QUEUES - 1)))
    def commits_start(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            delta = self.queue_state(number).collect_progress("G")
            if delta is not None:
                self.pending_commits.append((number, delta))

    @precondition(lambda self: self.pending_commits)
    @rule(data=st.data(), outcome=st.sampled_from(["stored", "stored", "failed", "unknown"]))
    def a_commit_ends(self, data: st.DataObject, outcome: str) -> None:
        self.end_commit(data.draw(st.integers(0, len(self.pending_commits) - 1)), outcome)

    def end_commit(self, index: int, outcome: str) -> None:
        """`unknown`: it failed, and is durable all the same."""
        number, delta = self.pending_commits.pop(index)
        state = self.queue_state(number)
        if outcome != "failed":
            self.durable[number].apply(delta)
        if outcome != "stored":
            state.uncommitted.restore(delta, state.table.jobs)
            return
        if state.on_stored(delta):
            self.buffer.on_news(state)
        for start, end in delta.finished:
            for message in self.queues[number][start:end]:
                message.stored = message.state == "done"

    @invariant()
    def only_what_the_model_finished_is_finished(self) -> None:
        for number in range(QUEUES):
            acks = self.queue_state(number).ack_map
            for message in self.queues[number]:
                if acks.is_finished(message.offset):
                    assert message.state == "done", message

    @invariant()
    def memory_is_bounded(self) -> None:
        table = self.scope.table
        assert table.indexed <= 6 + len(table) + 2 * BATCH
        assert table.indexed == sum(len(chain.indexed) for chain in table)
        assert self.scope.ledger.ready == sum(len(stream.deliverable) for stream in self.scope.queues)
        busy = {message.key for message in self.messages if not message.is_over}
        assert {chain.key for chain in table if chain.key not in table.starving} <= busy

    @invariant()
    def keys_are_blocked_while_their_head_was_tried_in_vain(self) -> None:
        out = {(stream.ref.queue_id, offset) for stream in self.scope.queues for offset in stream.busy}
        heads = [
            message
            for message in self.messages
            if message.key and message.state != "done" and (message.queue, message.offset) in out
        ]
        for stream, queue in self.scope.queues.items():
            assert stream.unstored == {offset for offset in stream.busy if queue.ack_map.is_finished(offset)}
        stopped = {
            message.key
            for message in heads
            if message.tries
            and not any(self.stands_before(other, message) for other in heads if other.state != "done")
        }
        pairs = [(state, stream) for stream, state in self.scope.queues.items()]
        streams: Any = SimpleNamespace(ordered_streams=lambda: pairs)
        assert count_blocked_keys(streams, self.now)[0] == len(stopped)
        assert count_blocked_keys(streams, self.now)[1] <= self.now - 100.0

    def teardown(self) -> None:
        """Whatever happened: who acknowledges everything gets everything, once more each."""
        if not hasattr(self, "buffer"):
            return
        self.filter.mended = True
        self.buffer.filter_by(self.filter)
        self.resume_all()
        for _ in range(20 * len(self.messages) + 100):
            self.ack_everything()
            self.bury()
            self.commit()
            if all(message.is_over for message in self.messages):
                break
            if self.pull_once(6) is None:
                self.advance(1.0)
                self.let_go_on()
        assert [message for message in self.messages if not message.is_over] == []
        assert self.pull_once(6) is None
        assert len(self.scope.table) == 0

    def let_go_on(self) -> None:
        """An operator frees what stands still."""

    def resume_all(self) -> None:
        self.buffer.set_paused(False)

    def ack_everything(self) -> None:
        for message in self.messages:
            if message.state == "leased":
                self.finish(message.queue, [message.offset], [message.lease])
                message.state = "done"


class ParkingMachine(OrderMachine):
    """`on_dead_letter: park`: what has used up its tries stays first of its key until an operator acts."""

    on_dead_letter = "park"

    def loaded_spent_state(self, message: Message) -> str:
        return "parked" if message.key else "new"

    def spent(self, message: Message) -> str:
        return "parked" if message.key else "burying"

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        stopped = [message for message in self.messages if message.state in ("parked", "waiting")]
        if stopped:
            self.replay_one(data.draw(st.sampled_from(stopped)))

    def replay_one(self, message: Message) -> None:
        """It counts anew, once its chain has come to it."""
        state = self.queue_state(message.queue)
        replayed = state.replay(message.offset)
        assert replayed or message.state == "parked"
        if replayed:
            assert not any(self.stands_before(other, message) for other in self.messages)
            message.state = "ready"
            message.reset_tries()
            self.buffer.on_news(state)

    @rule(data=st.data())
    def skip_the_head(self, data: st.DataObject) -> None:
        chains = [chain.head for chain in self.scope.table]
        heads = [head for head in chains if head is not None and head[1] not in head[0].unstored]
        if not heads:
            return
        stream, offset = data.draw(st.sampled_from(heads))
        message = self.queues[stream.ref.queue_id][offset]
        state = self.queue_state(message.queue)
        state.dead_letter(offset, "skipped")
        self.buffer.on_news(state)
        message.state, message.lease = "burying", -1
        self.bury()

    def let_go_on(self) -> None:
        for message in self.messages:
            if message.state == "parked":
                self.replay_one(message)

    @invariant()
    def what_is_parked_counts_as_such(self) -> None:
        visible_state = {
            (state.ref.queue_id, offset)
            for state in self.scope.queues.values()
            for offset, job in state.table.jobs.items()
            if job.state is JobState.EXHAUSTED
        }
        parked = {(one.queue, one.offset) for one in self.messages if one.state == "parked"}
        assert visible_state <= parked
        retrying = self.buffer.budget.retrying
        assert retrying >= len(visible_state)


class OrderInBatchesMachine(OrderMachine):
    """Up to three jobs of one key in an answer."""

    batch = 3


class OrderInSlotsMachine(OrderMachine):
    """An engine without an order over its queues: order within each, and one job of a key at a time."""

    merged = False

    def stands_before(self, other: Message, message: Message) -> bool:
        return other.queue == message.queue and super().stands_before(other, message)

    def blocked(self, message: Message) -> bool:
        """Whether anything of its key, in whichever queue, may have come before it."""
        return any(
            other.key == message.key != "" and other is not message and not other.is_over
            for other in self.messages
            if not self.unseen_move(other)
        )

    def may_fail_unseen(self, message: Message) -> bool:
        return not any(self.stands_before(other, message) for other in self.messages)


class TwoBuffers:
    """The subscriptions of two topics, T and U, in one scope. `requested_topic`: the one that is pulled."""

    def __init__(self, buffers: dict[str, PullBuffer]) -> None:
        self.buffers = buffers
        self.requested_topic = "T"

    @property
    def queues(self) -> dict[QueueRef, Any]:
        return {queue: state for buffer in self.buffers.values() for queue, state in buffer.queues.items()}

    @property
    def stopped_early(self) -> bool:
        return any(buffer.stopped_early for buffer in self.buffers.values())

    def next_step(self, now: float, count: int) -> Any:
        return self.buffers[self.requested_topic].next_step(now, count)

    @property
    def paused(self) -> bool:
        return self.buffers[self.requested_topic].paused

    def set_paused(self, paused: bool) -> None:
        self.buffers[self.requested_topic].set_paused(paused)

    def expire_due(self, now: float) -> None:
        for buffer in self.buffers.values():
            buffer.expire_due(now)

    def filter_by(self, message_filter: KindFilter) -> None:
        for buffer in self.buffers.values():
            buffer.filter_by(message_filter)

    def assign_queue(self, queue: QueueRef, *delivered_messages: Any) -> None:
        self.buffers[queue.topic].assign_queue(queue, *delivered_messages)

    def revoke_queue(self, queue: QueueRef) -> None:
        self.buffers[queue.topic].revoke_queue(queue)

    def on_loaded(self, request: ReadRequest, *delivered_messages: Any) -> Any:
        return self.buffers[request.queue.ref.topic].on_loaded(request, *delivered_messages)

    def on_news(self, state: Any) -> None:
        self.buffers[state.ref.topic].on_news(state)

    def on_data_arrived(self, state: Any) -> None:
        self.buffers[state.ref.topic].on_data_arrived(state)


class OrderOfTopicsMachine(OrderMachine):
    """Two topics in one scope, one of them pulled for a while and then the other; little may lie ready."""

    ending = False

    def set_up(self) -> None:
        super().set_up()
        self.refs = [QueueRef("T", 1, 0), QueueRef("T", 1, 1), QueueRef("U", 2, 2)]
        self.load()

    def new_buffer(self, config: SubscriptionDefaults) -> Any:
        self.scope.ledger.ready_max = 2
        return TwoBuffers({topic: super(OrderOfTopicsMachine, self).new_buffer(config) for topic in "TU"})

    @rule()
    def pull_the_other_topic(self) -> None:
        self.buffer.requested_topic = "U" if self.buffer.requested_topic == "T" else "T"

    def pull_once(self, count_max: int) -> Delivery | None:
        delivery = super().pull_once(count_max)
        if delivery is None and self.ending:
            self.pull_the_other_topic()
            delivery = super().pull_once(count_max)
        return delivery

    def check_nothing_to_deliver(self) -> None:
        """Whatever lies ready for the topic that is not pulled."""
        requested_topic = [
            m for m in self.messages if self.refs[m.queue].topic == self.buffer.requested_topic
        ]
        if sum(message.state == "leased" for message in requested_topic) >= 10 or self.is_stalled:
            return
        for message in requested_topic:
            free = message.state in ("new", "ready") and not self.blocked(message)
            assert not free, message

    @invariant()
    def little_lies_ready(self) -> None:
        assert self.scope.ledger.ready <= 2 + 3 * (2 * BATCH)

    def resume_all(self) -> None:
        for buffer in self.buffer.buffers.values():
            buffer.set_paused(False)

    def teardown(self) -> None:
        self.ending = True
        super().teardown()


class OrderOfTopicsInBatchesMachine(OrderOfTopicsMachine):
    """The same with up to three jobs of one key in an answer."""

    batch = 3


class ParkingInBatchesMachine(ParkingMachine):
    """The same with up to three jobs of one key in an answer."""

    batch = 3


class ParkingInSlotsMachine(ParkingMachine, OrderInSlotsMachine):
    """The same on an engine without an order over its queues."""


LIMITS = settings(
    max_examples=int(EXAMPLES or examples(40)),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestOrder = OrderMachine.TestCase
TestOrder.settings = LIMITS
TestOrderInBatches = OrderInBatchesMachine.TestCase
TestOrderInBatches.settings = LIMITS
TestOrderOfTopics = OrderOfTopicsMachine.TestCase
TestOrderOfTopics.settings = LIMITS
TestOrderOfTopicsInBatches = OrderOfTopicsInBatchesMachine.TestCase
TestOrderOfTopicsInBatches.settings = settings(LIMITS, max_examples=int(EXAMPLES or examples(20)))
TestOrderInSlots = OrderInSlotsMachine.TestCase
TestOrderInSlots.settings = settings(LIMITS, max_examples=int(EXAMPLES or examples(20)))
TestParking = ParkingMachine.TestCase
TestParking.settings = LIMITS
TestParkingInBatches = ParkingInBatchesMachine.TestCase
TestParkingInBatches.settings = LIMITS
TestParkingInSlots = ParkingInSlotsMachine.TestCase
TestParkingInSlots.settings = settings(LIMITS, max_examples=int(EXAMPLES or examples(20)))


def with_messages(machine: OrderMachine, kinds: list[tuple[int, str, str]]) -> OrderMachine:
    """Found by a run: what the machine does with just these messages."""
    machine.set_up()
    machine.append(kinds)
    return machine


def test_messages_behind_a_faulty_one_do_not_overtake_it() -> None:
    kinds = [(1, "a", "plain"), (1, "a", "faulty"), (1, "a", "plain"), (0, "a", "plain"), (0, "a", "plain")]
    machine = with_messages(OrderInBatchesMachine(), kinds)
    delivery = machine.pull_once(2)
    assert delivery is not None
    assert list(delivery.messages.offsets) == [0]
    machine.teardown()


def test_no_queue_is_starved_while_another_has_messages() -> None:
    kinds = [(1, "a", "plain"), (1, "c", "plain"), (2, "b", "plain"), (1, "c", "plain")]
    machine = with_messages(OrderInSlotsMachine(), kinds)
    for _ in range(2 * len(kinds)):
        machine.pull_once(2)
        machine.ack_everything()
        machine.commit()
    assert {message.state for message in machine.messages} == {"done"}


def test_a_topic_that_waits_for_a_commit_of_another_resumes_with_it() -> None:
    machine = OrderOfTopicsMachine()
    with_messages(machine, [(0, "a", "plain"), (2, "b", "plain")])
    message = machine.messages[0]
    assert machine.pull_once(1) is not None
    assert machine.queue_state(0).fail(0, message.lease, None, machine.now)
    machine.came_back(message, failed=True)
    machine.commit()
    machine.load()
    assert machine.finish(0, [0], None) == 1  # before it was read here
    message.state = "done"
    machine.pull_the_other_topic()
    assert machine.pull_once(1) is None
    machine.commit()
    assert machine.pull_once(1) is not None
    machine.teardown()


def test_an_acknowledgement_from_before_a_failure_does_not_end_it() -> None:
    machine = with_messages(OrderInBatchesMachine(), [(0, "a", "plain")] * 3)
    delivered = machine.pull_once(3)
    lease_id, queue = delivered.lease.id, machine.queue_state(0)
    machine.finish(0, [0], [lease_id])
    machine.commits_start([0])
    queue.fail(1, lease_id, None, machine.now)
    stream = queue.stream
    assert stream is not None
    chain = stream.busy[1]
    assert stream.failing_since(chain) == machine.now
    machine.end_commit(0, "stored")
    assert stream.failing_since(chain) == machine.now, "offset 0 was acknowledged before"
