"""Order over the topics of a group while everything changes at once, by seeds.

Old clients pull three topics, acknowledge, fail and forget, while order keys and chain_batch change, queues
are lost and come back, keys are parked and replayed, and the proxy is killed. Whenever a message is given,
every earlier one of its key has an acknowledgement that a client sent, or is in the same answer; what was
acknowledged and answered is given no more by the same process; and in the end everything was given. The
same again: `Changes(seed).run()`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest

from ddmq_common.errors import CallerError
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import IDL, ConsumerRig

TOPICS = {"T": 2, "U": 1, "V": 1}
KEYS = 6
STEPS = 150
DRAIN_STEPS = 4_000
SETTINGS = SubscriptionDefaults(
    start="first",
    order_key="KEY",
    ack_timeout_ms=2_000,
    retry_intervals_ms=(20,),
    ordered_interval_ms=50,
    ordered_deliveries_max=-1,
)


class Message(NamedTuple):
    """One that was sent. `number`: its place in the log."""

    number: int
    key: str


class InHand(NamedTuple):
    """What a client got. `life`: of the process that gave it."""

    context: Any
    offsets: list[int]
    numbers: list[int]
    life: int


class Changes:
    """One run. `batches`: chain_batch changes too; what goes back into its chain untried may come again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.batches = self.random.random() < 0.5
        self.rig = ConsumerRig()
        self.sent: list[Message] = []
        self.acked: set[int] = set()  # by a client that may not know whether it counts
        self.bound: set[int] = set()  # it counts
        self.hands: list[InHand] = []
        self.waiting: list[Any] = []
        self.life = 0
        self.history: list[Any] = [seed]
        for topic, queues in TOPICS.items():
            self.rig.topic(topic, queues)
            self.rig.subscribe(topic=topic, config=SETTINGS)

    def run(self) -> None:
        changes: list[tuple[int, Callable[[], None]]] = [
            (25, self.send),
            (30, self.pull),
            (25, self.answer),
            (6, self.change_order_key),
            (3, self.change_chain_batch),
            (2, self.lose_a_queue),
            (3, self.park_or_replay),
            (2, self.kill),
            (4, self.move_the_clock),
        ]
        weights, steps = [weight for weight, _ in changes], [step for _, step in changes]
        for step in self.random.choices(steps, weights, k=STEPS):
            self.history.append(step.__name__)
            step()
            self.collect_answers()
        self.drain()
        self.rig.close()

    def collect_answers(self) -> None:
        self.rig.settle()
        for call in [call for call in self.waiting if call.answered]:
            self.waiting.remove(call)
            if call.result.messages:
                self.record_delivery(call)

    def record_delivery(self, call: Any) -> None:
        numbers = [json.loads(value)["n"] for value in call.values]
        self.history.append(numbers)
        for number in numbers:
            key = self.sent[number].key
            before = [one.number for one in self.sent[:number] if one.key == key]
            assert set(before) <= self.acked | set(numbers), (number, self.history)
            assert number not in self.bound, (number, self.history)
        self.hands.append(InHand(call.result.context, call.offsets, numbers, self.life))

    # --- what happens

    def send(self) -> None:
        for _ in range(self.random.randint(1, 7)):
            topic = self.random.choice(list(TOPICS))
            number, key = len(self.sent), f"k{self.random.randrange(KEYS)}"
            body = json.dumps({"k": key, "n": number})
            self.rig.put_keyed(key, body, self.random.randrange(TOPICS[topic]), topic)
            self.sent.append(Message(number, key))
            self.history.append((number, key, topic))

    def pull(self) -> None:
        topic, linger = self.random.choice(list(TOPICS)), self.random.choice([20, 3_000])
        count = self.random.randint(1, 4)
        self.waiting.append(self.rig.start_pull(topic=topic.encode(), count=count, linger=linger))

    def answer(self) -> None:
        if not self.hands:
            return
        hand = self.hands.pop(self.random.randrange(len(self.hands)))
        what = self.random.random()
        if what < 0.8:
            self.acknowledge(hand)
        elif what < 0.95:
            self.rig.submit(IDL.ConsumeResult(context=hand.context, failOffsets=hand.offsets))

    def acknowledge(self, hand: InHand) -> None:
        self.acked.update(hand.numbers)
        call = self.rig.submit(IDL.ConsumeResult(context=hand.context, successOffsets=hand.offsets))
        if call.outcome.error is not None:
            self.hands.append(hand)  # refused: the client sends it again
        elif hand.life == self.life and not self.batches:
            self.bound.update(hand.numbers)

    def change(self, setting: str, value: Any) -> None:
        topic = self.random.choice(list(TOPICS))
        self.rig.wait(self.rig.service.change_subscription("G", topic, {setting: value}))

    def change_order_key(self) -> None:
        self.change("order_key", self.random.choice(["KEY", "$.k"]))

    def change_chain_batch(self) -> None:
        if self.batches:
            self.change("chain_batch", self.random.choice([1, 3]))

    def lose_a_queue(self) -> None:
        """A session is over; the next pull joins again."""
        groups = self.rig.directory.groups
        subscription = groups[b"G"].subscriptions[self.random.choice(list(TOPICS)).encode()]
        subscription.membership.claims.lost(list(subscription.buffer.queues))
        subscription.membership.leave()

    def park_or_replay(self) -> None:
        key = json.dumps(f"k{self.random.randrange(KEYS)}")
        service = self.rig.service
        try:
            if key in service.order_keys("G").parked_keys:
                self.rig.wait(service.order_keys("G").replay(key))  # type: ignore[arg-type]
            else:
                self.rig.wait(service.order_keys("G").park(key))
        except CallerError:
            pass  # all have lost their order key

    def kill(self) -> None:
        self.life += 1
        self.rig.restart()
        self.waiting.clear()

    def move_the_clock(self) -> None:
        self.rig.advance(self.random.choice([0.01, 0.1, 1.0, 3.0]))

    # --- the end

    def drain(self) -> None:
        for key in self.rig.service.order_keys("G").parked_keys:
            self.rig.wait(self.rig.service.order_keys("G").replay(key))  # type: ignore[arg-type]
        for _ in range(DRAIN_STEPS):
            for topic in TOPICS:
                self.waiting.append(self.rig.start_pull(topic=topic.encode(), count=5, linger=1_000))
            self.collect_answers()
            hands, self.hands = self.hands, []
            for hand in hands:
                self.acknowledge(hand)
            if not self.hands and len(self.acked) == len(self.sent):
                return
            self.rig.advance(0.1)
        missing = [one for one in self.sent if one.number not in self.acked]
        raise AssertionError((missing, self.history))


@pytest.mark.parametrize("seed", range(8))
def test_order_under_changes(seed: int) -> None:
    Changes(seed).run()
