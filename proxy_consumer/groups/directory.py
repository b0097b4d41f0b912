"""All groups of one proxy: loaded from the settings at start, updated with them, and created by pulls.

Creating a group and a subscription, and setting its start offsets, is one commit, durable before anything is
delivered. If two calls create the same subscription at once, at one proxy or two, only one succeeds
(`absent`). `start` applies to the queues that exist now: their committed offset is set by a reset in the same
commit as the settings. Queues that are added later have no progress and start at their first message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from backend.completion import Completion, all_of, failed, followed, gather_results, succeeded
from backend.port import Backend
from backend.records import AppendResult, Bounds, CommitBatch, ProgressDelta, QueueRef, SettingsLimit
from ddmq_common.errors import BoundReachedError, CallerError, ConfigError, FencedError, TryLaterError
from ddmq_common.names import find_group_name_error, find_topic_name_error, is_dead_letters, is_internal
from ddmq_common.token_bucket import CREATIONS_PER_S, creations_bucket
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.filters.message_filters import check_stated as check_sql
from proxy_consumer.groups.group import (
    GROUP_PREFIX,
    RESET_PREFIX,
    SOURCE_LOG,
    SUBSCRIPTION_PREFIX,
    StoredSubscription,
    changed_settings,
    decode_group,
    encode_group,
    encode_subscription,
    group_key,
    stored_subscription,
    subscription_key,
)
from proxy_consumer.groups.ordering import PARKED_PREFIX, GroupOrdering
from proxy_consumer.retries.retry_queues import group_concerned
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.membership import LEASES_PREFIX
from proxy_consumer.subscription.parked_heads import EXHAUSTED_PREFIX
from proxy_consumer.subscription.subscription import Group, Subscription


class QueueStart(NamedTuple):
    """The start of a new subscription in one queue. `skipped`: how many readable messages are before it."""

    offset: int
    skipped: int


class Directory:
    """The groups of one proxy, by name (bytes, as in calls)."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.groups: dict[bytes, Group] = {}
        self._orderings: dict[Group, GroupOrdering] = {}
        self._creation_rate = creations_bucket(runtime.now())
        self._making: dict[Subscription, Completion[int]] = {}
        self._follow: Callable[[str, str], None] | None = None
        self._stop_watching: Callable[[], None] | None = None
        # Sorted, for lists of 10,000 subscriptions; None after a change of groups or subscriptions.
        self._names: tuple[tuple[str, str], ...] | None = None
        self._names_with_order: frozenset[str] | None = None

    def start(self, follow: Callable[[str, str], None] | None = None) -> None:
        """Load the groups and subscriptions from the settings, and start to watch the settings.

        `follow(group, topic)` is called after each change of a subscription has been applied.
        """
        backend = self._runtime.backend
        for prefix in (GROUP_PREFIX, SUBSCRIPTION_PREFIX, PARKED_PREFIX):
            for key in backend.settings(prefix):
                self.on_setting_changed(key)
        self._follow = follow
        self._stop_watching = backend.watch_settings(self.on_setting_changed)

    def stop(self) -> None:
        """Stop watching the settings, and release every queue."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        for subscription in self.all_subscriptions():
            subscription.leave()

    def all_subscriptions(self) -> Iterable[Subscription]:
        """Return the subscriptions of all groups."""
        return [each for group in self.groups.values() for each in group.subscriptions.values()]

    def list_names(self) -> tuple[tuple[str, str], ...]:
        """Return the (group, topic) of every subscription, sorted. Until one is added or removed, each call
        returns the same object."""
        if self._names is None:
            self._names = tuple(sorted((each.group.name, each.topic) for each in self.all_subscriptions()))
        return self._names

    def list_ordered_groups(self) -> list[str]:
        """Return the names of the groups that have an order key or parked keys, sorted."""
        if self._names_with_order is None:
            self._names_with_order = frozenset(
                each.group.name for each in self.all_subscriptions() if each.config.order_key
            )
        parked = {group.name for group in self._orderings if group.shared.parked}
        return sorted(self._names_with_order | parked)

    def _forget_names(self) -> None:
        self._names = self._names_with_order = None

    def find_subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of a group to a topic, or None."""
        existing = self.groups.get(group.encode())
        return None if existing is None else existing.subscriptions.get(topic.encode())

    def instance_of(self, name: bytes) -> Group | None:
        """Return the broadcasting group of which the name `GROUP%INSTANCE` is an instance, or None."""
        at = name.find(b"%", 1)
        while at > 0:
            group = self.groups.get(name[:at])
            if group is not None and group.is_broadcasting:
                return group
            at = name.find(b"%", at + 1)
        return None

    def group_named(self, name: str) -> Group:
        """Return the group of this name. Raises CallerError if there is none."""
        group = self.groups.get(name.encode())
        if group is None:
            raise CallerError(f"group {name!r} does not exist")
        return group

    def ordering_of(self, group: Group) -> GroupOrdering:
        """Return the order keys of a group, created at first use."""
        ordering = self._orderings.get(group)
        if ordering is None:
            ordering = self._orderings[group] = GroupOrdering(self._runtime, group)
        return ordering

    # --- settings

    def on_setting_changed(self, key: str) -> None:
        """Apply a change of a setting or a topic, made at this proxy or another."""
        kind, _, rest = key.partition("/")
        name, _, topic = rest.partition("/")
        group = self.groups.get(name.encode())
        if kind == "group":
            self._group_changed(rest)
        elif kind == "subscription":
            self._subscription_changed(key, name, topic)
            if self._follow is not None:
                self._follow(name, topic)
        elif kind == "trace":
            for subscription in self.all_subscriptions():
                if subscription.topic == rest and subscription.switch_trace():
                    subscription.reload_queues()
        elif kind in ("topic", "retry"):
            self._queues_changed(kind, rest, group_concerned(key))
        elif group is None:
            return
        elif kind == "parked":
            self.ordering_of(group).on_parked_changed(key)
        elif kind == "leases":
            for subscription in group.subscriptions.values():
                subscription.on_lease_setting(key)
        elif kind == "reset" and topic.encode() in group.subscriptions:
            group.subscriptions[topic.encode()].refence_all()

    def _queues_changed(self, kind: str, name: str, retrying: str | None) -> None:
        """Apply a change of a topic's queues, or of the retry queues of the group `retrying`."""
        concerned = self.groups.get((retrying or "").encode())
        for subscription in () if concerned is None else concerned.subscriptions.values():
            subscription.check_retry_queue()
        topic = name.encode()
        for group in list(self.groups.values()) if kind == "topic" else ():
            if topic in group.subscriptions:
                group.subscriptions[topic].check_topic()
                group.serve()

    def _group_changed(self, name: str) -> None:
        value = self._runtime.backend.setting(group_key(name))
        if value is None:
            group = self.groups.get(name.encode())
            if group is not None and not any(each.creating for each in group.subscriptions.values()):
                self.drop_group(group)
            return
        try:
            members = decode_group(value)
        except ConfigError as error:
            log.error("group not loaded", extra={"error": str(error)})
            return
        group = self.ready_group(name)
        group.source = str(members.get("source", SOURCE_LOG))
        group.created_ms = int(members.get("created_ms", 0))

    def _subscription_changed(self, key: str, name: str, topic: str) -> None:
        self._forget_names()
        value = self._runtime.backend.setting(key)
        subscription = self.find_subscription(name, topic)
        if value is None:
            if subscription is not None and not subscription.creating:
                self.groups[name.encode()].remove(topic)
            return
        try:
            stored = stored_subscription(key, value)
            config = stored.settings_over(self._runtime.config.defaults, key)
        except ConfigError as error:
            log.error("subscription not loaded", extra={"error": str(error)})
            return
        is_new = subscription is None
        if subscription is None:
            subscription = self._add_subscription(self.ready_group(name), topic, config)
        subscription.created_ms = stored.created_ms
        subscription.set_paused(stored.paused_ms)
        if is_new:
            subscription.join_with_members()
        elif subscription.config != config:
            subscription.apply_config(config)

    def _add_subscription(self, group: Group, topic: str, config: SubscriptionDefaults) -> Subscription:
        """Add a subscription. If rights are checked, the waiting pulls of the whole group are answered, for
        their callers may lack the right to the new topic."""
        if self._runtime.checks_rights:
            for pull in group.waiting:
                if pull.topic is None:
                    pull.give_up()
        self._forget_names()
        return group.add(topic, config)

    def defaults_changed(self) -> None:
        """Apply changed `defaults` of the proxy to subscriptions that do not set the values themselves."""
        for key in self._runtime.backend.settings(SUBSCRIPTION_PREFIX):
            self.on_setting_changed(key)

    def ready_group(self, name: str) -> Group:
        """Return the group of this name, and add it if it is missing."""
        existing = self.groups.get(name.encode())
        if existing is None:
            existing = self.groups[name.encode()] = Group(self._runtime, name, SOURCE_LOG)
        return existing

    def drop_group(self, group: Group) -> None:
        """Remove a deleted group: answer its waiting pulls empty and release its queues."""
        self._forget_names()
        for subscription in list(group.subscriptions.values()):
            group.remove(subscription.topic)
        self.groups.pop(group.name.encode(), None)
        self._orderings.pop(group, None)
        group.answer_empty()

    # --- creation

    def check_creation(self, name: str, topic: str) -> None:
        """Raise CallerError or BoundReachedError if the subscription may not be created."""
        error = find_group_name_error(name) or find_topic_name_error(topic)
        if error is not None:
            raise CallerError(error)
        if is_internal(topic) and not is_dead_letters(topic):
            raise CallerError(f"topic {topic!r} is internal; it cannot be subscribed to")
        base = self.instance_of(name.encode()) if name.encode() not in self.groups else None
        if base is not None:
            raise CallerError(
                f"{name} is an instance of the broadcasting group {base.name}, to be pulled from as it is; "
                "an ordinary group needs another name"
            )
        check_limits(self._runtime.config, self.groups, name)

    def subscribe_on_use(
        self,
        name: str,
        topic: str,
        config: SubscriptionDefaults,
        on_skipped: Callable[[int], None] | None = None,
    ) -> tuple[Subscription, Completion[int]]:
        """Call `subscribe` for a pull or fetch that names group and topic.

        `on_skipped` is called if this call creates a subscription, with the number of messages before its
        start. Raises BoundReachedError if clients have created too many subscriptions just now.
        """
        is_new = self.find_subscription(name, topic) is None
        if is_new:
            self.check_creation(name, topic)
            if self._creation_rate.wait_s(1, self._runtime.now()):
                raise BoundReachedError(
                    f"group {name} does not consume {topic} yet, and clients have made many subscriptions "
                    f"just now; {CREATIONS_PER_S} a second are made: try again"
                )
            self._creation_rate.take_tokens(1)
        subscription, creation = self.subscribe(name, topic, config)
        if is_new and on_skipped is not None:
            report = on_skipped
            creation.then(lambda done: report(done.value) if done.error is None and done.value else None)
        return subscription, creation

    def subscribe(
        self,
        name: str,
        topic: str,
        config: SubscriptionDefaults,
        source: str = SOURCE_LOG,
        overrides: Mapping[str, Any] | None = None,
        paused_ms: int = 0,
    ) -> tuple[Subscription, Completion[int]]:
        """Create a subscription (and its group) and return it with a completion; it delivers once that has
        succeeded.

        The completion's value is the number of readable messages before its start. `overrides`: the settings
        that it sets itself (None: those of `config` that differ from the defaults). `paused_ms`: since when
        it is paused; 0: it is not.
        Raises like `check_creation`.
        A subscription that exists, or is being created, is returned unchanged.
        """
        existing = self.find_subscription(name, topic)
        creation: Completion[int] = Completion()
        if existing is not None:
            return existing, self._making.get(existing) or succeeded(0)
        self.check_creation(name, topic)
        check_stated(config)
        group = self.ready_group(name)
        subscription = self._add_subscription(group, topic, config)
        subscription.set_paused(paused_ms)
        subscription.creating = True
        self._making[subscription] = creation

        def on_stored(stored: Completion[int]) -> None:
            error = stored.error
            skipped = 0 if error is not None else stored.value
            subscription.creating = False
            del self._making[subscription]
            if isinstance(error, FencedError):  # another proxy created it at the same moment
                text = f"group {name} on topic {topic} is being created by another proxy just now; try again"
                error = None if self._setting_exists(name, topic) else TryLaterError(text)
            if error is None:
                if group.waiting.waiting_for(topic):
                    subscription.on_use(self._runtime.now())
                subscription.join_with_members()
                creation.succeed(skipped)
                return
            creation.fail(error)  # first: a pull that waits for it is rejected, not answered empty
            self._undo_creation(group, subscription)

        if overrides is None:
            overrides = changed_settings(config, self._runtime.config.defaults)
        create_subscription(
            self._runtime, name, topic, config.start, StoredSubscription(overrides, 0, source, paused_ms)
        ).then(on_stored)
        return subscription, creation

    def _setting_exists(self, name: str, topic: str) -> bool:
        return self._runtime.backend.setting(subscription_key(name, topic)) is not None

    def _undo_creation(self, group: Group, subscription: Subscription) -> None:
        self._forget_names()
        if group.subscriptions.get(subscription.topic.encode()) is subscription:
            group.remove(subscription.topic)
        if not group.subscriptions and self._runtime.backend.setting(group_key(group.name)) is None:
            self.drop_group(group)

    def delete(self, name: str, topic: str | None = None) -> Completion[list[AppendResult]]:
        """Delete a group and its subscriptions, or only the one to `topic`; its progress is not reused
        later."""
        try:
            group = self.group_named(name)
        except CallerError as error:
            return failed(error)
        if topic is not None and topic.encode() not in group.subscriptions:
            return failed(CallerError(f"group {name!r} has no subscription to topic {topic!r}"))
        settings: dict[str, bytes | None] = {} if topic is not None else {group_key(name): None}
        for subscription in group.subscriptions.values():
            if topic is None or subscription.topic == topic:
                settings[subscription_key(name, subscription.topic)] = None
                settings[f"{RESET_PREFIX}{name}/{subscription.topic}"] = None
        for prefix in (LEASES_PREFIX, EXHAUSTED_PREFIX):
            settings_prefix = f"{prefix}{name}/" + ("" if topic is None else f"{topic}/")
            settings.update(dict.fromkeys(self._runtime.backend.settings(settings_prefix)))
        if topic is None:
            settings.update(dict.fromkeys(self._runtime.backend.settings(f"{PARKED_PREFIX}{name}/")))
        runtime = self._runtime
        return runtime.backend.commit(CommitBatch(settings=settings), runtime.commit_deadline())


def create_subscription(
    runtime: Runtime, group: str, topic: str, start: str, subscription: StoredSubscription
) -> Completion[int]:
    """Determine where the queues start, then store the subscription, and its group if it is missing.

    Succeeds with the number of readable messages before the start, which is 0 if `start` is a time. Fails
    with FencedError if another call created the subscription meanwhile.
    """
    info = runtime.backend.topic(topic)
    queues = info.refs() if info else []
    if not queues:
        return followed(succeeded(None), lambda: _store_created(runtime, group, topic, subscription, (), 0))
    views, starts = runtime.backend.progress(group, queues), _find_starts(runtime.backend, start, queues)

    def store_settings() -> Completion[int]:
        resets = [
            ProgressDelta(group, queue, view.epoch, view.generation + 1, reset_to=at.offset)
            for queue, view, at in zip(queues, views.value, starts.value, strict=True)
            if at is not None
        ]
        skipped = sum(at.skipped for at in starts.value if at is not None)
        return _store_created(runtime, group, topic, subscription, resets, skipped)

    return followed(all_of([views, starts]), store_settings)


def _find_starts(
    backend: Backend, start: str, queues: Sequence[QueueRef]
) -> Completion[Sequence[QueueStart | None]]:
    """Return where each queue starts, in order; None for a queue that no longer exists."""
    if start not in ("first", "last"):
        offsets = gather_results([backend.offset_for_time(queue, int(start)) for queue in queues])
        return followed(offsets, lambda: succeeded([QueueStart(offset, 0) for offset in offsets.value]))
    bounds = backend.bounds(queues)
    return followed(bounds, lambda: succeeded([_start_in(start, limits) for limits in bounds.value]))


def _start_in(start: str, limits: Bounds | None) -> QueueStart | None:
    if limits is None:
        return None
    return (
        QueueStart(limits.min, 0) if start == "first" else QueueStart(limits.next, limits.next - limits.min)
    )


def _store_created(
    runtime: Runtime,
    group: str,
    topic: str,
    subscription: StoredSubscription,
    resets: Sequence[ProgressDelta],
    skipped: int,
) -> Completion[int]:
    backend, key, created_ms = runtime.backend, subscription_key(group, topic), runtime.clock.wall_ms()
    if backend.setting(key) is not None:
        raise FencedError(f"group {group} has got a subscription to {topic} meanwhile")
    settings: dict[str, bytes | None] = {
        key: encode_subscription(
            subscription.overrides, created_ms, subscription.source, subscription.paused_ms
        )
    }
    if backend.setting(group_key(group)) is None:
        settings[group_key(group)] = encode_group(created_ms, subscription.source)
    limits = build_limits(runtime.config, group)
    batch = CommitBatch(progress=resets, settings=settings, absent=(key,), limits=limits)
    commit = backend.commit(batch, runtime.commit_deadline())
    return followed(commit, lambda: succeeded(skipped))


# --- the limits on groups and subscriptions, which the engine enforces over all proxies


def check_limits(config: ConsumerConfig, groups: Mapping[bytes, Group], name: str) -> None:
    """Raise BoundReachedError if one more subscription of the group is too many, as far as this proxy
    knows."""
    group = groups.get(name.encode())
    if group is None and len(groups) >= config.groups_max:
        raise BoundReachedError(f"there are {len(groups)} groups; groups_max is {config.groups_max}")
    if group is not None and len(group.subscriptions) >= config.subscriptions_per_group_max:
        raise BoundReachedError(
            f"group {name} has {len(group.subscriptions)} subscriptions; "
            f"subscriptions_per_group_max is {config.subscriptions_per_group_max}"
        )
    count = sum(len(each.subscriptions) for each in groups.values())
    if count >= config.subscriptions_max:
        raise BoundReachedError(
            f"there are {count} subscriptions; subscriptions_max is {config.subscriptions_max}"
        )


def build_limits(config: ConsumerConfig, group: str) -> tuple[SettingsLimit, ...]:
    """Return the limits of a commit that creates a subscription of `group`, and perhaps the group."""
    groups, subscriptions = config.groups_max, config.subscriptions_max
    of_group = config.subscriptions_per_group_max
    return (
        SettingsLimit(GROUP_PREFIX, groups, f"there are {groups} groups; groups_max is {groups}"),
        SettingsLimit(
            f"{SUBSCRIPTION_PREFIX}{group}/",
            of_group,
            f"group {group} has {of_group} subscriptions; subscriptions_per_group_max is {of_group}",
        ),
        SettingsLimit(
            SUBSCRIPTION_PREFIX,
            subscriptions,
            f"there are {subscriptions} subscriptions; subscriptions_max is {subscriptions}",
        ),
    )


# --- filters and scripts that must not be set any more, though stored ones stay in force: a release may
# find that an expression is a mistake, or costs more than the proxy can bear


def check_stated(config: SubscriptionDefaults, before: SubscriptionDefaults | None = None) -> None:
    """Raise CallerError for a filter or script that must not be set any more, unless `before` had the
    same."""
    if before is None or config.sql != before.sql:
        check_sql(config.sql)
    if config.actions and (before is None or _script_settings(config) != _script_settings(before)):
        _check_script(config)


def _script_settings(config: SubscriptionDefaults) -> tuple[object, ...]:
    return config.actions, config.push.script


def _check_script(config: SubscriptionDefaults) -> None:
    from proxy_consumer.push.chain import find_error_before_pull  # CEL is loaded where actions are used

    error = find_error_before_pull(config.actions, config.push)
    if error is not None:
        raise CallerError(error)
