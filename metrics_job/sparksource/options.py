"""The options of the format `ddmq`, checked once into frozen objects. Pure.

Spark lowers option names before a source sees them, so they are compared without regard to case. An
unknown name is rejected, and the error suggests the nearest allowed one. Options of Spark itself are ignored.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar, get_args


class SourceError(Exception):
    """The root of all errors that this format raises deliberately. Each text says what to do."""


class SourceOptionError(SourceError, ValueError):
    """An option, a column or a write mode is invalid."""


class DataLossError(SourceError):
    """Messages that should be read no longer exist."""


class WriteError(SourceError):
    """Messages could not be stored."""


SECURITY = ("tls", "ca", "certificate", "key", "serverName", "tokenFile")
READING = (
    "servers", "topic", "topics", "group", "startingOffsets", "endingOffsets", "maxMessagesPerTrigger",
    "maxMessagesPerPartition", "failOnDataLoss", "timeoutMs", *SECURITY,
)  # fmt: skip
WRITING = ("servers", "topic", "timeoutMs", "storeOnce", *SECURITY)
OF_SPARK = {"checkpointlocation", "queryname"}  # options that Spark itself reads
GROUP = "spark"
TIMEOUT_MS = 30_000
PARTITION_MESSAGES = 1_000_000
TIMEOUT_MS_MAX = 600_000

Edge = Literal["first", "last"]
StoreOnce = Literal["auto", "true", "false"]
Default = TypeVar("Default", int, None)


@dataclass(frozen=True, slots=True)
class Where:
    """A start or end position in every queue: an edge, a time (epoch ms), or offsets by topic and queue."""

    edge: Edge | None = None
    time_ms: int | None = None
    offsets: Mapping[str, Mapping[str, int | Edge]] | None = None


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """The TLS and the login of the driver and the executors. It has only paths, because Spark shows options
    in plans; each process reads the files for each connection.

    `tls` None: with TLS if a file for it is named, else as the environment says.
    """

    tls: bool | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    token_file: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. `start` None: the first message for a batch, the newest for a stream."""

    servers: str
    topics: tuple[str, ...]
    group: str
    start: Where | None
    end: Where | None
    trigger_messages: int | None
    partition_messages: int
    fail_on_loss: bool
    timeout_ms: int
    security: SecurityOptions = SecurityOptions()


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. `topic` None: every row names its own.

    `store_once`: whether rows get idempotency keys; auto: as long as the proxies accept them.
    """

    servers: str
    topic: str | None
    timeout_ms: int
    store_once: StoreOnce
    security: SecurityOptions = SecurityOptions()


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse and check the options of a read. Raises SourceOptionError, which names the invalid one."""
    texts = _check_names(options, READING, "reading")
    return ReadOptions(
        servers=_require_text(texts, "servers", "the consumer proxies, host:port with commas between them"),
        topics=_parse_topics(texts),
        group=texts.get("group", GROUP),
        start=_parse_where(texts, "startingOffsets"),
        end=_parse_where(texts, "endingOffsets"),
        trigger_messages=_parse_number(texts, "maxMessagesPerTrigger", None, 2**53),
        partition_messages=_parse_number(texts, "maxMessagesPerPartition", PARTITION_MESSAGES, 2**53),
        fail_on_loss=_parse_flag(texts, "failOnDataLoss"),
        timeout_ms=_parse_number(texts, "timeoutMs", TIMEOUT_MS, TIMEOUT_MS_MAX),
        security=_parse_security(texts),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse and check the options of a write. Raises SourceOptionError, which names the invalid one."""
    texts = _check_names(options, WRITING, "writing")
    return WriteOptions(
        servers=_require_text(texts, "servers", "the producer proxies, host:port with commas between them"),
        topic=texts.get("topic"),
        timeout_ms=_parse_number(texts, "timeoutMs", TIMEOUT_MS, TIMEOUT_MS_MAX),
        store_once=_store_once(texts.get("storeonce", "auto")),
        security=_parse_security(texts),
    )


def _parse_security(texts: Mapping[str, str]) -> SecurityOptions:
    paths = {name: texts.get(name.lower()) for name in ("ca", "certificate", "key", "serverName")}
    stated = next((name for name, text in paths.items() if text is not None), None)
    tls = _parse_flag(texts, "tls") if "tls" in texts else None if stated is None else True
    if stated is not None and not tls:
        raise SourceOptionError(f"format ddmq: option {stated} is for TLS, but option tls is false")
    if paths["key"] is not None and paths["certificate"] is None:
        raise SourceOptionError("format ddmq: option key is set and option certificate is not; allowed: both")
    return SecurityOptions(
        tls, paths["ca"], paths["certificate"], paths["key"], paths["serverName"], texts.get("tokenfile")
    )


def build_unknown_error(name: str, allowed_names: Iterable[str], what: str, use: str) -> SourceOptionError:
    """Build the error for an unknown name. It suggests the nearest of the allowed ones."""
    names = {each.lower(): each for each in allowed_names}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {names[close[0]]}?" if close else ""
    return SourceOptionError(
        f"format ddmq: {what} {name!r} is not known for {use}{hint} Known are: {', '.join(names.values())}"
    )


def _check_names(options: Mapping[str, str], allowed_names: Iterable[str], use: str) -> dict[str, str]:
    texts = {name.lower(): text for name, text in options.items() if name.lower() not in OF_SPARK}
    lowered = {name.lower() for name in allowed_names}
    for name in texts:
        if name not in lowered:
            raise build_unknown_error(name, allowed_names, "option", use)
    return texts


def _require_text(texts: Mapping[str, str], name: str, what: str) -> str:
    text = texts.get(name, "").strip()
    if not text:
        raise SourceOptionError(f"format ddmq: option {name} is missing: {what}")
    return text


def _parse_topics(texts: Mapping[str, str]) -> tuple[str, ...]:
    if ("topic" in texts) == ("topics" in texts):
        raise SourceOptionError(
            "format ddmq: give either option topic (one name) or option topics (several, with commas)"
        )
    topics = [texts["topic"]] if "topic" in texts else texts["topics"].split(",")
    names = tuple(dict.fromkeys(topic.strip() for topic in topics))
    if not all(names):
        raise SourceOptionError(f"format ddmq: option topics={texts.get('topics', '')!r} holds an empty name")
    return names


def _parse_where(texts: Mapping[str, str], name: str) -> Where | None:
    text = texts.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if text in ("first", "last"):
        return Where(edge="first" if text == "first" else "last")
    if text.startswith("{"):
        return Where(offsets=_parse_offsets(name, text))
    if re.fullmatch(r"\d{13}", text):
        return Where(time_ms=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SourceOptionError(
            f"format ddmq: option {name}={text!r}; allowed: first, last, a time with its zone "
            "(2026-01-31T08:00:00+01:00) or in epoch milliseconds (13 digits), or JSON "
            '{"TOPIC": {"0": OFFSET, "1": "first"}}'
        )
    return Where(time_ms=int(moment.timestamp() * 1000))


def _parse_offsets(name: str, text: str) -> Mapping[str, Mapping[str, int | Edge]]:
    try:
        tree = json.loads(text)
        return {topic: {str(int(q)): _parse_offset(at) for q, at in tree[topic].items()} for topic in tree}
    except (ValueError, TypeError, AttributeError) as error:
        raise SourceOptionError(
            f"format ddmq: option {name} is JSON, but not of the form "
            f'{{"TOPIC": {{"0": OFFSET, "1": "first"}}}}: {error}'
        ) from error


def _parse_offset(value: object) -> int | Edge:
    if value == "first":
        return "first"
    if value == "last":
        return "last"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise ValueError(f"{value!r} is no offset; allowed: 0 or more, first, last")


def _parse_number(texts: Mapping[str, str], name: str, default: Default, most: int) -> int | Default:
    text = texts.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise SourceOptionError(
            f"format ddmq: option {name}={text!r}; allowed: a whole number from 1 to {most}"
        )
    return int(text)


def _store_once(text: str) -> StoreOnce:
    for allowed in get_args(StoreOnce):
        if text.strip().lower() == allowed:
            store_once: StoreOnce = allowed
            return store_once
    raise SourceOptionError(f"format ddmq: option storeOnce={text!r}; allowed: auto, true, false")


def _parse_flag(texts: Mapping[str, str], name: str) -> bool:
    text = texts.get(name.lower(), "true").strip()
    if text.lower() not in ("true", "false"):
        raise SourceOptionError(f"format ddmq: option {name}={text!r}; allowed: true, false")
    return text.lower() == "true"
