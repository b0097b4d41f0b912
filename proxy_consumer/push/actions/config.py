"""The actions that a subscription may name, and their settings, one frozen dataclass each: `PushConfig`.

Paths are those of order keys ($.order.id). Everything here stands in the settings of a subscription, so it
is plain data: text, numbers, tuples, mappings from text to text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from ddmq_common.config import rules

CONTEXT_FIELDS = ("TOPIC", "GROUP", "OFFSET", "QID", "SOURCE", "MSG_KEY", "TOKEN", "PROPERTIES")
MIB = 1 << 20
MARKERS = (
    "Async",
    "NonBlockAsync",
)  # where DDMQ begins to apply order keys; here they apply from the read on
STEPS = ("Json", "Script", "Groovy", "Transit", "QueryParams", "FormParams", "FormParams2")
PUSH_SINKS = ("AsyncHttp", "Redis", "File")
PULL_SINKS = ("PullServer", "LowLevel")
SINKS = PULL_SINKS + PUSH_SINKS
ALL_ACTIONS = MARKERS + STEPS + SINKS
REFUSED = {
    "Hdfs": "use File, or a consumer of your own that writes to HDFS",
    "Hbase": "use AsyncHttp to a service in front of it, or a consumer of your own that writes to HBase",
}


@dataclass(frozen=True, slots=True)
class FormConfig:
    """FormParams and FormParams2: the context fields that follow the parameters, in this order.

    `token_key`: appended to the message key before the MD5 of carrera_token.
    """

    append_context: tuple[str, ...] = field(default=CONTEXT_FIELDS, metadata=rules(choices=CONTEXT_FIELDS))
    token_key: str = field(default="", metadata=rules(secret=True))


@dataclass(frozen=True, slots=True)
class ScriptConfig:
    """Script (old name: Groovy): CEL expressions.

    `filter`: only messages for which it is exactly true pass. `transform`: the new JSON. `on_script_error`:
    fail (a failed job, retried) or filter (the message is done). `body_bytes_max`: a longer body is a script
    error.
    """

    filter: str = ""
    transform: str = ""
    on_script_error: str = field(default="fail", metadata=rules(choices=("fail", "filter")))
    body_bytes_max: int = field(default=256 << 10, metadata=rules(low=1, high=4 * MIB))


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The sink AsyncHttp.

    `urls`: one is chosen per request. `max_retry`: how often a request is repeated after an error (anything
    but status 200), 1 s × 2ⁿ apart, −1 = for ever; then the message becomes a dead letter. `timeout_ms`: of
    one whole request. `connections_max`: open connections per host; further requests wait.
    `response_bytes_max`: a longer response is an error. `allow_callback`: whether a message may name its own
    URL. `signing_key`: requests carry the header Ddmq-Signature, from which the receiver can verify sender
    and time.
    """

    urls: tuple[str, ...] = field(default=(), metadata=rules(urls=True))
    method: str = field(default="POST", metadata=rules(choices=("POST", "GET")))
    timeout_ms: int = field(default=5_000, metadata=rules(low=1, high=600_000))
    max_retry: int = field(default=16, metadata=rules(low=-1, high=1_000_000))
    connections_max: int = field(default=128, metadata=rules(low=1, high=10_000))
    response_bytes_max: int = field(default=MIB, metadata=rules(low=1, high=64 * MIB))
    allow_callback: bool = True
    signing_key: str = field(default="", metadata=rules(secret=True))


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """The sink Redis.

    `hosts`: HOST:PORT, one at random per message. `commands`: lists of text, the command name first. An
    argument that begins with `$` is a path into the JSON; `{…}` inside an argument is replaced: {key}, {tag},
    {topic}, {body} or a path such as {$.id}.
    """

    hosts: tuple[str, ...] = ()
    password: str = field(default="", metadata=rules(secret=True))
    timeout_ms: int = field(default=5_000, metadata=rules(low=1, high=600_000))
    connections_max: int = field(default=16, metadata=rules(low=1, high=1_000))
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class FileConfig:
    """The sink File.

    `name`: the file's name, from {topic}, {group} and {date} (UTC); never a path. `content`: record (one JSON
    object per line) or body (the body alone). At `rotate_bytes` or after `rotate_ms` a file is closed and a
    new one is opened.
    """

    name: str = "{topic}-{date}"
    content: str = field(default="record", metadata=rules(choices=("record", "body")))
    rotate_bytes: int = field(default=256 * MIB, metadata=rules(low=1024, high=1 << 40))
    rotate_ms: int = field(default=86_400_000, metadata=rules(low=1_000, high=30 * 86_400_000))


@dataclass(frozen=True, slots=True)
class PushConfig:
    """The settings of all actions; those of actions outside the chain have no effect.

    `transit`: target path ← source path; the source of the target `$` is the object that the others are added
    to. `query_params`: name ← path.
    """

    transit: Mapping[str, str] = field(default_factory=dict)
    query_params: Mapping[str, str] = field(default_factory=dict)
    form: FormConfig = FormConfig()
    script: ScriptConfig = ScriptConfig()
    http: HttpConfig = HttpConfig()
    redis: RedisConfig = RedisConfig()
    file: FileConfig = FileConfig()


def unknown_action_text(name: str) -> str:
    """Return the error text for a name that is not an action, with what to use instead."""
    if name in REFUSED:
        return f"action {name!r} is not built here; {REFUSED[name]}"
    close = get_close_matches(name, ALL_ACTIONS, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"known are: {', '.join(ALL_ACTIONS)}"
    return f"action {name!r} is unknown; {hint}"
