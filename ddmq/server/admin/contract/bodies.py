"""The bodies of changes. Those of settings of topics and groups are described by their own tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from ddmq.server.admin.contract.queries import TEXT_CHARS_MAX
from ddmq.server.config import TopicEntry
from ddmq.server.http.parameters import NUMBER_MAX, Body
from ddmq.settings import TABLE, Setting, list_settings
from ddmq_common.trace.sampling import ONE_IN_MAX

Flag = Annotated[bool, Meta(description="true, false")]
EpochMs = Annotated[
    Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(description="a time in epoch milliseconds")
]
DueMs = Annotated[
    Annotated[int, Meta(ge=0, le=253_402_300_799_999)] | None,
    Meta(description="a time in epoch milliseconds, at most the end of the year 9999"),
]
DurationMs = Annotated[
    Annotated[int, Meta(ge=0, le=10**15)] | None, Meta(description="milliseconds, 0 or more")
]
TimeoutMs = Annotated[
    Annotated[int, Meta(ge=1, le=10**9)] | None, Meta(description="milliseconds, 1 or more")
]
OptionalText = Annotated[str | None, Meta(description="a text")]
Offset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
QUEUE_MAX = (1 << 31) - 1


class OffsetResetBody(Body):
    """A reset of a group's offsets. `to`: "first", "last", an offset or a time; `queue`: null for all."""

    topic: Annotated[str, Meta(min_length=1, description="the name of a topic that the group consumes")]
    to: Annotated[str | int, Meta(description="first, last, an offset, or a time")]
    queue: Annotated[int | None, Meta(description="a queue number, or null for all")] = None
    dry_run: Flag = False


class KeyActionBody(Body):
    """An operator's action on a blocked key. `take_away`: a replay ends the lease of a client."""

    action: Annotated[Literal["park", "skip", "replay"], Meta(description="park, skip, replay")]
    key: Annotated[str, Meta(description="the key as text, as `ddmq group keys` shows it")]
    take_away: Flag = False


class DeadLetterResendBody(Body):
    """Which dead letters are sent again, and to whom. `cursor`: the one of an earlier answer."""

    all: Flag = False
    offsets: Annotated[list[Offset], Meta(description="a list of whole numbers of 0 or more")] = []
    reason: OptionalText = None
    topic: OptionalText = None
    since_ms: EpochMs = None
    to_topic: Flag = False
    dry_run: Flag = False
    cursor: Annotated[
        list[tuple[Offset, Offset, Offset]] | None,
        Meta(description="the cursor of an earlier answer, or null"),
    ] = None


class DeadLetterPurgeBody(Body):
    """Which dead letters are discarded: all, or those stored before a time."""

    all: Flag = False
    before_ms: EpochMs = None
    dry_run: Flag = False


class MessageSearchBody(Body):
    """Which messages of a topic are searched for: those that contain `text`, and match `sql`."""

    text: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        Meta(description="a text of 1 to 200 characters"),
    ] = None
    sql: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="an SQL filter, see docs/filters.md")
    ] = None
    from_ms: EpochMs = None
    to_ms: EpochMs = None
    count: Annotated[Annotated[int, Meta(ge=1, le=100)], Meta(description="1 to 100")] = 20
    after: Annotated[str | None, Meta(description="the `next` of an earlier answer")] = None


class LogCleanBody(Body):
    """Which segments of the log are deleted: those whose records were all stored before `before_ms`."""

    before_ms: Annotated[
        Annotated[int, Meta(ge=0, le=NUMBER_MAX)], Meta(description="a time in epoch milliseconds")
    ]
    dry_run: Flag = False


class TransactionEndBody(Body):
    """An operator's decision about an open transaction."""

    action: Annotated[Literal["commit", "rollback"], Meta(description="commit, rollback")]


class TokenCreateBody(Body):
    """A new token of an identity."""

    identity: Annotated[
        Annotated[str, Meta(min_length=1, max_length=100)], Meta(description="the name of an identity")
    ]
    name: Annotated[
        Annotated[str, Meta(max_length=100)], Meta(description="what the token is for: up to 100 characters")
    ] = ""
    expires_ms: Annotated[
        Annotated[int, Meta(ge=1, le=NUMBER_MAX)] | None,
        Meta(description="a time in epoch milliseconds, or null: it does not expire"),
    ] = None


class DelayBackupBody(Body):
    """A backup of the delay service. `shards` and `secret`: from a process that has begun the backup."""

    folder: Annotated[Any, Meta(description="the name of a new folder below backup_dir")] = None
    shards: Annotated[list[Offset] | None, Meta(description="a list of shard numbers")] = None
    secret: Annotated[Any, Meta(description="the secret of a backup that has begun")] = None


class MessageSendBody(Body):
    """A message to send. `shard_key`: a text, which is hashed, or the hash id itself."""

    topic: Annotated[str, Meta(description="the name of a topic")]
    body: OptionalText = None
    body_base64: Annotated[bytes | None, Meta(description="bytes in base64")] = None
    key: OptionalText = None
    tags: OptionalText = None
    properties: Annotated[dict[str, str] | None, Meta(description="a map of text to text")] = None
    queue: Annotated[Annotated[int, Meta(ge=0, le=QUEUE_MAX)] | None, Meta(description="a queue number")] = (
        None
    )
    shard_key: Annotated[
        str | Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None,
        Meta(description="a text, or a whole number of 64 bits"),
    ] = None
    idempotency_key: OptionalText = None
    delay_ms: DurationMs = None
    due_ms: DueMs = None
    cron: OptionalText = None
    zone: OptionalText = None
    every_ms: Annotated[
        Annotated[int, Meta(ge=1, le=10**15)] | None, Meta(description="milliseconds, 1 or more")
    ] = None
    times: Annotated[Annotated[int, Meta(ge=1, le=10**9)] | None, Meta(description="1 or more")] = None
    catch_up: Annotated[
        Literal["fire_once", "all", "skip"] | None, Meta(description="fire_once, all, skip")
    ] = None
    level: Annotated[int | None, Meta(description="the number of a delay level")] = None
    timeout_ms: TimeoutMs = None


class DelayChangeBody(Body):
    """An operator's change of a delayed message. `due_ms` or `delay_ms`: the new due time."""

    action: Annotated[
        Literal["cancel", "fire", "reschedule", "hold", "release"],
        Meta(description="cancel, fire, reschedule, hold, release"),
    ]
    due_ms: DueMs = None
    delay_ms: DurationMs = None
    timeout_ms: TimeoutMs = None


OPERATION_ACTIONS = {
    "dead_letters": ("resend", "purge"),
    "keys": ("park", "skip", "replay"),
    "delays": ("cancel", "fire", "reschedule", "hold", "release"),
    "retries": ("now", "dead_letter"),
}  # by kind
GroupName = Annotated[str, Meta(min_length=1, description="the name of a consumer group")]
FilterText = Annotated[
    Annotated[str, Meta(min_length=1, max_length=TEXT_CHARS_MAX)] | None,
    Meta(description=f"a text of 1 to {TEXT_CHARS_MAX} characters"),
]
RATE_MAX = 1_000_000


class OperationPlanBody(Body):
    """A plan of an operation on everything that matches `filter`, whose names depend on the kind. `to_topic`:
    for a resend; `due_ms` or `shift_ms`: for a reschedule. Without `dry_run`, it is started at once."""

    kind: Annotated[
        Literal["dead_letters", "keys", "delays", "retries"],
        Meta(description="dead_letters, keys, delays, retries"),
    ]
    action: Annotated[
        Literal[
            "resend", "purge", "park", "skip", "replay", "cancel", "fire", "reschedule", "hold", "release",
            "now", "dead_letter",
        ],
        Meta(
            description="resend, purge, park, skip, replay, cancel, fire, reschedule, hold, release, now, "
            "dead_letter"
        ),
    ]  # fmt: skip
    filter: Annotated[dict[str, Any], Meta(description="a map of names to values, as the kind allows")]
    dry_run: Flag = True
    to_topic: Flag = False
    due_ms: DueMs = None
    shift_ms: Annotated[
        Annotated[int, Meta(ge=-(10**15), le=10**15)] | None, Meta(description="milliseconds")
    ] = None


class OperationStartBody(Body):
    """A start of a planned operation. `rate`: at most so many items are changed per second."""

    token: Annotated[str, Meta(description="the token in the response to POST /operations")]
    rate: Annotated[
        Annotated[int, Meta(ge=1, le=RATE_MAX)] | None, Meta(description=f"1 to {RATE_MAX:,}, or null")
    ] = None


class DeadLetterChoiceBody(Body):
    """Which dead letters an operation changes, as `GET /dlq/GROUP` chooses them, or by offset."""

    group: GroupName
    offsets: Annotated[list[Offset], Meta(description="a list of whole numbers of 0 or more")] = []
    reason: OptionalText = None
    error: OptionalText = None
    text: FilterText = None
    topic: OptionalText = None
    since_ms: EpochMs = None
    until_ms: EpochMs = None


class KeyChoiceBody(Body):
    """Which blocked keys an operation changes, as `GET /keys` chooses them. `keys`: as `ddmq group keys`
    shows them."""

    group: GroupName
    keys: Annotated[list[str], Meta(description="a list of keys, as `ddmq group keys` shows them")] = []
    state: Annotated[
        Literal["retrying", "in flight", "parked"] | None, Meta(description="retrying, in flight, parked")
    ] = None
    error: OptionalText = None
    text: FilterText = None


class DelayChoiceBody(Body):
    """Which delayed messages an operation changes: by topic, key, due time and the time of their send. The
    ends of ranges are exclusive."""

    topic: OptionalText = None
    key: OptionalText = None
    from_ms: EpochMs = None
    to_ms: EpochMs = None
    born_from_ms: EpochMs = None
    born_to_ms: EpochMs = None


MessageId = Annotated[
    str, Meta(pattern="^[0-9a-f]+$", min_length=32, max_length=32, description="32 hexadecimal digits")
]
LevelNumber = Annotated[int, Meta(ge=1, le=1_000, description="the number of a delay level, from 1")]
RETRIES_MAX = 100  # in one request


class RetryChoiceBody(Body):
    """Which messages an operation takes from the retry path of a group: by id, topic, key, error class, text,
    delay level and due time. The end of the range is exclusive."""

    group: GroupName
    ids: Annotated[list[str], Meta(description="a list of message ids")] = []
    topic: OptionalText = None
    key: OptionalText = None
    error: OptionalText = None
    text: FilterText = None
    level: Annotated[LevelNumber | None, Meta(description="the number of a delay level, from 1")] = None
    from_ms: EpochMs = None
    to_ms: EpochMs = None


class RetryPosition(Body):
    """A message at a delay level: its `level_offset` and `id` in the response to `GET /retries`."""

    offset: Offset
    id: MessageId


class RetryChangeBody(Body):
    """A change of messages of a group that wait for a retry at one delay level. `now`: deliver them now."""

    group: GroupName
    action: Annotated[Literal["now", "dead_letter"], Meta(description="now, dead_letter")]
    level: LevelNumber
    messages: Annotated[
        list[RetryPosition],
        Meta(min_length=1, max_length=RETRIES_MAX, description=f"a list of 1 to {RETRIES_MAX} messages"),
    ]
    dry_run: Flag = False


@dataclass(frozen=True, eq=False)
class SettingsBody:
    """A body of settings, which its handler checks. `schema`: the JSON schema of its keys."""

    name: str
    schema: dict[str, Any]


SIZE_PATTERN = r"^[0-9]+\s*(KiB|MiB|GiB|TiB)$"  # of a size as text
_TYPES: dict[str, dict[str, Any]] = {
    "number": {"type": "integer"},
    "numbers": {"type": "array", "items": {"type": "integer"}},
    "words": {"type": "array", "items": {"type": "string"}},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "text": {"type": "string"},
}


def _settings_body(
    name: str, what: str, table: Iterable[Setting], others: dict[str, Any], required: tuple[str, ...] = ()
) -> SettingsBody:
    properties = {setting.name: _setting_schema(setting) for setting in table} | others
    schema = {"title": name, "description": what, "type": "object", "properties": properties}
    return SettingsBody(name, schema | {"required": list(required), "additionalProperties": False})


def _setting_schema(setting: Setting) -> dict[str, Any]:
    """Return the JSON schema of a setting. Bounds of a list apply to its items. Bounds of a size apply to a
    number, its pattern to a text."""
    schema = dict(_TYPES[setting.kind])
    bounds = {"minimum": setting.low, "maximum": setting.high, "enum": list(setting.choices) or None}
    stated = {name: value for name, value in bounds.items() if value is not None}
    if schema["type"] == "array":
        schema["items"] = schema["items"] | stated
    else:
        schema |= stated
    kinds = [schema["type"]]
    if setting.name.endswith("bytes_max"):
        kinds.append("string")
        schema["pattern"] = SIZE_PATTERN
    if setting.default is None:
        kinds.append("null")
    schema["type"] = kinds[0] if len(kinds) == 1 else kinds
    return schema | {"description": setting.what}


_TOPIC_WORDS = {
    "queues": "The number of queues; it can only grow.",
    "durability": "When a send is answered: after an fsync, after the write, or when replicated (Kafka).",
    "readable": "Whether groups may consume the topic.",
    "writable": "Whether clients may send to the topic.",
    "delay": "Which sends are accepted: all, only those without a delay, or only delayed ones.",
    "delay_dialects": "Dialects of delay properties that are accepted on plain sends.",
    "body_bytes_max": "The largest body, in bytes; null: as large as the log takes.",
    "replication_factor": "Kafka: how many brokers have a copy; only at creation.",
    "min_insync": "Kafka: how many brokers have a message before it is acknowledged.",
    "retention_ms": "Kafka: how long messages are kept; -1: without limit.",
}
_NAMES = {"type": "array", "items": {"type": "string"}}
_TRACE_ONE_IN = {
    "type": ["integer", "null"], "minimum": 0, "maximum": ONE_IN_MAX,
    "description": "trace one message in so many; 0: none; null: as it is",
}  # fmt: skip
_HOLD_DELAYS = {
    "type": ["boolean", "null"],
    "description": "true: no delayed message of the topic fires; null: as it is",
}
_CREATE = {"type": "boolean", "default": True, "description": "false: change the topic, which exists"}
TOPIC_SETTINGS = _settings_body(
    "TopicSettingsBody",
    "Settings of a topic that is created or changed.",
    list_settings(TopicEntry, {name: ("", what) for name, what in _TOPIC_WORDS.items()}),
    {"trace_one_in": _TRACE_ONE_IN, "hold_delays": _HOLD_DELAYS, "create": _CREATE},
)
_PAUSED = {
    "type": "boolean",
    "description": "Whether nothing is delivered, also of a subscription that a file declares.",
}
GROUP_SETTINGS = _settings_body(
    "GroupSettingsBody",
    "Topics to which a group is subscribed, with settings of the new subscriptions.",
    TABLE,
    {"topics": _NAMES | {"minItems": 1, "description": "names of topics"}, "paused": _PAUSED},
    ("topics",),
)
SUBSCRIPTION_SETTINGS = _settings_body(
    "SubscriptionSettingsBody",
    "Settings of a subscription that is created or changed.",
    TABLE,
    {"unset": _NAMES | {"description": "settings that return to their defaults"}, "paused": _PAUSED},
)
