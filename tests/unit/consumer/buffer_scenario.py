"""The commands of text scenarios (docs/testing.md): a PullBuffer, and a shell that reads for it at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

from backend.progress.group_progress import GroupProgress
from backend.records import Bounds, QueueRef, ReadStatus
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core import replying
from proxy_consumer.core.jobs import JobObserver
from proxy_consumer.core.order import operators
from proxy_consumer.core.order.chains import ChainTable
from proxy_consumer.core.order.scope import EndsRequest, OrderScope
from proxy_consumer.core.pull_buffer import PullBuffer
from proxy_consumer.core.queue_feed import FILTERED, Rejection
from proxy_consumer.core.replying import ReservationResult
from proxy_consumer.core.steps import Delivery, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Tally

REFS = [QueueRef("T", 1, 0), QueueRef("T", 1, 1)]


def key_of(delivery: bytes) -> str | None:
    return re.sub("[^a-z]", "", delivery.decode()) or None


class Scenario:
    """One subscription over two queues, its own filter; each command of a file is a method here."""

    tags: frozenset[int] | None = None

    def __init__(self, *, traced: bool = False) -> None:
        self.traced = traced
        self.now, self.indexed, self.lease_ids, self.config = 0.0, 16, count(1), SubscriptionDefaults()
        self.queues: list[list[tuple[int, int, str]]] = [[], []]  # offset, log position, text
        self.where: dict[str, tuple[QueueRef, int]] = {}
        self.leases: dict[str, int] = {}
        self.durable = [GroupProgress(), GroupProgress()]
        self.restart()

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        """The filter: `-name` is not wanted, `!name` cannot be judged."""
        return {b"-": FILTERED, b"!": Rejection("faulty")}.get(delivery[:1])

    def head(self, key: str) -> tuple[SubscribedQueue, int]:
        stream, offset = self.scope.table.chains[key].heads[0]
        return self.scope.queues[stream], offset

    def result(self, names: tuple[str, ...], verb: Callable[[SubscribedQueue, int, int], int]) -> str:
        done = 0
        for name, _, lease in (word.partition("@") for word in names):
            queue, offset = self.where[name]
            lease_id = int(lease) if lease else self.leases[name]
            done += verb(self.buffer.queues[queue], offset, lease_id)
            self.buffer.on_news(self.buffer.queues[queue])
        return f"{done} of {len(names)}"

    def read(self, step: ReadRequest) -> None:
        queue, at = self.queues[step.queue.ref.queue_id], step.offset
        after = max(at, min(at + step.count_max, len(queue)))
        messages = [message for message in queue[at:after] if message[2] != "_"]
        batch: Any = SimpleNamespace(
            status=ReadStatus.DATA if messages else ReadStatus.NONE,
            offsets=[offset for offset, _, _ in messages],
            positions=[position for _, position, _ in messages],
            flags=[0] * len(messages),
            deliveries=[text.encode() for _, _, text in messages],
            next_offset=after,
            at_end=after == len(queue),
        )
        self.buffer.on_loaded(step, batch, self.now)

    # --- commands

    def restart(self) -> None:
        self.scope = OrderScope(ChainTable(self.config.chain_batch, self.indexed), merged=True)
        ahead = lambda count: (count, 1 << 20)  # noqa: E731
        self.buffer = PullBuffer(self.config, 1 << 20, ahead, self.lease_ids, Tally(), None, self)
        order = (self.scope, key_of) if self.config.scope else None
        observer = JobObserver() if self.traced else None
        for ref, durable, queue in zip(REFS, self.durable, self.queues, strict=True):
            self.buffer.assign_queue(ref, durable.view(), Bounds(0, len(queue)), order, observer=observer)

    def settings(self, *words: str) -> None:
        for name, text in (word.split("=") for word in words):
            value: Any = int(text) if text.lstrip("-").isdigit() else text
            if name == "kept":  # how many of a chain's messages are kept while they wait
                self.indexed = value
            else:
                value = (value,) if name == "retry_intervals_ms" else value
                self.config = replace(self.config, **{name: value})
        self.restart()

    def append(self, number: str, *texts: str) -> None:
        queue, ref = self.queues[int(number)], REFS[int(number)]
        for text in texts:
            self.where[text.lstrip("-!")] = ref, len(queue)
            queue.append((len(queue), sum(map(len, self.queues)), text))
        self.buffer.on_data_arrived(self.buffer.queues[ref])

    def pull(self, count: str) -> str:
        while not isinstance(step := self.buffer.next_step(self.now, int(count)), Delivery):
            if step is None:
                return "nothing"
            if isinstance(step, EndsRequest):
                self.scope.on_ends(step, [Bounds(0, len(self.queues[s.ref.queue_id])) for s in step.queues])
            else:
                self.read(step)
        names = [raw.decode().lstrip("-!") for raw in step.messages.deliveries]
        self.leases.update(dict.fromkeys(names, step.lease.id))
        tries = [f"*{number}" if number > 1 else "" for number in step.attempt_numbers()]
        return f"{step.queue.ref.queue_id}: {' '.join(map(str.__add__, names, tries))}"

    def ack(self, *names: str) -> str:
        return self.result(names, lambda state, at, lease: state.finish_messages([at], [lease], self.now))

    def fail(self, *names: str) -> str:
        return self.result(names, lambda state, at, lease: state.fail(at, lease or None, None, self.now))

    def take_up(self, *names: str) -> str:
        """Their acknowledgements are being committed, with messages."""
        return self.result(
            names,
            lambda state, at, lease: replying.reserve_message(state, at, lease) is ReservationResult.RESERVED,
        )

    def stored(self, *names: str) -> None:
        """They are: the finish is durable."""
        for queue, offset in map(self.where.__getitem__, names):
            state = self.buffer.queues[queue]
            self.durable[queue.queue_id].apply(state.build_finish("G", offset))
            replying.finish_reserved(state, offset)
            self.buffer.on_news(state)

    def put_down(self, *names: str) -> None:
        """They are not, and nothing is stored."""
        for queue, offset in map(self.where.__getitem__, names):
            state = self.buffer.queues[queue]
            replying.end_reservation(state, offset)
            self.buffer.on_news(state)

    def extend(self, *names: str) -> str:
        return self.result(names, lambda state, at, lease: not state.extend_messages([at], [lease], self.now))

    def give_back(self, *names: str) -> str:
        return self.result(names, lambda state, at, lease: self.buffer.take_back(state, [at], [lease]))

    def after(self, ms: str) -> str:
        self.now += int(ms) / 1000
        before = self.buffer.tally.timed_out.value
        self.buffer.expire_due(self.now)
        return f"{self.buffer.tally.timed_out.value - before} timed out"

    def commit(self) -> str:
        spent = []
        for durable, queue, state in zip(self.durable, self.queues, self.buffer.queues.values(), strict=True):
            for job in state.table.take_spent():
                durable.apply(state.build_finish("G", job.offset))
                state.on_published(job.offset)
                self.buffer.on_news(state)
                spent.append(f"{queue[job.offset][2].lstrip('-!')} ({job.reason})")
        self.store()
        return "spent: " + (", ".join(spent) or "none")

    def store(self) -> None:
        """All progress so far is durable, and what waited for that goes on; spent messages stay."""
        for durable, state in zip(self.durable, self.buffer.queues.values(), strict=True):
            if (delta := state.collect_progress("G")) is not None:
                durable.apply(delta)
                state.on_stored(delta)
                self.buffer.on_news(state)

    def commit_fails(self) -> None:
        """Nothing of the progress so far is durable; it is committed again with the next."""
        for state in self.buffer.queues.values():
            if (delta := state.collect_progress("G")) is not None:
                state.uncommitted.restore(delta, state.table.jobs)

    def hand_over(self) -> None:
        handovers = [
            (ref, queue.leases.leased_runs(), queue.uncommitted.uncertain_acks(queue.ack_map))
            for ref, queue in self.buffer.queues.items()
        ]
        self.restart()
        for ref, runs, acked in handovers:
            self.buffer.queues[ref].adopt_leases(runs, acked, self.now)
            self.buffer.on_news(self.buffer.queues[ref])

    def park(self, key: str) -> None:
        self.scope.ledger.parked_keys |= {key}
        state, offset = self.head(key)
        state.park(offset)

    def replay(self, key: str) -> None:
        self.scope.ledger.parked_keys -= {key}
        state, offset = self.head(key)
        state.replay(offset)
        state.wake_up()

    def take_away(self, key: str) -> str:
        state, offset = self.head(key)
        expired = operators.take_away(state, offset, self.now)
        self.buffer.on_news(state)
        return "taken away" if expired else "not in flight"

    def skip(self, key: str) -> None:
        state, offset = self.head(key)
        state.dead_letter(offset, "skipped")
