"""The records that admin clients return, frozen; the settings that they take, as a request body.

Times are datetimes in UTC; the number of a queue is its `queue_id`. A field is None, or empty, where the
server does not state it: listings state less than the answer about one topic or group. Fields that a newer
server adds are skipped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from ddmq_client.admin.setting_checks import check_group_settings, check_topic_settings
from ddmq_client.delays import epoch_ms, to_datetime
from ddmq_client.errors import AdminError

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRange:
    """The messages that one queue of a topic retains: offsets `[min_offset, next_offset)`."""

    queue_id: int
    min_offset: int
    next_offset: int
    messages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic and its settings. Listings do not set `by_queue`, `trace_one_in` and what follows it.

    `hold_delays`: no delayed message of the topic fires, since `delays_held_since`.
    """

    name: str
    queues: int
    durability: str
    readable: bool
    writable: bool
    delay: str
    delay_dialects: tuple[str, ...]
    source: str  # "log", or the file that declares it
    internal: bool
    body_bytes_max: int | None = None
    messages: int | None = None  # retained now
    trace_one_in: int | None = None
    hold_delays: bool | None = None
    delays_held_since: datetime | None = None
    by_queue: tuple[QueueRange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """The progress of a group on one queue. `holder`: the proxy that delivers it, "host:port"."""

    queue_id: int
    committed: int
    next_offset: int
    lag: int
    in_flight: int
    retrying: int
    holder: str | None = None
    lag_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """A group's subscription to one topic, with its lag. Only `get_group` sets the last six fields."""

    group: str
    topic: str
    lag: int
    in_flight: int
    retrying: int
    order_key: str = ""
    dead_letters: int = 0  # open ones of the whole group
    waiting_pulls: int = 0
    retry_waiting: int | None = None  # messages on the retry path
    retry_lag: int | None = None  # of these, due
    lag_age_s: float | None = None
    consumed: bool | None = None  # False: messages wait, and no client takes them
    delivered_per_s: float | None = None
    acked_per_s: float | None = None
    unfinished: int | None = None  # the lag without finished and deleted messages
    arriving_per_s: float | None = None
    finished_per_s: float | None = None
    drain_s: float | None = None  # until none is unfinished, at these rates
    why: str | None = None  # the cause of unfinished messages, as in docs/operating-groups.md
    paused: bool = False
    paused_since: datetime | None = None
    order_scope: str | None = None
    filter: str | None = None
    source: str | None = None  # "log", or the file that declares it
    set_here: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    queues: tuple[QueueLag, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDescription:
    """A client that consumes for a group at the proxy that answered."""

    client_id: str
    address: str
    since: datetime | None = None
    idle_s: float
    topics: tuple[str, ...]
    in_flight: int
    connected: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDescription:
    """An order key whose first message is unfinished and blocks the messages after it.

    `key` is JSON, as `ddmq group keys` shows it: pass it to park_key, skip_key and replay_key. `state` is for
    instance "retrying", "in flight" or "parked". `waiting` messages are behind the first one; `has_more`: at
    least. `client` has the first message until `lease_ends_at`. `outcome` is set by these three methods.
    """

    key: str
    topic: str
    queue_id: int
    offset: int
    attempts: int
    state: str
    error: str
    waiting: int
    has_more: bool = False
    reason: str = ""
    since: datetime | None = None
    client: str = ""
    address: str = ""
    leased_at: datetime | None = None
    lease_ends_at: datetime | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """The outcome of parking, skipping or replaying a key.

    `was_parked`: whether the key was parked before. `heads`: the first message of the key in each scope of
    the order, with its `outcome`; empty if none is at this proxy.
    """

    group: str
    key: str
    action: str
    was_parked: bool
    heads: tuple[KeyDescription, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A consumer group with its subscriptions, its clients at this proxy and its blocked keys.

    `blocked_keys_error`: why `blocked_keys` may lack some, "" if it is complete.
    """

    name: str
    source: str
    created_at: datetime | None = None
    waiting_pulls: int = 0
    dead_letters: int = 0
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    clients: tuple[ClientDescription, ...] = ()
    blocked_keys: tuple[KeyDescription, ...] = ()
    blocked_keys_error: str = ""
    created: bool | None = None  # of create_group: the group is new
    subscribed: tuple[str, ...] = ()  # the topics that are new to it
    notes: tuple[str, ...] = ()  # of create_group: texts to show


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """A setting of a subscription before and after a change."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """The effect of changing a subscription: it was `created`, or its settings differ.

    `notes` are texts to show.
    """

    group: str
    topic: str
    created: bool
    settings: Mapping[str, Any]
    changed: tuple[SettingChange, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOffset:
    """A group's offset on one queue. `finished_above`: finished messages beyond the committed offset."""

    topic: str
    queue_id: int
    min_offset: int
    committed: int
    next_offset: int
    lag: int
    finished_above: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReset:
    """The effect of a reset on one queue.

    `again`: the number of finished messages that will be delivered again. `passed_over`: the number of
    messages that will never be delivered.
    """

    queue_id: int
    before: int
    after: int
    again: int
    passed_over: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """The effect of a reset; with `dry_run`, the effect that it would have."""

    group: str
    topic: str
    target: str
    dry_run: bool
    again: int
    passed_over: int
    queues: tuple[QueueReset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterCount:
    """The number of dead letters of a group. `open`: neither resent nor purged; `stored`: all."""

    group: str
    topic: str
    open: int
    stored: int
    oldest_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterDescription:
    """An open dead letter: its location, reason and origin.

    `queue_id` and `offset`: its location in the dead-letter topic. `topic`, `topic_queue_id`, `topic_offset`:
    its origin. `preview`: the beginning of its body.
    """

    queue_id: int
    offset: int
    message_id: str
    key: str = ""
    tags: str = ""
    reason: str = ""
    error: str = ""
    topic: str = ""
    topic_queue_id: int | None = None
    topic_offset: int | None = None
    attempts: int
    resent: int
    body_bytes: int
    preview: str
    properties: Mapping[str, str] = field(default_factory=dict)
    died_at: datetime | None = None
    born_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersResent:
    """The numbers of dead letters that were resent, by topic, and that were not, by reason.

    With `dry_run`, these are the numbers that a resend would have.
    """

    group: str
    dry_run: bool
    to_topic: bool
    resent: Mapping[str, int]
    not_sent: Mapping[str, int]

    @property
    def resent_total(self) -> int:
        """The number of all dead letters that were resent."""
        return sum(self.resent.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """A delayed message that is not due yet.

    `repeats`: a description of its repetition, "" if it is delivered once. `get_delay` sets `properties` and
    `body`, `list_delays` the `preview` of the body.
    """

    delay_id: str
    topic: str
    due_at: datetime | None = None
    key: str = ""
    tags: str = ""
    occurrence: int = 0
    repeats: str = ""
    message_id: str = ""
    born_at: datetime | None = None
    body_bytes: int = 0
    preview: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_held: bool = False  # it does not fire until it is released
    error: str = ""  # the stored message is damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayState:
    """The state of a delayed message: "pending", "fired", "cancelled", "cancelled before it was known", "dead
    letter" or "unknown". `at`: when it was fired or cancelled. `message`: while it is pending."""

    uuid: str
    state: str
    at: datetime | None = None
    message: DelayedMessage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayCount:
    """The number of delayed messages that are not due yet.

    With `exact` False there may be more than were counted.
    """

    count: int
    exact: bool
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that the server has stored. `due_at`: the (first) due time of a delayed message.

    A delayed message has a `delay_id` instead of a queue, an offset and a message id; a message at a delay
    level has only a message id. `duplicate`: a message with this idempotency key was stored before, perhaps
    with another body (`body_differs`).
    """

    topic: str
    queue_id: int | None = None
    offset: int | None = None
    message_id: str | None = None
    delay_id: str | None = None
    due_at: datetime | None = None
    duplicate: bool = False
    body_differs: bool = False


_KEYS: Mapping[str, Mapping[str, str]] = {  # record → field → key of the row, where they differ
    "QueueRange": {"queue_id": "queue", "min_offset": "min", "next_offset": "next"},
    "TopicDescription": {"name": "topic"},
    "QueueLag": {"queue_id": "queue", "next_offset": "next"},
    "SubscriptionDescription": {"waiting_pulls": "waiters"},
    "KeyDescription": {"has_more": "more", "lease_ends_at": "until_ms"},
    "KeyChange": {"was_parked": "parked"},
    "GroupDescription": {"name": "group", "waiting_pulls": "waiters", "dead_letters": "dead_letters_open"},
    "SettingChange": {"name": "key"},
    "QueueOffset": {"queue_id": "queue", "min_offset": "min", "next_offset": "next"},
    "QueueReset": {"queue_id": "queue", "before": "from", "after": "to"},
    "OffsetReset": {"target": "to"},
    "DeadLetterCount": {"open": "letters"},
    "DeadLetterDescription": {
        "queue_id": "queue",
        "message_id": "id",
        "topic_queue_id": "topic_queue",
        "died_at": "time_ms",
    },
    "DeadLettersResent": {"not_sent": "kept"},
    "DelayedMessage": {"delay_id": "id", "is_held": "held"},
    "SentMessage": {"queue_id": "queue", "message_id": "id"},
}


class _Field(NamedTuple):
    name: str
    key: str  # of the server's row
    convert: Callable[[Any], Any] | None
    is_required: bool


@lru_cache(maxsize=64)
def _fields_of(kind: type[Any]) -> tuple[_Field, ...]:
    hints = get_type_hints(kind)
    keys = _KEYS.get(kind.__name__, {})
    return tuple(
        _Field(
            each.name,
            keys.get(each.name, _default_key(each.name, hints[each.name])),
            _converter_of(hints[each.name]),
            each.default is MISSING and each.default_factory is MISSING,
        )
        for each in dataclasses.fields(kind)
    )


def _default_key(name: str, hint: Any) -> str:
    """Return the key of a field in the answers: its name; for a time, its name with the unit."""
    return f"{name.removesuffix('_at')}_ms" if datetime in get_args(hint) else name


def _converter_of(hint: Any) -> Callable[[Any], Any] | None:
    if datetime in get_args(hint):
        return lambda ms: to_datetime(ms) if ms else None
    if get_origin(hint) is tuple:
        kind: type[Any] = get_args(hint)[0]
        return partial(read_rows, kind) if kind.__name__ in globals() else tuple
    return MappingProxyType if get_origin(hint) is Mapping else None


def read_row(kind: type[R], row: Any) -> R:
    """Convert a row of an answer into a record of type `kind`. Raises AdminError if a field is missing."""
    record: Any = kind
    if not isinstance(row, Mapping):
        raise AdminError(f"the answer has {_truncate_text(row)!r} in place of a {kind.__name__}")
    values = {}
    for each in _fields_of(record):
        value = row.get(each.key)
        if value is not None:
            values[each.name] = value if each.convert is None else each.convert(value)
        elif each.is_required:
            if each.key not in row:
                what = f"the answer about a {kind.__name__} lacks {each.key!r}"
                raise AdminError(f"{what}; is the server of another release?")
            values[each.name] = None
    return kind(**values)


def read_rows(kind: type[R], rows: Any) -> tuple[R, ...]:
    """Convert the rows of an answer into records of type `kind`. Raises AdminError."""
    if not isinstance(rows, list):
        raise AdminError(f"the answer has {_truncate_text(rows)!r} in place of a list")
    return tuple(read_row(kind, row) for row in rows)


def _truncate_text(value: Any) -> str:
    try:
        return str(value)[:80]
    except RecursionError:  # it is nested as deeply as can be decoded
        return type(value).__name__


def topic_settings_body(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a topic into a request body. Raises OptionError for another system's names."""
    check_topic_settings(settings)
    return {name: _as_json(value) for name, value in settings.items()}


def group_settings_body(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings of a group into a request body; a datetime becomes epoch milliseconds as text.

    Raises OptionError for another system's names, a datetime without a time zone, and KEY or QID in another
    case.
    """
    check_group_settings(settings)
    return {
        name: str(epoch_ms(name, value)) if isinstance(value, datetime) else _as_json(value)
        for name, value in settings.items()
    }


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
