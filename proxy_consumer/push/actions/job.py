"""One message on its way through a chain, and how an action ends.

Actions change the job in place; only Transit and Script put a new JSON into it, the stored body stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from ddmq_common.delivery import Content
from proxy_consumer.push.actions.work import Work

_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Absent:
    """The type of ABSENT: no JSON was parsed, or a path leads nowhere."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class MessagePlace(NamedTuple):
    """Where the message stands, as its consumer is told. `source`: RMQ or KAFKA."""

    topic: str
    group: str
    qid: str
    offset: int
    source: str = "RMQ"


NOWHERE = MessagePlace("", "", "", -1)


class Ending(Enum):
    """How an action, or a whole chain, ended."""

    CONTINUE = "continue"
    FINISH = "finish"
    FAIL = "fail"
    ASYNCHRONIZED = "asynchronized"


class ActionOutcome(NamedTuple):
    """`reason`: why a job failed, or (FINISH) what finished it early."""

    ending: Ending
    reason: str = ""


CONTINUE = ActionOutcome(Ending.CONTINUE)
ASYNCHRONIZED = ActionOutcome(Ending.ASYNCHRONIZED)


def finish(reason: str) -> ActionOutcome:
    """The message is done here and goes no further."""
    return ActionOutcome(Ending.FINISH, reason)


def fail(reason: str) -> ActionOutcome:
    """A failed job, retried like any other."""
    return ActionOutcome(Ending.FAIL, reason)


class ActionJob:
    """Key and tag are empty when absent. `json` is ABSENT until Json has parsed the body.

    `params`, `query`: what the form and the URL are made of, in order; a value None has no `=`.
    `script_failed`: a script error was met, whatever became of the job. `work`: what its paths may do yet.
    """

    __slots__ = (
        "body",
        "json",
        "key",
        "params",
        "place",
        "properties",
        "query",
        "script_failed",
        "tag",
        "work",
    )

    def __init__(
        self,
        key: bytes,
        tag: bytes,
        body: bytes,
        properties: Mapping[bytes, bytes],
        place: MessagePlace = NOWHERE,
    ) -> None:
        self.key = key
        self.tag = tag
        self.body = body
        self.properties = properties
        self.place = place
        self.json: Any = ABSENT
        self.params: list[tuple[str, str | None]] = []
        self.query: list[tuple[str, str]] = []
        self.script_failed = False
        self.work = Work(len(body))

    def text(self) -> str:
        """What the sinks write: the current JSON, compact, or the body as `readable` has it."""
        return readable(self.body) if self.json is ABSENT else compact(self.json)

    def properties_text(self) -> dict[str, str]:
        """The properties as text."""
        return {readable(name): readable(value) for name, value in self.properties.items()}


def job_of(content: Content, place: MessagePlace = NOWHERE) -> ActionJob:
    """A stored message at the start of its chain."""
    return ActionJob(content.key, content.tag, content.value, content.properties, place)


def readable(raw: bytes) -> str:
    """UTF-8, with U+FFFD for what is none."""
    return raw.decode("utf-8", "replace")


def compact(value: Any) -> str:
    """JSON text without blanks, nulls kept, numbers as they came."""
    return _ENCODER.encode(value).decode()


def plain(value: Any) -> str:
    """A value inside a form, a URL or a command: text and numbers plain, others as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    return compact(value)
