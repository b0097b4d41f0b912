"""Acknowledgements that carry messages, beside everything else that happens to messages, against the naive
models of the pull buffer and of order keys: who is taken up is nobody else's until it is stored or put down.

More examples: DDMQ_PROPERTY_EXAMPLES=2000 .venv/bin/python -m pytest tests/property -k consumer_replies
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from proxy_consumer.core import replying
from proxy_consumer.core.replying import ReservationResult
from tests.examples import examples
from tests.property.test_consumer_order import Message, OrderMachine
from tests.property.test_consumer_pull_buffer import QUEUES, PullBufferMachine

EXAMPLES = os.environ.get("DDMQ_PROPERTY_EXAMPLES")
ENDS = ["stored"] * 3 + ["put down"] * 2 + ["stored and killed"]


class RepliesMachine(PullBufferMachine):
    """A job of the model may be "taken up"."""

    def count(self, *states: str) -> int:
        return super().count(*states, *(["taken up"] if "leased" in states else []))

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def take_anything_up(self, number: int, data: st.DataObject) -> None:
        offsets = data.draw(self.some_offsets(number))
        self.reserve(number, offsets, data.draw(self.some_leases(number, offsets)))

    @rule(number=st.integers(0, QUEUES - 1), data=st.data(), most=st.integers(1, 4))
    def pull_and_take_up(self, number: int, data: st.DataObject, most: int) -> None:
        self.pull(6)
        leased = [offset for offset, job in self.jobs[number].items() if job.state == "leased"]
        offsets = data.draw(st.lists(st.sampled_from(leased), max_size=most, unique=True)) if leased else []
        self.reserve(number, offsets, [self.jobs[number][offset].lease for offset in offsets])

    def reserve(self, number: int, offsets: list[int], leases: list[int]) -> None:
        for offset, lease in zip(offsets, leases, strict=True):
            job, jobs = self.jobs[number].get(offset), self.state(number)
            taking = replying.reserve_message(jobs, offset, lease)
            if job is not None and job.state == "leased" and job.lease == lease:
                assert taking is ReservationResult.RESERVED
                job.state = "taken up"
            elif job is not None and job.state == "taken up" and job.lease == lease:
                assert taking is ReservationResult.BUSY
            else:
                finished = jobs.ack_map.is_finished(offset)
                assert taking is (ReservationResult.FINISHED if finished else ReservationResult.LEASE_EXPIRED)

    @invariant()
    def budget_is_what_the_model_counts(self) -> None:
        """What is taken up counts as leased."""
        with self.as_leased(0), self.as_leased(1):
            super().budget_is_what_the_model_counts()

    @rule(number=st.integers(0, QUEUES - 1), data=st.data(), end=st.sampled_from(ENDS))
    def end(self, number: int, data: st.DataObject, end: str) -> None:
        reserved = [offset for offset, job in self.jobs[number].items() if job.state == "taken up"]
        if not reserved:
            return
        state, offset = self.state(number), data.draw(st.sampled_from(reserved))
        if end == "put down":
            replying.end_reservation(state, offset)
            self.jobs[number][offset].state = "leased"
            self.buffer.on_news(state)
            self.advance(0.0)
            return
        self.durable[number].apply(state.build_finish("G", offset))
        if end == "stored":
            assert replying.finish_reserved(state, offset).id == self.jobs[number][offset].lease
            self.buffer.on_news(state)
            assert state.ack_map.is_finished(offset)
            self.jobs[number][offset].state = "done"
        else:
            self.load()

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def extend(self, number: int, data: st.DataObject) -> None:
        with self.as_leased(number):
            super().extend(number, data)

    @rule(number=st.integers(0, QUEUES - 1), data=st.data())
    def extend_messages(self, number: int, data: st.DataObject) -> None:
        with self.as_leased(number):
            super().extend_messages(number, data)

    @contextmanager
    def as_leased(self, number: int) -> Iterator[None]:
        """The time of a lease starts anew, also of what is taken up: it counts when that is put down."""
        reserved = [job for job in self.jobs[number].values() if job.state == "taken up"]
        for job in reserved:
            job.state = "leased"
        yield
        for job in reserved:
            job.state = "taken up"

    def earliest(self) -> float:
        """The lease of what is taken up does not run out."""
        reserved = [
            self.jobs[number][offset]
            for number in range(QUEUES)
            for offset in self.state(number).leases.reserved
        ]
        states = [job.state for job in reserved]
        for job in reserved:
            job.state = "taken up"
        earliest_s = super().earliest()
        for job, state in zip(reserved, states, strict=True):
            job.state = state
        return earliest_s


class OrderedRepliesMachine(OrderMachine):
    """With order keys, up to three messages of a key in an answer: also out of their order."""

    batch = 3

    def load(self) -> None:
        self.turned: set[tuple[int, int]] = set()  # queue and offset of those whose chain has turned back
        super().load()

    def reserved_messages(self) -> list[Message]:
        return [message for message in self.messages if message.state == "taken up"]

    def check_nothing_to_deliver(self) -> None:
        """What is taken up counts as leased; what was put down before it may wait for it."""
        reserved = self.reserved_messages()
        keys = {message.key for message in reserved} - {""}
        free = [m for m in self.messages if m.state in ("new", "ready") and m.key in keys]
        states = [message.state for message in free]
        for message in (*reserved, *free):
            message.state = "leased" if message in reserved else "waiting"
        try:
            super().check_nothing_to_deliver()
        finally:
            for message, state in zip((*reserved, *free), ["taken up"] * len(reserved) + states, strict=True):
                message.state = state

    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        self.pull_once(4)
        leased = [message for message in self.messages if message.state == "leased"]
        for message in data.draw(st.lists(st.sampled_from(leased), unique_by=id)) if leased else []:
            jobs = self.queue_state(message.queue)
            assert replying.reserve_message(jobs, message.offset, message.lease) is ReservationResult.RESERVED
            assert replying.reserve_message(jobs, message.offset, message.lease) is ReservationResult.BUSY
            assert replying.reserve_message(jobs, message.offset, 999_999) is ReservationResult.LEASE_EXPIRED
            message.state = "taken up"

    @rule(data=st.data(), failed=st.booleans(), redelivered=st.booleans())
    def chain_is_returned(self, data: st.DataObject, failed: bool, redelivered: bool) -> None:
        """What stands behind one that fails, or times out, is taken up; that one may be `redelivered`, and be
        done before it is known whether what stands behind it is stored."""
        self.append([(0, "e", "plain")] * 3)
        self.pull_once(4)
        leased = [message for message in self.messages if message.state == "leased" and message.key == "e"]
        if len(leased) < 2:
            return
        head = min(leased, key=lambda message: message.position)
        for message in leased:
            if message is not head and data.draw(st.booleans()):
                jobs = self.queue_state(message.queue)
                assert (
                    replying.reserve_message(jobs, message.offset, message.lease)
                    is ReservationResult.RESERVED
                )
                message.state = "taken up"
        if failed:
            state = self.queue_state(head.queue)
            assert state.fail(head.offset, head.lease, None, self.now)
            self.buffer.on_news(state)
            self.came_back(head, failed=True)
        else:
            self.advance(5.0)
        if redelivered:
            self.advance(2.0)
            self.pull_once(4)
            if head.state == "leased":
                assert self.finish(head.queue, [head.offset], [head.lease]) == 1
                head.state = "done"
            for message in self.reserved_messages():
                if data.draw(st.booleans()):
                    self.put_down(message)

    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def end(self, data: st.DataObject, end: str) -> None:
        if not self.reserved_messages():
            return
        message = data.draw(st.sampled_from(self.reserved_messages()))
        state = self.queue_state(message.queue)
        if end == "put down":
            self.put_down(message)
            return
        self.durable[message.queue].apply(state.build_finish("G", message.offset))
        message.state, message.stored = "done", True  # the acknowledgement is in the commit of the replies
        if end == "stored":
            replying.finish_reserved(state, message.offset)
            self.buffer.on_news(state)
        else:
            self.crash()

    def put_down(self, message: Message) -> None:
        state = self.queue_state(message.queue)
        replying.end_reservation(state, message.offset)
        self.buffer.on_news(state)
        turned = (message.queue, message.offset) in self.turned
        self.turned.discard((message.queue, message.offset))
        message.state = "new" if turned else "leased"
        self.advance(0.0)

    def came_back(self, message: Message, *, failed: bool, placed: bool = True) -> None:
        """What is taken up stays so; it goes back into its chain when it is put down."""
        reserved = [
            m for m in self.reserved_messages() if m.lease == message.lease and m.key == message.key != ""
        ]
        behind = [other for other in reserved if other.position > message.position]
        before = len(reserved) > len(behind)
        if failed or not before:
            self.turned.update((other.queue, other.offset) for other in behind)
        if not before:
            super().came_back(message, failed=failed, placed=placed)
        elif failed:
            for other in reserved:
                other.state = "leased"  # for the model beneath: it stands before this one
            saved = {id(other) for other in reserved}
            super().came_back(message, failed=failed, placed=placed)
            for other in self.messages:
                if id(other) in saved:
                    other.state = "taken up"
        else:
            message.state = "new"  # it was behind one that is not done: not its time-out

    def teardown(self) -> None:
        if hasattr(self, "buffer"):
            for message in self.reserved_messages():
                self.put_down(message)
        super().teardown()


for machine in (RepliesMachine, OrderedRepliesMachine):
    machine.TestCase.settings = settings(
        max_examples=int(EXAMPLES or examples(60)),
        stateful_step_count=60,
        deadline=None,
        derandomize=EXAMPLES is None,
        suppress_health_check=list(HealthCheck),
    )
TestReplies = RepliesMachine.TestCase
TestOrderedReplies = OrderedRepliesMachine.TestCase
