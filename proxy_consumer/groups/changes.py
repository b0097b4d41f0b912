"""Changes the settings of subscriptions: by the command line, and by conf/groups.yaml.

A stored setting holds only the values that the subscription sets itself; all others follow `defaults` of
proxy_consumer.yaml, also when those change. Settings that a file owns are changed in the file. A change moves
no offsets, not even `start`: it defines where queues start when a subscription is created.

`paused` is set like a setting, but it is a state: files and defaults do not have it, so that an operator can
pause a subscription that a file owns, and a reload of the file does not resume it.
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
PAUSED = "paused"


class SubscriptionChange(NamedTuple):
    """The result of a change: the settings before (None: it was created) and after, and those it sets
    itself.

    `paused_before_ms`, `paused_ms`: since when it was paused before, and is now; 0: it was or is not.
    """

    before: SubscriptionDefaults | None
    after: SubscriptionDefaults
    overrides: Mapping[str, Any]
    paused_before_ms: int = 0
    paused_ms: int = 0


class _Request(NamedTuple):
    """A requested change. `paused`: None if it stays as it is."""

    settings: Mapping[str, Any]
    unset: Sequence[str]
    paused: bool | None

    def paused_since(self, paused_ms: int, now_ms: int) -> int:
        """Return since when the subscription is paused after the change; `paused_ms`: since when it was
        before."""
        if self.paused is None:
            return paused_ms
        return (paused_ms or now_ms) if self.paused else 0


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

        `paused` may be among them. Raises CallerError (also for settings that a file owns, except `paused`)
        or TryLaterError.
        """
        request = _read_request(group, topic, settings, unset)
        location, now_ms = subscription_location(group, topic), self._runtime.clock.wall_ms()
        stored = self.stored_settings(group, topic)
        if stored is None:
            changed = build_overlay(SubscriptionDefaults, request.settings, location)
            _check_size(group, topic, changed.values)
            return self._make(
                group,
                topic,
                changed,
                request.paused_since(0, now_ms),
                lambda: self.change_settings(group, topic, settings, unset),
            )
        before = self._settings_before(stored)
        paused_ms = request.paused_since(stored.paused_ms, now_ms)
        if request.paused is not None and not (request.settings or request.unset):
            stored_change = self._store_alone(group, topic, stored._replace(paused_ms=paused_ms))
            change = SubscriptionChange(before, before, stored.overrides, stored.paused_ms, paused_ms)
            return followed(stored_change, lambda: succeeded(change))
        if stored.source != SOURCE_LOG:
            raise CallerError(ownership_text(group, topic, stored.source))
        retained = {name: value for name, value in stored.overrides.items() if name not in request.unset}
        changed = build_overlay(SubscriptionDefaults, retained | dict(request.settings), location)
        _check_size(group, topic, changed.values)
        after = changed.apply_to(self._runtime.config.defaults)
        check_stated(after, before)
        stored_change = self._store_alone(
            group, topic, stored._replace(overrides=changed.values, paused_ms=paused_ms)
        )
        change = SubscriptionChange(before, after, changed.values, stored.paused_ms, paused_ms)
        return followed(stored_change, lambda: succeeded(change))

    def _make(
        self,
        group: str,
        topic: str,
        changed: Overlay[SubscriptionDefaults],
        paused_ms: int,
        change: Callable[[], Completion[SubscriptionChange]],
    ) -> Completion[SubscriptionChange]:
        """Create the subscription; call `change` if a client's pull created it at the same time with other
        settings."""
        config = changed.apply_to(self._runtime.config.defaults)

        def on_created() -> Completion[SubscriptionChange]:
            stored = self.stored_settings(group, topic)
            if stored is None or (
                stored.overrides == _as_stored(changed.values) and stored.paused_ms == paused_ms
            ):
                return succeeded(SubscriptionChange(None, config, changed.values, 0, paused_ms))
            return change()

        creation = self._directory.subscribe(
            group, topic, config, overrides=changed.values, paused_ms=paused_ms
        )[1]
        return followed(creation, on_created)

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
        value = encode_subscription(*subscription)
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
        return self._store_settings(group, topic, stored._replace(overrides=declared.values, source=source))

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


def _read_request(group: str, topic: str, settings: Mapping[str, Any], unset: Sequence[str]) -> _Request:
    """Separate `paused` from the settings. Raises CallerError for a value that is not allowed, or a name in
    `unset` that is none."""
    _check_unset(settings, unset)
    paused = settings.get(PAUSED, False if PAUSED in unset else None)
    if PAUSED in settings and not isinstance(paused, bool):
        raise CallerError(f"group {group}, topic {topic}: paused is {paused!r}; allowed: true, false")
    others = {name: value for name, value in settings.items() if name != PAUSED}
    return _Request(others, [name for name in unset if name != PAUSED], paused)


def _check_unset(settings: Mapping[str, Any], unset: Sequence[str]) -> None:
    setting_names = (*SETTINGS, PAUSED)
    for name in unset:
        if name not in setting_names:
            close = difflib.get_close_matches(name, setting_names, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(setting_names)}"
            raise CallerError(f"unset: {name!r} is not a setting; {hint}")
        if name in settings:
            raise CallerError(f"unset: {name!r} is set in the same request; do one of the two")


def _as_stored(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    return stored_subscription("", encode_subscription(overrides, 0, SOURCE_LOG)).overrides
