"""Every two live changes, one after the other, while clients have messages.

Whatever changes: an acknowledgement in time counts, with a lease id or without; nobody else gets a message as
long as its client has it; and nothing is stuck, in the end everything has been delivered and acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.examples import some_of
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, directory

TOPICS = {"T": 3, "U": 1}
MESSAGES = 12
KEYS = 5
Position = tuple[bytes, bytes, int]


class LeasesRig(ConsumerRig):
    """Two proxies over one backend; what clients have, by place."""

    started = 0

    def __init__(self, order_key: str) -> None:
        super().__init__()
        self.names = dict(TOPICS)
        self.order_key = order_key
        for topic, queues in TOPICS.items():
            self.topic(topic, queues)
            self.subscribe(topic=topic, config=SubscriptionDefaults(start="first", order_key=order_key))
        self.first = (self.service, self.handlers)
        self.second: Any = None
        self.have: dict[Position, tuple[Any, int, int]] = {}  # context, lease id, number
        self.done: set[Position] = set()
        self.forgotten: set[bytes] = set()  # topics whose messages may come again

    def fill(self) -> None:
        for number in range(MESSAGES):
            topic = "TU"[number % 2]
            self.put(topic, number % TOPICS[topic], f"k{number % KEYS}")

    def put(self, topic: str, queue: int, key: str) -> None:
        self.put_keyed(key, json.dumps({"k": key}), queue, topic)

    def start(self) -> ConsumerService:
        service = super().start()
        self.started += 1
        service.advertise(f"127.0.0.1:{self.started}")
        return service

    def use(self, proxy: Any) -> None:
        self.service, self.handlers = proxy

    def proxies(self) -> list[Any]:
        return [proxy for proxy in (self.first, self.second) if proxy is not None]

    def run_round(self) -> None:
        self.clock.advance(0.05)
        for service, _ in self.proxies():
            service.tick()
        self.settle()

    def pull_all(self, count: int = 2) -> None:
        """Each topic once at each proxy."""
        calls = []
        for proxy in self.proxies():
            self.use(proxy)
            calls += [self.start_pull(topic=name.encode(), count=count, clientId=b"c") for name in self.names]
        self.settle(lambda: all(call.answered for call in calls))
        for _ in range(4):
            self.run_round()
        for call in calls:
            self.record_delivery(call)

    def record_delivery(self, call: Any) -> None:
        assert call.answered
        context = call.result.context
        for message in call.result.messages:
            position = (context.topic, context.qid, message.offset)
            assert position not in self.have, (position, "is at two clients at once")
            assert position not in self.done or context.topic in self.forgotten, (position, "came again")
            self.have[position] = (context, message.leaseId, message.offset)

    def acknowledge(self, count: int | None = None) -> None:
        """So many, every other one as an old client does, at the proxy that holds the queue."""
        for number, (position, (context, lease, offset)) in enumerate(
            sorted(self.have.items(), key=str)[:count]
        ):
            leases = [lease] if number % 2 else None
            for _ in range(100):
                self.use(self.find_owner(context) or self.proxies()[-1])  # where nobody holds it: at either
                call = self.call("submit", self.submitted(context, offset, leases))
                for _ in range(40):
                    if call.answered:
                        break
                    self.run_round()
                if call.answered and call.outcome.error is None:
                    break
                self.run_round()
            else:
                raise AssertionError(f"no answer for {position}")
            self.done.add(position)
            del self.have[position]

    def find_owner(self, context: Any) -> Any:
        for proxy in self.proxies():
            group = directory(proxy[0]).groups.get(b"G")
            if group is not None and (context.topic, context.qid) in group.queues:
                return proxy
        return None

    def pull_nothing(self) -> None:
        """A client that asks for something it does not get keeps its subscriptions in use."""
        for proxy in self.proxies():
            for subscription in directory(proxy[0]).all_subscriptions():
                subscription.on_use(self.clock.monotonic())
        self.run_round()

    @staticmethod
    def submitted(context: Any, offset: int, leases: list[int] | None) -> Any:
        from tests.service.consumer.consumer_rig import METHODS

        consume_result = IDL.ConsumeResult(context=context, successOffsets=[offset], successLeases=leases)
        return METHODS["submit"].args[0](result=consume_result)

    # --- what changes

    def change(self, topic: str, **settings: Any) -> None:
        self.use(self.first)
        self.wait(self.service.change_subscription("G", topic, settings))
        self.settle()

    def another_order_key(self) -> None:
        self.change("T", order_key={"": "KEY", "KEY": "$.k", "QID": "KEY"}[self.order_key])

    def no_order_key(self) -> None:
        self.change("T", order_key="")

    def another_scope(self) -> None:
        self.change("T", order_key="KEY", order_scope="topic")

    def another_assignment(self) -> None:
        self.change("T", assignment="by-circle")

    def another_limit(self) -> None:
        self.change("T", concurrency=100, chain_batch=3)

    def another_topic(self) -> None:
        if "V" not in self.names:
            self.names["V"] = 1
            self.topic("V", 1)
            self.put("V", 0, "k0")
            self.change("V", order_key=self.order_key, start="first")

    def more_queues(self) -> None:
        info = self.backend.topic("T")
        assert info is not None
        self.wait(self.backend.put_topic(replace(info, queues=info.queues + 1), self.deadline()))

    def delete_and_make(self) -> None:
        self.use(self.first)
        self.wait(self.service.delete_group("G", "U"))
        self.settle()
        self.forgotten.add(b"U")
        self.have = {position: one for position, one in self.have.items() if position[0] != b"U"}
        self.change("U", order_key=self.order_key, start="first")

    def writer_lost(self) -> None:
        """Every queue of every proxy is lost, and joined anew."""
        for service, _ in self.proxies():
            for subscription in directory(service).all_subscriptions():
                for membership in (subscription.membership, subscription.retry_membership):
                    membership.claims.lost(
                        [queue for queue in subscription.buffer.queues if queue.topic == membership.topic]
                    )
                    membership.leave()
        self.pull_nothing()

    def second_joins(self) -> None:
        if self.second is None:
            self.start()
            self.second = (self.service, self.handlers)
            self.pull_nothing()

    def second_leaves(self) -> None:
        if self.second is not None:
            directory(self.second[0]).stop()
            self.second = None

    def restart(self) -> None:
        """The first proxy is stopped as planned, its clients do not wait, and another takes its place."""
        self.first[0]._runtime.stopping = True
        directory(self.first[0]).stop()
        self.settle()
        self.start()
        self.first = (self.service, self.handlers)


CHANGES: list[Callable[[LeasesRig], None]] = [
    LeasesRig.another_order_key,
    LeasesRig.no_order_key,
    LeasesRig.another_scope,
    LeasesRig.another_assignment,
    LeasesRig.another_limit,
    LeasesRig.another_topic,
    LeasesRig.more_queues,
    LeasesRig.delete_and_make,
    LeasesRig.writer_lost,
    LeasesRig.second_joins,
    LeasesRig.second_leaves,
    LeasesRig.restart,
]


def run(order_key: str, one: Callable[[LeasesRig], None], other: Callable[[LeasesRig], None]) -> None:
    house = LeasesRig(order_key)
    house.fill()
    house.pull_all()
    assert house.have
    one(house)
    house.pull_all()
    other(house)
    house.acknowledge(2)  # before anybody pulls again
    house.pull_all()
    house.acknowledge()
    for _ in range(60):
        house.pull_all(count=10)
        house.acknowledge()
        if len(house.done) == MESSAGES + ("V" in house.names):
            break
    assert len(house.done) == MESSAGES + ("V" in house.names), sorted(house.done)
    house.clock.advance(31)  # no lease is left that could run out
    for _ in range(2):
        house.pull_all()
    assert not house.have


@pytest.mark.parametrize("order_key", ["", "KEY", "QID"])
@pytest.mark.parametrize("one", CHANGES, ids=lambda change: change.__name__)
def test_a_change_and_any_other(order_key: str, one: Callable[[LeasesRig], None]) -> None:
    for first, other in some_of([*product([one], CHANGES)]):
        run(order_key, first, other)
