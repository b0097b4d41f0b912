"""The kinds of recorded changes: how the state of the changed object is read, compared and restored.

A state is JSON. It is read before and after the change, and again before an undo: if it is not the recorded
one any more, others have changed the object meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from backend.port import Backend
from ddmq.server.admin import keys, offsets, topics
from ddmq.server.admin.groups import AdminGroups
from ddmq.server.http.routing import AdminRequest
from ddmq_common.clock import Clock
from ddmq_common.config import mask_tree
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.group import SUBSCRIPTION_PREFIX, stored_subscription, subscription_key
from proxy_consumer.service import ConsumerService

Names = dict[str, str]
TOPIC_STATES = ("trace_one_in", "hold_delays")  # are no settings of the engine
NO_STATE = ("topic", "internal", "delays_held_since_ms")  # in the description of a topic
DEFAULTS = SubscriptionDefaults()  # tells which of its settings are secret


class ChangeableServer(Protocol):
    """The parts of the admin API that kinds of changes need. `groups` and `consumer` raise UnsupportedError
    in a process without a consumer proxy."""

    backend: Backend
    clock: Clock

    @property
    def groups(self) -> AdminGroups: ...

    @property
    def consumer(self) -> ConsumerService: ...


class ChangeKind:
    """A kind of changes that are recorded. `name`: of the object, with the names of the path in braces.
    `final`: why such a change cannot be undone. `shown`: the keys of the answer that are recorded. `counted`:
    the key of the answer that counts the changed objects."""

    def __init__(self, name: str, final: str = "", shown: tuple[str, ...] = (), counted: str = "") -> None:
        self._name = name
        self._final = final
        self._shown = shown
        self._counted = counted

    def names_of(self, request: AdminRequest) -> Names:
        """Return the names of the object: those in the path."""
        return dict(request.path)

    def describe_object(self, names: Names) -> str:
        """Return what the change is about, in words."""
        return self._name.format(**names)

    def is_change(self, request: AdminRequest) -> bool:
        """Return whether the request changes something, and is no dry run."""
        return not getattr(request.body, "dry_run", False)

    def has_changed(self, answer: Any) -> bool:
        """Return whether the request has changed anything, as far as its answer says it."""
        return not self._counted or bool(answer[self._counted])

    def read_before(self, server: ChangeableServer, names: Names) -> Any:
        """Return the state before the change; None if there is no object."""
        return self.read_state(server, names)

    def read_after(self, server: ChangeableServer, names: Names, request: AdminRequest, answer: Any) -> Any:
        """Return the state after the change."""
        return {name: answer[name] for name in self._shown} if self._shown else self.read_state(server, names)

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        """Return the present state."""
        return None

    def find_obstacle(self, before: Any, after: Any) -> str:
        """Return why the change cannot be undone; "" if it can."""
        return self._final


class UndoableKind(ChangeKind, ABC):
    """A kind of changes that can be undone, unless `find_obstacle` says why not."""

    def find_lock(self, names: Names) -> tuple[str, str] | None:
        """Return the kind and name of the topic or group whose changes are made one after another."""
        return None

    def find_difference(self, before: Any, after: Any, now: Any) -> str:
        """Return how the object differs from what the change left; "" if it does not. Raises nothing."""
        return "" if now == after else _describe_difference(after, now)

    @abstractmethod
    def find_obstacle(self, before: Any, after: Any) -> str: ...

    @abstractmethod
    def restore(self, server: ChangeableServer, names: Names, before: Any, after: Any) -> None:
        """Bring the object back to `before`. Raises the errors of the change that this is."""


def _describe_difference(after: Any, now: Any) -> str:
    if not isinstance(after, dict) or not isinstance(now, dict):
        return "it was deleted, or created again"
    names = [name for name in after.keys() | now.keys() if after.get(name) != now.get(name)]
    after, now = mask_secrets(after), mask_secrets(now)
    return ", ".join(f"{name} is {now.get(name)!r}, not {after.get(name)!r}" for name in sorted(names))


def mask_secrets(state: Any) -> Any:
    """Return the state of an object as it is shown: it is recorded with secrets, because an undo needs
    them."""
    return mask_tree(state, DEFAULTS)


class TopicChanges(UndoableKind):
    """Settings of a topic, among them whether it accepts messages."""

    def find_lock(self, names: Names) -> tuple[str, str] | None:
        return "topic", names["topic"]

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        info = server.backend.topic(names["topic"])
        if info is None:
            return None
        row = topics.describe_topic(server.backend, info)
        return {name: value for name, value in row.items() if name not in NO_STATE}

    def find_obstacle(self, before: Any, after: Any) -> str:
        if after is None:
            return "the messages of the topic were deleted with it"
        if before is None:
            return "it created the topic; `ddmq topic delete` deletes it"
        if before.get("queues") != after.get("queues"):
            return "it added queues, which cannot be removed"
        return ""

    def restore(self, server: ChangeableServer, names: Names, before: Any, after: Any) -> None:
        backend, clock, topic = server.backend, server.clock, names["topic"]
        changed = {name: value for name, value in before.items() if after.get(name) != value}
        settings = {name: value for name, value in changed.items() if name not in TOPIC_STATES}
        if settings:
            topics.update(backend, clock, topic, settings)
        if "trace_one_in" in changed:
            topics.trace(backend, clock, topic, changed["trace_one_in"])
        if "hold_delays" in changed:
            topics.hold_delays(backend, clock, topic, hold=changed["hold_delays"])


class SubscriptionChanges(UndoableKind):
    """The own settings of a subscription, and whether it is paused."""

    def find_lock(self, names: Names) -> tuple[str, str] | None:
        return "group", names["group"]

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        return _read_subscription(server.backend, names["group"], names["topic"])

    def find_obstacle(self, before: Any, after: Any) -> str:
        return "it created the subscription; `ddmq group delete` deletes it" if before is None else ""

    def restore(self, server: ChangeableServer, names: Names, before: Any, after: Any) -> None:
        own, changed = before["settings"], after["settings"]
        body: dict[str, Any] = {name: value for name, value in own.items() if changed.get(name) != value}
        unset = [name for name in changed if name not in own]
        body |= {"unset": unset} if unset else {}
        if before["paused"] != after["paused"]:
            body["paused"] = before["paused"]
        server.groups.change(names["group"], names["topic"], body)


def _read_subscription(backend: Backend, group: str, topic: str) -> dict[str, Any] | None:
    key = subscription_key(group, topic)
    value = backend.setting(key)
    if value is None:
        return None
    stored = stored_subscription(key, value)
    return {"settings": dict(stored.overrides), "paused": bool(stored.paused_ms), "source": stored.source}


class GroupSubscriptions(ChangeKind):
    """The subscriptions of a group with their settings, as they are created and deleted."""

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        prefix = f"{SUBSCRIPTION_PREFIX}{names['group']}/"
        backend, group = server.backend, names["group"]
        topics_of_group = sorted(key.removeprefix(prefix) for key in backend.settings(prefix))
        return {topic: _read_subscription(backend, group, topic) for topic in topics_of_group} or None


class OffsetResets(UndoableKind):
    """The offsets of a group on a topic. Each reset starts a generation of each queue that it is about."""

    def find_lock(self, names: Names) -> tuple[str, str] | None:
        return "group", names["group"]

    def names_of(self, request: AdminRequest) -> Names:
        return {**request.path, "topic": request.body.topic}

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        rows = offsets.read_positions(server.backend, names["group"], names["topic"])
        return {str(each.queue.queue_id): [each.at, each.view.generation] for each in rows}

    def find_obstacle(self, before: Any, after: Any) -> str:
        return ""

    def find_difference(self, before: Any, after: Any, now: Any) -> str:
        differing = [
            queue for queue in _reset_queues(before, after) if now.get(queue, [0, 0])[1] != after[queue][1]
        ]
        return f"the offsets of queue {', '.join(differing)} were reset again" if differing else ""

    def restore(self, server: ChangeableServer, names: Names, before: Any, after: Any) -> None:
        targets = {int(queue): before[queue][0] for queue in _reset_queues(before, after)}
        offsets.restore_offsets(server.backend, server.clock, names["group"], names["topic"], targets)


def _reset_queues(before: Any, after: Any) -> list[str]:
    """Return the queues that a reset was about: those with another generation."""
    return [queue for queue, (_, generation) in after.items() if before.get(queue, [0, -1])[1] < generation]


class KeyActions(UndoableKind):
    """A key that is parked, skipped or replayed. Only a park can be undone: the key is replayed."""

    FINAL = {
        "skip": "the skipped message is a dead letter now; `ddmq dlq resend` sends it again",
        "replay": "the messages of the key are delivered again",
    }

    def names_of(self, request: AdminRequest) -> Names:
        return {**request.path, "key": request.body.key, "action": request.body.action}

    def read_before(self, server: ChangeableServer, names: Names) -> Any:
        return None  # the answer says it

    def read_after(self, server: ChangeableServer, names: Names, request: AdminRequest, answer: Any) -> Any:
        outcomes = [head["outcome"] for head in answer["heads"]]
        return {"action": answer["action"], "was_parked": answer["parked"], "outcomes": outcomes}

    def find_obstacle(self, before: Any, after: Any) -> str:
        if after["action"] == "park":
            return "the key was parked before" if after["was_parked"] else ""
        return self.FINAL[after["action"]]

    def read_state(self, server: ChangeableServer, names: Names) -> Any:
        return self._find_parked(server, names) is not None

    def find_difference(self, before: Any, after: Any, now: Any) -> str:
        return "" if now else "the key is not parked any more"

    def restore(self, server: ChangeableServer, names: Names, before: Any, after: Any) -> None:
        keys.act_on_key(server.consumer, names["group"], "replay", names["key"])

    def _find_parked(self, server: ChangeableServer, names: Names) -> str | None:
        """Return the parked key of these names as it is known inside; None if it is not parked."""
        ordering = keys.load_keys(server.consumer, names["group"], hold=True)
        key = keys.choose_key(ordering, keys.possible_keys(names["key"]))
        inside = {keys.shown_key(queue): chain for chain, queue in keys.chain_queues(ordering).items()}
        key = inside.get(key, key)
        return key if key in ordering.parked_keys else None


SENT = "what was sent again cannot be taken back"
CHANGE_KINDS: dict[str, ChangeKind] = {
    "topic": TopicChanges("topic {topic}"),
    "topic deleted": TopicChanges("topic {topic}"),
    "subscription": SubscriptionChanges("group {group} on topic {topic}"),
    "group": GroupSubscriptions(
        "group {group}", "it created subscriptions; `ddmq group delete` deletes them"),
    "group deleted": GroupSubscriptions("group {group}", "the progress of the group was deleted"),
    "offsets": OffsetResets("the offsets of group {group} on topic {topic}"),
    "key": KeyActions("key {key} of group {group}"),
    "dead letters resent": ChangeKind(
        "dead letters of {group}", SENT, ("resent", "kept", "to_topic"), counted="resent"
    ),
    "dead letters purged": ChangeKind(
        "dead letters of {group}", "discarded dead letters stay discarded", ("purged",), counted="purged"
    ),
    "transaction": ChangeKind("transaction {id}", "the end of a transaction is final", ("state",)),
    "operation": ChangeKind(
        "operation {id}", "`ddmq op stop` stops it; what it has changed stays changed",
        ("kind", "action", "filter", "options", "counted"),
    ),
}  # fmt: skip
RECORDED: dict[tuple[str, str], str] = {
    ("POST", "/topics/{topic}"): "topic",
    ("DELETE", "/topics/{topic}"): "topic deleted",
    ("POST", "/groups/{group}"): "group",
    ("POST", "/groups/{group}/topics/{topic}"): "subscription",
    ("DELETE", "/groups/{group}"): "group deleted",
    ("POST", "/groups/{group}/offsets"): "offsets",
    ("POST", "/groups/{group}/keys"): "key",
    ("POST", "/dlq/{group}/resend"): "dead letters resent",
    ("POST", "/dlq/{group}/purge"): "dead letters purged",
    ("POST", "/transactions/{id}"): "transaction",
    ("POST", "/operations/{id}/start"): "operation",
}  # by method and path of the route
