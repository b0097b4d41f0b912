"""Changes the settings of subscriptions: by the command line, and by conf/groups.yaml.

A stored setting holds only the values that the subscription sets itself; all others follow `defaults` of
proxy_consumer.yaml, also when those change. Settings that a file owns are changed in the file. A change moves
no offsets, not even `start`: it defines where queues start when a subscription is created.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from backend.completion import Completion, all_of, followed, succeeded
from backend.records import CommitBatch
from ddmq_common.config import ConfigLocation, Overlay, build_overlay
from ddmq_common.errors import CallerError, ConfigError, TryLaterError
from proxy_consumer.config import GroupsFile, SubscriptionDefaults
from proxy_consumer.groups.directory import Directory, check_stated
from proxy_consumer.groups.group import (
    SOURCE_LOG,
    SUBSCRIPTION_PREFIX,
    StoredSubscription,
    encode_subscription,
    stored_subscription,
    subscription_key,
)
from proxy_consumer.runtime import Runtime, log

SETTINGS_BYTES_MAX = (
    64 << 10
)  # stored size of one subscription's own settings, which every proxy holds in memory
SETTINGS = tuple(field.name for field in dataclasses.fields(SubscriptionDefaults))


class SubscriptionChange(NamedTuple):
    """The result of a change: the settings before (None: it was created) and after, and those it sets
    itself."""

    before: SubscriptionDefaults | None
    after: SubscriptionDefaults
    overrides: Mapping[str, Any]


def subscription_location(group: str, topic: str) -> ConfigLocation:
    """Return the name of a subscription for error texts."""
    return ConfigLocation(f"group {group}, topic {topic}", "")


class Changes:
    """Writes the settings of subscriptions; watchers of the settings apply them."""

    def __init__(self, runtime: Runtime, directory: Directory) -> None:
        self._runtime = runtime
        self._directory = directory
        self._busy: set[str] = set()  # settings being changed: a second change would undo the first

    def change_settings(
        self, group: str, topic: str, settings: Mapping[str, Any], unset: Sequence[str] = ()
    ) -> Completion[SubscriptionChange]:
        """Set these values and reset `unset` to the defaults; creates the subscription if it is missing.

        Raises CallerError (also for settings that a file owns) or TryLaterError.
        """
        _check_unset(settings, unset)
        stored = self.stored_settings(group, topic)
        if stored is None:
            changed = build_overlay(SubscriptionDefaults, settings, subscription_location(group, topic))
            _check_size(group, topic, changed.values)
            return self._make(
                group, topic, changed, lambda: self.change_settings(group, topic, settings, unset)
            )
        if stored.source != SOURCE_LOG:
            raise CallerError(ownership_text(group, topic, stored.source))
        retained = {name: value for name, value in stored.overrides.items() if name not in unset}
        before = self._settings_before(stored)
        changed = build_overlay(
            SubscriptionDefaults, retained | dict(settings), subscription_location(group, topic)
        )
        _check_size(group, topic, changed.values)
        after = changed.apply_to(self._runtime.config.defaults)
        check_stated(after, before)
        stored_change = self._store_alone(group, topic, stored._replace(overrides=changed.values))
        return followed(stored_change, lambda: succeeded(SubscriptionChange(before, after, changed.values)))

    def _make(
        self,
        group: str,
        topic: str,
        changed: Overlay[SubscriptionDefaults],
        change: Callable[[], Completion[SubscriptionChange]],
    ) -> Completion[SubscriptionChange]:
        """Create the subscription; call `change` if a client's pull created it at the same time with other
        settings."""
        config = changed.apply_to(self._runtime.config.defaults)

        def on_created() -> Completion[SubscriptionChange]:
            stored = self.stored_settings(group, topic)
            if stored is None or stored.overrides == _as_stored(changed.values):
                return succeeded(SubscriptionChange(None, config, changed.values))
            return change()

        return followed(
            self._directory.subscribe(group, topic, config, overrides=changed.values)[1], on_created
        )

    def _settings_before(self, stored: StoredSubscription) -> SubscriptionDefaults:
        """Return the settings in force; the defaults if the stored ones contradict the present defaults."""
        defaults = self._runtime.config.defaults
        try:
            return build_overlay(
                SubscriptionDefaults, stored.overrides, ConfigLocation("stored", "")
            ).apply_to(defaults)
        except ConfigError:
            return defaults

    def stored_settings(self, group: str, topic: str) -> StoredSubscription | None:
        """Return the values that a subscription sets itself; None if there is no such subscription."""
        key = subscription_key(group, topic)
        value = self._runtime.backend.setting(key)
        return None if value is None else stored_subscription(key, value)

    def _store_alone(self, group: str, topic: str, subscription: StoredSubscription) -> Completion[Any]:
        key = subscription_key(group, topic)
        if key in self._busy:
            raise TryLaterError(f"group {group!r} on topic {topic!r} is being changed just now; do it again")
        self._busy.add(key)
        commit = self._store_settings(group, topic, subscription)
        commit.then(lambda _: self._busy.discard(key))
        return commit

    def _store_settings(self, group: str, topic: str, subscription: StoredSubscription) -> Completion[Any]:
        runtime = self._runtime
        value = encode_subscription(subscription.overrides, subscription.created_ms, subscription.source)
        batch = CommitBatch(settings={subscription_key(group, topic): value})
        return runtime.backend.commit(batch, runtime.commit_deadline())

    # --- conf/groups.yaml

    def declare_groups(self, file: GroupsFile, source: str) -> Completion[None]:
        """Create or update every subscription of the file, and release those that it no longer names.

        A released subscription keeps its settings and may be changed by the command line.
        """
        commits = [
            self._declare_one(group, topic, declared, source)
            for group, entry in file.groups.items()
            for topic, declared in entry.topics.items()
        ]
        subscriptions = {(group, topic) for group, entry in file.groups.items() for topic in entry.topics}
        commits += [
            self._release(group, topic, stored)
            for group, topic, stored in list(self._owned_by(source))
            if (group, topic) not in subscriptions
        ]
        return all_of(commits)

    def _declare_one(
        self, group: str, topic: str, declared: Overlay[SubscriptionDefaults], source: str
    ) -> Completion[Any]:
        config = declared.apply_to(self._runtime.config.defaults)
        stored = self.stored_settings(group, topic)
        if stored is None:
            creation = self._directory.subscribe(group, topic, config, source, declared.values)[1]
            return followed(creation, lambda: self._declare_after_race(group, topic, declared, source))
        was = build_overlay(SubscriptionDefaults, stored.overrides, subscription_location(group, topic))
        if was == declared and stored.source == source:
            return succeeded(None)
        check_stated(config, was.apply_to(self._runtime.config.defaults))
        return self._store_settings(
            group, topic, StoredSubscription(declared.values, stored.created_ms, source)
        )

    def _declare_after_race(
        self, group: str, topic: str, declared: Overlay[SubscriptionDefaults], source: str
    ) -> Completion[Any]:
        """Declare the subscription again, so that these settings win: a client's pull may have created it at
        the same time with other settings. Does nothing if it does not exist."""
        if self.stored_settings(group, topic) is None:
            return succeeded(None)
        return self._declare_one(group, topic, declared, source)

    def _release(self, group: str, topic: str, stored: StoredSubscription) -> Completion[Any]:
        facts = {"group": group, "topic": topic, "file": stored.source}
        log.info("subscription no longer in the file; `ddmq group set` may change it", extra=facts)
        return self._store_settings(group, topic, stored._replace(source=SOURCE_LOG))

    def _owned_by(self, source: str) -> Iterable[tuple[str, str, StoredSubscription]]:
        for key, value in self._runtime.backend.settings(SUBSCRIPTION_PREFIX).items():
            group, _, topic = key.removeprefix(SUBSCRIPTION_PREFIX).partition("/")
            stored = stored_subscription(key, value)
            if stored.source == source:
                yield group, topic, stored


def ownership_text(group: str, topic: str, source: str) -> str:
    """Return the error text for a change by the command line of a subscription that a file owns."""
    return (
        f"group {group!r} on topic {topic!r} is defined in {source} under groups.{group}.topics.{topic}; "
        "change it there and reload (SIGHUP)"
    )


def _check_size(group: str, topic: str, overrides: Mapping[str, Any]) -> None:
    size = len(encode_subscription(overrides, 0, SOURCE_LOG))
    if size > SETTINGS_BYTES_MAX:
        raise CallerError(
            f"group {group}, topic {topic}: its settings have {size} bytes; "
            f"allowed: at most {SETTINGS_BYTES_MAX}"
        )


def _check_unset(settings: Mapping[str, Any], unset: Sequence[str]) -> None:
    for name in unset:
        if name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(SETTINGS)}"
            raise CallerError(f"unset: {name!r} is not a setting; {hint}")
        if name in settings:
            raise CallerError(f"unset: {name!r} is set in the same request; do one of the two")


def _as_stored(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    return stored_subscription("", encode_subscription(overrides, 0, SOURCE_LOG)).overrides
