"""The verdict on one try of a sink, and the interface of a sink."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, Protocol

from proxy_consumer.push.actions.job import ActionJob


class VerdictKind(Enum):
    """`AGAIN` keeps the message with the runner, `FAIL` gives it back to the retry rules."""

    DONE = "done"
    AGAIN = "again"
    FAIL = "failed"
    GIVE_UP = "given up"


class Verdict(NamedTuple):
    """`again_at`: monotonic seconds, with AGAIN."""

    kind: VerdictKind
    error: str = ""
    again_at: float = 0.0


DONE = Verdict(VerdictKind.DONE)


class Pushed:
    """One message at a runner. `queue`: the queue it is from, which is the runner's affair.

    `requests`: tries of the sink so far, over all deliveries that this proxy knows of; `errors`: those
    among them that count for a sink's own retries; `first`: where its turn among several targets began;
    `slot`: when its turn among those who wait for a permit has come.
    """

    __slots__ = ("errors", "first", "job", "lease_id", "offset", "queue", "requests", "slot")

    def __init__(self, job: ActionJob, queue: Any, offset: int, lease_id: int, attempt: int) -> None:
        self.job = job
        self.queue = queue
        self.offset = offset
        self.lease_id = lease_id
        self.requests = attempt - 1
        self.errors = 0
        self.first = -1
        self.slot: float | None = None


class Sink(Protocol):
    """The end of a push chain. Called in a greenlet of its own per message; may wait, never blocks the
    hub."""

    @property
    def fault(self) -> str | None:
        """Return why the sink may not be used at this proxy as configured; its messages stay where they
        are."""

    def push(self, pushed: Pushed) -> Verdict:
        """One try. Never raises for what a receiver or a message does."""

    def close(self) -> None:
        """Close what is open: no message comes any more, and none is under way."""
