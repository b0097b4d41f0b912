"""One message on its way through a chain, what its paths may do, and how an action ends.

Actions change the job in place; only Transit and Script put a new JSON into it, the stored body stays.
What the paths of one message look through and bring to light is bounded for all of them together: a path is
cheap; a hundred of them into a body of megabytes, each bringing all of it, are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from ddmq_common.delivery import Content
from proxy_consumer.order_keys.canonical import TooMuchWork

VALUES_MAX = 32_768  # looked through by paths that are not plain
RESULT_BYTES_MAX = 8 << 20  # found by all paths, beside twice the body
_SCALAR_BYTES = 8
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Work:
    """The remaining work allowance of one message."""

    __slots__ = ("_bytes_left", "_bytes_max", "_values_left")

    def __init__(self, body_bytes: int = 0) -> None:
        self._values_left = VALUES_MAX
        self._bytes_left = self._bytes_max = RESULT_BYTES_MAX + 2 * body_bytes

    def count_values(self, values: int) -> None:
        """Count values that are looked through. Raises TooMuchWork."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooMuchWork(f"all paths together look through more than {VALUES_MAX} values")

    def count_match(self, value: Any) -> None:
        """Count a value that a path led to. Raises TooMuchWork."""
        self.count_bytes(_size_of(value))

    def count_bytes(self, size: int) -> None:
        """Count bytes that go into what leaves. Raises TooMuchWork."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooMuchWork(f"all paths together find more than {self._bytes_max} bytes")


def _size_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict | list):
        return len(_ENCODER.encode(value))
    return _SCALAR_BYTES


class Absent:
    """The type of ABSENT: no JSON was parsed, or a path leads nowhere."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class MessagePlace(NamedTuple):
    """The position of a message, as consumers know it. `source`: RMQ or KAFKA."""

    topic: str
    group: str
    qid: str
    offset: int
    source: str = "RMQ"


NOWHERE = MessagePlace("", "", "", -1)


class Ending(Enum):
    """The end of an action, or of a whole chain."""

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


def finish_job(reason: str) -> ActionOutcome:
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

    def text_for_sink(self) -> str:
        """Return what the sinks write: the current JSON, compact, or the body as readable text."""
        return readable_text(self.body) if self.json is ABSENT else compact_json(self.json)

    def properties_text(self) -> dict[str, str]:
        """The properties as text."""
        return {readable_text(name): readable_text(value) for name, value in self.properties.items()}


def job_of(content: Content, place: MessagePlace = NOWHERE) -> ActionJob:
    """A stored message at the start of its chain."""
    return ActionJob(content.key, content.tag, content.value, content.properties, place)


def readable_text(raw: bytes) -> str:
    """UTF-8, with U+FFFD for what is none."""
    return raw.decode("utf-8", "replace")


def compact_json(value: Any) -> str:
    """JSON text without blanks, nulls kept, numbers as they came."""
    return _ENCODER.encode(value).decode()


def plain_value(value: Any) -> str:
    """A value inside a form, a URL or a command: text and numbers plain, others as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    return compact_json(value)
