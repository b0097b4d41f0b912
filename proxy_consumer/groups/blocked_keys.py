"""The head of a key's chain as operators see it: its position, its state, and the client that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import JobState, UpstreamJob
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.order.chains import Chain
from proxy_consumer.core.subscribed_queue import SubscribedQueue

REASON_OPERATOR = "operator"
READY = "ready"  # delivered to the next pull of the topic
IN_FLIGHT = "in flight"
PARKED = "parked"
STORING = "being acknowledged"  # finished; the next message follows when that is durable
DYING = "to the dead letters"
_STATES = {
    JobState.RECORDED: "retrying",
    JobState.RELEASED: "retrying",
    JobState.LEASED: IN_FLIGHT,
    JobState.WAITING: "retrying",
    JobState.READY: "retrying",
    JobState.PARKED: PARKED,
    JobState.EXHAUSTED: PARKED,
    JobState.SPENT: DYING,
}
STATES = (READY, IN_FLIGHT, _STATES[JobState.WAITING], PARKED, STORING, DYING)  # all of them


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """One key whose chain has an unfinished head, or one whose acknowledgement is being stored.

    `key`: its value as canonical JSON text. `topic`, `queue_id`, `offset`: the head. `since_ms`: epoch
    milliseconds of the first failure after the key's last acknowledgement, or else of the head's first
    delivery; 0 before it, or if it was before this proxy acquired the queue. `state`: "ready" (not delivered
    yet), "in flight", "retrying", "parked", "being acknowledged" or "to the dead letters". `reason`: why a
    parked key is parked: "operator", or the limit that the head has reached, "failed" or "timed-out".
    `error`: the last error that a client of this proxy reported. `waiting`: messages known to wait behind the
    head; `more`: there are more than those.

    While the head is in flight: `client` is the name that the client sent, "" for a DDMQ client; `address` is
    where it pulls from; both are "" if it got the message before this proxy acquired the queue. The lease was
    granted at `leased_ms` and ends at `until_ms` (epoch milliseconds); `extended`: the client has extended
    it.
    """

    key: str
    topic: str
    queue_id: int
    offset: int
    since_ms: int
    attempts: int
    state: str
    error: str
    waiting: int
    more: bool
    reason: str = ""
    client: str = ""
    address: str = ""
    leased_ms: int = 0
    until_ms: int = 0
    extended: bool = False


class Now:
    """One moment on both clocks. `at`: monotonic seconds; `wall_ms`: the same moment in epoch
    milliseconds."""

    def __init__(self, at: float, wall_ms: int) -> None:
        self.at = at
        self._wall_ms = wall_ms

    def wall_ms(self, at: float) -> int:
        """Convert a time in monotonic seconds to epoch milliseconds."""
        return self._wall_ms + int((at - self.at) * 1000)


class KeyHead:
    """The first job of a chain that is not durably finished, with its queue and lease."""

    __slots__ = ("chain", "job", "lease", "offset", "queue")

    def __init__(self, queue: SubscribedQueue, offset: int, chain: Chain) -> None:
        self.queue = queue
        self.offset = offset
        self.chain = chain
        self.job = queue.table.jobs.get(offset)
        self.lease = queue.leases.lease_of(offset)

    @property
    def is_finished(self) -> bool:
        """Whether the job is finished, and only the commit of that is awaited."""
        return self.queue.ack_map.is_finished(self.offset)

    @property
    def was_tried(self) -> bool:
        """Whether the job failed or timed out, or an operator parked its key or skipped it."""
        job = self.job
        return job is not None and (job.was_tried or job.state in (JobState.PARKED, JobState.SPENT))

    def blocked_since(self, now: float) -> float:
        """Return the monotonic seconds since when the key has been failing, or else of the head's first known
        delivery; `now` if there was none."""
        return self._known_since() or now

    def _known_since(self) -> float:
        """Return the same; 0 if it is not known."""
        since, lease = self._failing_since(), self.lease
        if lease is None:
            return since
        return min(since, lease.since) if since else lease.since

    def _failing_since(self) -> float:
        """Return the monotonic seconds since when the key, or else its head, has been failing; 0 if it is
        not."""
        stream, job = self.queue.stream, self.job
        failing = 0.0 if stream is None else stream.failing_since(self.chain)
        return failing or (0.0 if job is None else job.since)

    @property
    def is_failing(self) -> bool:
        """Whether a message of the key has failed after the key's last acknowledgement."""
        stream = self.queue.stream
        return stream is not None and stream.failing_since(self.chain) > 0

    def failing_since_ms(self, now: Now) -> int | None:
        """Return since when the key has been failing, across its heads, in epoch milliseconds; None if it is
        not failing, or if the failure was before this proxy acquired the queue."""
        since = self._failing_since()
        return now.wall_ms(since) if since else None

    @property
    def error(self) -> str:
        """The last error that a client reported, or why the job is retried or given up; "" if it is not."""
        job = self.job
        if job is None:
            return ""
        return job.error or ("" if _name_limit(job) else job.reason) or _explain_silence(job)

    def _since_ms(self, now: Now) -> int:
        """Return since when the key has been blocked, in epoch milliseconds; 0 if that is not known."""
        since = self._known_since()
        return now.wall_ms(since) if since else 0

    @property
    def shown_state(self) -> str:
        if self.lease is not None:
            return IN_FLIGHT
        if self.is_finished:
            return STORING
        return _STATES[self.job.state] if self.job is not None and self.was_tried else READY

    def as_blocked_key(self, now: Now, config: SubscriptionDefaults) -> BlockedKey:
        """Describe the head for operators."""
        chain, job, lease, ref = self.chain, self.job, self.lease, self.queue.ref
        state, reason = self.shown_state, "" if job is None else _name_limit(job)
        client, address = _name_client(lease, config)
        return BlockedKey(
            key=chain.key,
            topic=ref.topic,
            queue_id=ref.queue_id,
            offset=self.offset,
            since_ms=0 if state is READY else self._since_ms(now),
            attempts=self.queue.table.attempt_of(self.offset) - (0 if lease is not None else 1),
            state=state,
            error=self.error,
            waiting=len(chain.indexed),
            more=bool(chain.unindexed),
            reason=reason,
            client=client,
            address=address,
            leased_ms=0 if lease is None else now.wall_ms(lease.since),
            until_ms=0 if lease is None else now.wall_ms(lease.deadline),
            extended=lease is not None and lease.is_extended,
        )


def _name_client(lease: Lease | None, config: SubscriptionDefaults) -> tuple[str, str]:
    """Return the name and address of the client that holds a lease, "" where unknown."""
    if lease is None:
        return "", ""
    if lease.recipient is None:
        return (f"sink {config.actions[-1]}", "") if config.pushed else ("", "")
    return lease.recipient.name.decode("utf-8", "replace"), lease.recipient.address


def _explain_silence(job: UpstreamJob) -> str:
    """Return why a job is retried whose clients reported no error."""
    many = "" if job.timeouts == 1 else "s"
    return f"no answer within ack_timeout_ms, {job.timeouts} time{many}" if job.timeouts else ""


def _name_limit(job: UpstreamJob) -> str:
    """Return why a job is parked: "operator" or the limit it has reached; "" if it is not parked."""
    if job.state is JobState.EXHAUSTED:
        return job.reason
    return REASON_OPERATOR if job.state is JobState.PARKED else ""
