"""The settings of a subscription as one table: command line, admin API, help and documentation.

Names, types, bounds and defaults are those of SubscriptionDefaults; here are only the words for people.
A test holds that every field has them.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.filters.message_filters import parse_tags

WORDS: dict[str, tuple[str, str]] = {
    # name: (what stands behind the option, what it is)
    "ack_timeout_ms": ("N", "How long a delivery may stay unanswered; then another client gets the message."),
    "concurrency": ("N", "Unanswered deliveries at once, at each proxy."),
    "retrying_max": (
        "N",
        "Messages that wait for a retry, at each proxy; with so many nothing new is delivered.",
    ),
    "in_flight_bytes_max": (
        "BYTES",
        "Bytes of unanswered deliveries, at each proxy; may be written as 100MiB.",
    ),
    "batch_max": ("N", "Messages in one answer to a pull."),
    "ack_span_max": ("N", "From the lowest unfinished message of a queue to the newest delivered one."),
    "rate_max": ("N", "Deliveries per second by each proxy; 0: no limit."),
    "retry_intervals_ms": (
        "LIST",
        "Waits after the first, second … failure, as 100,150,300; a last -1 repeats the one before for ever; "
        "a leading -1 or '' means no quick retry.",
    ),
    "max_timeout_redeliveries": (
        "N",
        "How often a message is redelivered after an ack timeout; -1: for ever.",
    ),
    "retry_steps": ("N", "Without an order key: later deliveries, 10 s to 2 h apart; 0: none."),
    "order_key": (
        "QID|KEY|'$.path'",
        "Which messages stay in order: '' none, QID those of a queue, KEY those of a message key, or a "
        "JSONPath into the body.",
    ),
    "order_scope": (
        "SCOPE",
        "Where a key is in order: in the whole group, a topic or a queue; '': group. QID is always queue.",
    ),
    "chain_batch": (
        "N",
        "Consecutive messages of one key in one answer; above 1 the client must handle them one by one.",
    ),
    "ordered_interval_ms": ("N", "With an order key: the wait between deliveries after the quick retries."),
    "ordered_deliveries_max": (
        "N",
        "With an order key: the number of deliveries before a dead letter; -1: no end, the key stays "
        "blocked.",
    ),
    "on_dead_letter": (
        "dead_letter|park",
        "With an order key, when a message has used up its deliveries. dead_letter: it is moved to the dead "
        "letters, the next of its key follows; park: it stays the first of its key, and nothing of the key "
        "is delivered until `ddmq group replay` or `skip`.",
    ),
    "tags": ("EXPR", "Deliver only these tags: 'created || paid'; '*' means all."),
    "sql": ("EXPR", "Deliver only messages that match this SQL92 expression on properties, TAGS and KEYS."),
    "pressure_traffic": ("", "Deliver messages marked isPressureTraffic."),
    "start": ("first|last|TIME", "Where the queues start that exist when the subscription is created."),
    "model": (
        "MODEL",
        "clustering: each message to one client; broadcasting: every instance gets all messages.",
    ),
    "assignment": ("KIND", "How queues are assigned to several proxies."),
    "actions": (
        "LIST",
        "Actions for each message, the sink last: Json,Script,PullServer; '': clients pull it unchanged.",
    ),
    "push": (
        "JSON",
        "Settings of the actions as in proxy_consumer.yaml: '{\"http\": {\"urls\": [\"http://…\"]}}'.",
    ),
    "trace_one_in": ("N", "Trace one message in N, for `ddmq message --story`; 0: none."),
    "handover_wait_ms": ("N", "How long ordered queues wait for the leases of a proxy that was killed."),
}  # fmt: skip


class Setting(NamedTuple):
    """A setting of a group or topic. `kind`: number, numbers, words, flag, object or text; without `choices`,
    any value of the kind is allowed."""

    name: str
    kind: str
    metavar: str
    what: str
    default: Any
    low: Any
    high: Any
    choices: tuple[str, ...]

    @property
    def option(self) -> str:
        """Return the name of the setting on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """Return the allowed values in words; empty if the text of `what` names them."""
        if self.choices:
            return ", ".join(choice or "''" for choice in self.choices)
        if self.low is None:
            return ""
        return f"{self.low:,} to {self.high:,}"

    @property
    def help(self) -> str:
        """Return the text for the help: what the setting means, which values are allowed, and the program's
        default."""
        facts = [self.allowed, "" if self.kind == "object" else f"default: {format_value(self.default)}"]
        text = "; ".join(fact for fact in facts if fact)
        return f"{self.what}  [{text}]" if text else self.what


def format_value(value: Any) -> str:
    """Format a value in the form in which the command line accepts it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "''"
    return "''" if value == "" else str(value)


def list_differences(name: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (name, old value, new value) for each difference. A setting with parts is compared part by part:
    push.http.urls, not the whole of push."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        yield name, format_value(before), format_value(after)
        return
    for part in [*before, *(part for part in after if part not in before)]:
        if before.get(part) != after.get(part):
            yield from list_differences(f"{name}.{part}", before.get(part), after.get(part))


def _kind_of(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "numbers" if typing.get_args(hint)[0] is int else "words"
    if dataclasses.is_dataclass(hint):
        return "object"
    hint = next((arg for arg in typing.get_args(hint) if arg is not type(None)), hint)
    return {bool: "flag", int: "number"}.get(hint, "text")


def list_settings(config: type[Any], words: Mapping[str, tuple[str, str]]) -> tuple[Setting, ...]:
    """Return the settings of a configuration class with their bounds. `words`: name → what stands behind the
    option, and what the setting is."""
    hints = typing.get_type_hints(config)
    rows = []
    for field in dataclasses.fields(config):
        metavar, what = words[field.name]
        rules = field.metadata
        choices = tuple(rules.get("choices") or ())
        bounds = (rules.get("min"), rules.get("max"), choices)
        default = getattr(config(), field.name)
        rows.append(Setting(field.name, _kind_of(hints[field.name]), metavar, what, default, *bounds))
    return tuple(rows)


TABLE: tuple[Setting, ...] = list_settings(SubscriptionDefaults, WORDS)
BY_NAME = {setting.name: setting for setting in TABLE}


def describe_filter(tags: str, sql: str) -> str | None:
    """Return the filter of a subscription as text; None if it selects all messages."""
    return sql or (None if parse_tags(tags) is None else tags)
