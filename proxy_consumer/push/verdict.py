"""The verdict on one attempt of a sink, and the interface of a sink."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, Protocol

from proxy_consumer.push.actions.job import ActionJob


class VerdictKind(Enum):
    """The next step for a message after an attempt to push it to a sink.

    After RETRY the runner repeats the attempt, after FAIL the retry rules apply.
    """

    DONE = "done"
    RETRY = "again"
    FAIL = "failed"
    GIVE_UP = "given up"


class Verdict(NamedTuple):
    """The outcome of one attempt to push a message to a sink.

    `retry_at`: the time of the next attempt in monotonic seconds, with RETRY.
    """

    kind: VerdictKind
    error: str = ""
    retry_at: float = 0.0


DONE = Verdict(VerdictKind.DONE)


class Pushed:
    """One message at a runner.

    `queue`: its queue, used only by the runner. `requests`: attempts of the sink so far, over all deliveries
    that this proxy knows of; `errors`: those that count for the sink's own retries; `first`: the index at
    which its choice among several targets began; `slot`: when it may be sent, while it waits for a permit.
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
    """The end of a push chain. It is called in a separate greenlet per message, may wait, and never blocks
    the hub."""

    @property
    def config_error(self) -> str | None:
        """The reason why the sink cannot be used at this proxy, so that its messages stay in their queues;
        else None."""

    def push(self, pushed: Pushed) -> Verdict:
        """Make one attempt to send the message. Never raises because of a receiver or a message."""

    def close(self) -> None:
        """Release all resources; called when no message is or will be pushed."""
