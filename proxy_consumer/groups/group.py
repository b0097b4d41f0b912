"""Consumer groups: their subscriptions, the pulls that wait, and how both stand in the settings.

Settings, the same at every proxy of one backend, JSON:

    group/NAME               {"created_ms": …, "source": "log" or the file that owns it}
    subscription/GROUP/TOPIC {"created_ms": …, "source": …, "settings": {what it sets itself}}
    parked/GROUP/DIGEST      an order key that is set aside, as its canonical text
    reset/GROUP/TOPIC        written together with a reset of offsets, so that connected proxies look again
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec
from mypy_extensions import mypyc_attr

from backend.records import QueueRef
from ddmq_common.config import ConfigPlace, build
from ddmq_common.errors import ConfigError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.held_pulls import HeldPull, HeldPulls
from proxy_consumer.core.steps import Delivery
from proxy_consumer.groups.ordering import GroupOrdering
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.held_queue import HeldQueue
from proxy_consumer.subscription.order import SharedOrder, set_open, start_anew
from proxy_consumer.subscription.subscription import Subscription

GROUP_PREFIX = "group/"
SUBSCRIPTION_PREFIX = "subscription/"
RESET_PREFIX = "reset/"
SOURCE_LOG = "log"
BROADCASTING = "broadcasting"


@mypyc_attr(allow_interpreted_subclasses=True)
class Pusher(HeldPull):
    """What pushes a topic, as its group sees it."""

    def give_up(self) -> None:
        """It has no client to answer."""

    @abstractmethod
    def hand_over(self, queues: Collection[QueueRef], until: float, then: Callable[[], None]) -> None:
        """Queues move: `then` runs when it has nothing of them any more, at `until` at the latest."""


class Group:
    """One consumer group at this proxy."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime = runtime
        self.name = name
        self.waiting = HeldPulls()
        self.subscriptions: dict[bytes, Subscription] = {}
        self.held: dict[tuple[bytes, bytes], HeldQueue] = {}
        self.pushers: dict[str, list[Pusher]] = {}  # by topic: the last one, and before it those that end
        self.unknown_queue = runtime.ignored(name, "unknown queue")
        self.source = SOURCE_LOG
        self.created_ms = 0
        self.shared = SharedOrder()
        self.ordering = GroupOrdering(runtime, name, self.subscriptions, self.shared, self.serve)
        self._rotation: deque[Subscription] = deque()

    # --- subscriptions

    def add(self, topic: str, config: SubscriptionDefaults) -> Subscription:
        """A new subscription, not joined yet."""
        subscription = Subscription(self.runtime, self, topic, config)
        self.subscriptions[topic.encode()] = subscription
        self._rotation.append(subscription)
        return subscription

    def remove(self, topic: str) -> None:
        """Forget a subscription and give up its queues."""
        subscription = self.subscriptions.pop(topic.encode(), None)
        if subscription is not None:
            self._rotation.remove(subscription)
            subscription.remove()
            self.serve()  # what waited behind its messages goes on

    def remember(self, held: HeldQueue) -> None:
        self.held[held.key] = held

    def forget(self, held: HeldQueue) -> None:
        if self.held.get(held.key) is held:
            del self.held[held.key]

    @property
    def broadcasting(self) -> bool:
        """Whether any of its topics is broadcast."""
        return any(each.config.model == BROADCASTING for each in self.subscriptions.values())

    # --- what is pushed

    def pusher_waits(self, topic: str) -> bool:
        pusher = self.pusher(topic)
        return pusher is not None and pusher.count > 0

    def pusher(self, topic: str) -> Pusher | None:
        """Who takes what is pushed of a topic."""
        pushers = self.pushers.get(topic)
        return pushers[-1] if pushers else None

    def pushes_no_more(self, pusher: Pusher, topic: str) -> None:
        """It was stopped, and what it had has ended."""
        self.pushers[topic].remove(pusher)
        if not self.pushers[topic]:
            del self.pushers[topic]

    def hand_over(
        self, queues: Mapping[str, Collection[QueueRef]], until: float, then: Callable[[], None]
    ) -> None:
        """`then` runs when nothing of these queues (by the topic of their subscription) is being pushed any
        more, at `until` (monotonic seconds) at the latest."""
        busy = [(pusher, queues[topic]) for topic in queues for pusher in self.pushers.get(topic, ())]
        left = 1 + len(busy)

        def ended() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                then()

        for pusher, of in busy:
            pusher.hand_over(of, until, ended)
        ended()

    # --- chains that reach over the group

    def members(self) -> list[Subscription]:
        """Those that share one scope (subscription/order.py).

        All of them are joined as soon as one is pulled from. When one starts anew, all do: what the others
        hold back depends on its messages too.
        """
        return [each for each in self.subscriptions.values() if each.group_wide]

    def open_shared(self) -> None:
        """Open the shared scope when all of it is here, close it when something is missing."""
        scope, members = self.shared.scope, self.members()
        if any(each.halted for each in members):
            return
        if scope is None or not scope.queues:
            self.shared.scope = None
        elif all(each.order.starts_anew(scope) for each in members):
            start_anew(members, self.runtime.now(), self.hand_over)
        else:
            set_open(scope, all(each.ready for each in members))

    # --- delivery

    def take(self, now: float, count: int) -> Delivery | None:
        """Messages from the next subscription that has some."""
        rotation = self._rotation
        for _ in range(len(rotation)):
            candidate = rotation[0]
            rotation.rotate(-1)
            delivery = None if candidate.pushed else candidate.take(now, count)
            if delivery is not None:
                return delivery
        return None

    def serve(self) -> None:
        """Hand out what there is to those who wait, the oldest first.

        It ends: a round that served nobody is followed by one more at most, for what reading for one topic
        has brought for another.
        """
        waiting = self.waiting
        if not waiting.count:
            return
        now = self.runtime.now()
        served = brought = True
        while waiting.count and (served or brought):
            last_chance = not served
            served = False
            for subscription in list(self._rotation):
                if subscription.buffer.may_have and self._serve_one(subscription, now):
                    served = True
                    self._rotation.remove(subscription)  # the others come first next time
                    self._rotation.append(subscription)
            brought = not last_chance and any(map(self._can_serve, self._rotation))

    def answer_empty(self) -> None:
        """All who wait are given up."""
        for waiter in self.waiting:
            waiter.give_up()

    def _can_serve(self, subscription: Subscription) -> bool:
        """Whether something lies ready that a waiter here wants."""
        return subscription.buffer.has_some and self._waiter(subscription) is not None

    def _waiter(self, subscription: Subscription) -> HeldPull | None:
        """Who gets the next messages of a subscription."""
        if subscription.pushed:
            pusher = self.pusher(subscription.topic)
            return pusher if pusher is not None and pusher.count else None
        return self.waiting.oldest(subscription.topic)

    def _serve_one(self, subscription: Subscription, now: float) -> bool:
        waiter = self._waiter(subscription)
        delivery = None if waiter is None else subscription.take(now, waiter.count)
        if waiter is None or delivery is None:
            return False
        waiter.deliver(delivery)
        return True


# --- settings


def group_key(group: str) -> str:
    return GROUP_PREFIX + group


def subscription_key(group: str, topic: str) -> str:
    return f"{SUBSCRIPTION_PREFIX}{group}/{topic}"


def encode_group(created_ms: int, source: str) -> bytes:
    """The value of `group/NAME`."""
    return msgspec.json.encode({"created_ms": created_ms, "source": source})


def encode_subscription(given: Mapping[str, Any], created_ms: int, source: str) -> bytes:
    """The value of `subscription/GROUP/TOPIC`; `given` goes over whatever the defaults are."""
    return msgspec.json.encode({"created_ms": created_ms, "source": source, "settings": dict(given)})


def differences(config: SubscriptionDefaults, defaults: SubscriptionDefaults) -> dict[str, Any]:
    """What of `config` is not as in `defaults`."""
    given, base = dataclasses.asdict(config), dataclasses.asdict(defaults)
    return {name: value for name, value in given.items() if value != base[name]}


def decode_group(value: bytes) -> dict[str, Any]:
    """The members of `group/NAME`. Raises ConfigError."""
    return _object(value, "group")


class Stored(NamedTuple):
    """The members of `subscription/GROUP/TOPIC`."""

    given: Mapping[str, Any]
    created_ms: int
    source: str

    def over(self, defaults: SubscriptionDefaults, key: str) -> SubscriptionDefaults:
        """The settings in force. Raises ConfigError that names the key and the value."""
        settings = dataclasses.asdict(defaults) | dict(self.given)
        return build(SubscriptionDefaults, settings, ConfigPlace(f"setting {key}", ""))


def stored_subscription(key: str, value: bytes) -> Stored:
    """What stands in the settings. Raises ConfigError."""
    members = _object(value, key)
    return Stored(
        members.get("settings", {}), int(members.get("created_ms", 0)), str(members.get("source", SOURCE_LOG))
    )


def _object(value: bytes, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"setting {what}: is not a JSON object: {error}") from error
