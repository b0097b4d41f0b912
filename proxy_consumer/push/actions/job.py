"""One message on its way through a chain, the bounds of its work, and the outcomes of an action.

Actions change the job in place; only Transit and Script replace its JSON, and the stored body stays. The work
of all paths of one message has a common bound: one path is cheap; a hundred paths into a body of megabytes,
each of which selects all of it, are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from ddmq_common.delivery import Content
from proxy_consumer.order_keys.canonical import TooMuchWork

VALUES_MAX = 32_768  # values visited by paths that are not plain
RESULT_BYTES_MAX = 8 << 20  # bytes that all paths may select, in addition to twice the body
_SCALAR_BYTES = 8
_ENCODER = msgspec.json.Encoder(decimal_format="number")


class Work:
    """A limit on the work that the paths of one message cause, counted down as they are evaluated."""

    __slots__ = ("_bytes_left", "_bytes_max", "_values_left")

    def __init__(self, body_bytes: int = 0) -> None:
        self._values_left = VALUES_MAX
        self._bytes_left = self._bytes_max = RESULT_BYTES_MAX + 2 * body_bytes

    def count_values(self, values: int) -> None:
        """Count values that paths of this message have visited. Raises TooMuchWork above the limit."""
        self._values_left -= values
        if self._values_left < 0:
            raise TooMuchWork(f"all paths together look through more than {VALUES_MAX} values")

    def count_match(self, value: Any) -> None:
        """Count the size of a value that a path selected. Raises TooMuchWork."""
        self.count_bytes(_size_of(value))

    def count_bytes(self, size: int) -> None:
        """Count bytes that paths of this message have selected. Raises TooMuchWork above the limit."""
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
    """The type of ABSENT: no JSON was parsed, or a path selects nothing."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class MessagePosition(NamedTuple):
    """The position of a message, as consumers see it. `source`: RMQ or KAFKA."""

    topic: str
    group: str
    qid: str
    offset: int
    source: str = "RMQ"


NOWHERE = MessagePosition("", "", "", -1)


class Ending(Enum):
    """The outcome of an action, or of a whole chain."""

    CONTINUE = "continue"
    FINISH = "finish"
    FAIL = "fail"
    ASYNCHRONIZED = "asynchronized"


class ActionOutcome(NamedTuple):
    """An outcome with its `reason`: why a job failed, or (FINISH) why it ended early."""

    ending: Ending
    reason: str = ""


CONTINUE = ActionOutcome(Ending.CONTINUE)
ASYNCHRONIZED = ActionOutcome(Ending.ASYNCHRONIZED)


def finish_job(reason: str) -> ActionOutcome:
    """Return the outcome of a message that is done before the end of its chain."""
    return ActionOutcome(Ending.FINISH, reason)


def fail(reason: str) -> ActionOutcome:
    """Return the outcome of a failed push job. It is retried like any other."""
    return ActionOutcome(Ending.FAIL, reason)


class ActionJob:
    """A message on its way through the actions of a push subscription.

    `key` and `tag` are empty if absent; `json` is ABSENT until Json has parsed the body.

    `params`, `query`: the parts of the form and of the URL, in order; a value None has no `=`.
    `script_failed`: a script error occurred, whatever the outcome. `work`: the work that its paths may still
    do.
    """

    __slots__ = (
        "body",
        "json",
        "key",
        "params",
        "position",
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
        position: MessagePosition = NOWHERE,
    ) -> None:
        self.key = key
        self.tag = tag
        self.body = body
        self.properties = properties
        self.position = position
        self.json: Any = ABSENT
        self.params: list[tuple[str, str | None]] = []
        self.query: list[tuple[str, str]] = []
        self.script_failed = False
        self.work = Work(len(body))

    def text_for_sink(self) -> str:
        """Return the text that sinks write: the current JSON, compact, or else the body as text."""
        return readable_text(self.body) if self.json is ABSENT else compact_json(self.json)

    def properties_text(self) -> dict[str, str]:
        """Return the properties as text."""
        return {readable_text(name): readable_text(value) for name, value in self.properties.items()}


def job_of(content: Content, position: MessagePosition = NOWHERE) -> ActionJob:
    """Build the job of a stored message at the start of its chain."""
    return ActionJob(content.key, content.tag, content.value, content.properties, position)


def readable_text(raw: bytes) -> str:
    """Decode UTF-8, with U+FFFD for invalid bytes."""
    return raw.decode("utf-8", "replace")


def compact_json(value: Any) -> str:
    """Encode a value as JSON without spaces; nulls are kept and numbers written as they were."""
    return _ENCODER.encode(value).decode()


def plain_value(value: Any) -> str:
    """Format a value for a form, a URL or a command: text and numbers plain, others as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return str(value)
    return compact_json(value)
