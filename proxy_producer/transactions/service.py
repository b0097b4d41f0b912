"""Transactions: the transaction service of one producer proxy: the shards that it owns, and its calls.

It creates the half topic and the op topic at the first prepare. If they exist already, it joins the group as
soon as other proxies can reach this one (`advertise`); nothing runs before. Each second it reads what other
proxies appended, offers the checks that are due, and claims shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from backend.completion import Completion
from backend.ownership.owner import QueueOwner
from backend.port import Join
from backend.records import Bounds, ProgressView, QueueRef
from ddmq_client.idl.codes import Code, TransactionAction, TransactionOutcome
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import (
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
)
from ddmq_rpc.api import Call
from proxy_producer.admission import DRAINING
from proxy_producer.config import ProducerConfig
from proxy_producer.core.refusals import SendRefusal, illegal, refusal
from proxy_producer.delay.context import DelayLevels
from proxy_producer.flow import Flow, SweepTimer
from proxy_producer.topics import InternalTopic
from proxy_producer.transactions.asking import COUNT_MAX, IDL, POLL_BYTES_MAX, POLLS_MAX
from proxy_producer.transactions.codec import shard_of
from proxy_producer.transactions.context import TransactionContext, TransactionCounts, TransactionTopics
from proxy_producer.transactions.core.clock import SteadyClock
from proxy_producer.transactions.deciding import OwnedShard, TransactionDecider
from proxy_producer.transactions.ends import EndContext, PendingEnd
from proxy_producer.transactions.gathered import GatheredCommits
from proxy_producer.transactions.held import HeldShard
from proxy_producer.transactions.left_overs import LeftOvers
from proxy_producer.transactions.legal import legal_group, legal_id
from proxy_producer.transactions.owners import Owners
from proxy_producer.transactions.polls import Polls
from proxy_producer.transactions.reading import acks_of

TICK_S, TICKS_PER_RUN = 0.1, 10  # polls expire within a tenth of a second; all other work runs each second
RUNS_PER_TRIM = 30  # runs between two trims of finished records from the log
POLL_MS_MAX = 30_000
ACTIONS = {int(action): action for action in TransactionAction}
GROUPS_MAX = 1_000
TOPIC_KEYS = (f"topic/{HALF_TOPIC}", f"topic/{OP_TOPIC}")


class OwnerWaiter(Protocol):
    """A call that waits until its shard has an owner."""

    def retry(self) -> None:
        """Check again whether the shard has an owner."""


class Transactions(QueueOwner[OwnedShard]):
    """The transaction service of one producer proxy: claims shards and serves their calls.

    `timer` drives its ticks.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        metrics: Registry,
        flow: Flow,
        levels: DelayLevels,
        commands: InternalTopic,
        timer: SweepTimer,
    ) -> None:
        backend = self.backend = flow.backend
        super().__init__(backend, clock.monotonic)
        self.flow = flow
        self.counts = TransactionCounts(metrics)
        self.topics = TransactionTopics(
            backend, config.transactions.shards, clock, config.timeout_ms_max / 1_000
        )
        self.owners = Owners(backend, clock)
        self.polls = Polls(self.owners, clock, self.counts, self.ready)
        self._ends = EndContext(flow, self.owners, self.counts, self.owned, lambda: self.shards)
        self._clock = clock
        self._timer = timer
        timeout_s = config.timeout_ms_max / 1_000
        commits = GatheredCommits(backend, lambda: clock.monotonic() + timeout_s)
        steady = SteadyClock(clock.wall_ms(), clock.monotonic())
        self.waiting: set[OwnerWaiter] = (
            set()
        )  # calls that wait for an owner; bounded like all calls in flight
        self._context = TransactionContext(
            backend, config, clock, self.counts, levels, commands, commits, self.reacquire,
            self.retry_waiting, steady,
        )  # fmt: skip
        self.now_ms = self._context.now_ms  # on the clock of checks and ages
        self._by_number: dict[int, OwnedShard] = {}
        self._shard_count = 0
        self.groups: dict[bytes, str] = {}  # legal producer groups that were named lately
        self._ticks = self._runs = 0
        self._begun = False
        self._unwatch: Callable[[], None] = backend.watch_settings(self._on_setting_changed, *TOPIC_KEYS)

    # --- beginning and ending

    def advertise(self, address: str) -> None:
        """Join the group under `address` (HOST:PORT), where other proxies reach this one, once the topics
        exist."""
        self.owners.address = address
        if self._claims.joined:
            self.reacquire()
        elif self.topics.shards:
            self.begin()

    def _on_setting_changed(self, key: str) -> None:
        """Join the group if another process has created the topics."""
        if key in TOPIC_KEYS and self.owners.address and not self._begun and self.topics.shards:
            self.begin()

    def begin(self) -> None:
        """Start the timer and claim shards, once the topics exist. May be called again."""
        if self._claims.joined:
            return
        if not self._begun and not self._stopping:
            self._begun = True
            self._timer.every(TICK_S, self.on_tick)
        self.acquire()

    def drain(self) -> Completion[None]:
        """Answer all polls and start nothing new; leave the group when the commits under way have ended."""
        if self._drained is None:
            self.polls.end(DRAINING)
        return self._drain()

    def close(self) -> None:
        self._unwatch()
        if self._begun:
            self._timer.stop()
        self.owners.close()
        super().close()

    # --- QueueOwner

    def _join_request(self) -> Join | None:
        """Return the join request for the group; None while the topics do not exist."""
        if not self.topics.shards:
            return None
        return Join(TRANSACTION_GROUP, HALF_TOPIC, address=self.owners.address)

    def _leave(self) -> None:
        super()._leave()
        self.owners.forget()

    def loaded(self, queue: QueueRef, epoch: int, view: ProgressView, bounds: Bounds) -> None:
        """Start a granted shard by reading it. No transaction is decided before that is done."""
        shard = HeldShard(self._context, queue, epoch, view.generation, acks_of(view, bounds), bounds.next)
        self._begin_work(OwnedShard(shard, TransactionDecider(shard), LeftOvers(shard)))
        shard.start()

    def _on_owned_changed(self, queue: QueueRef) -> None:
        owned = self._owned.get(queue)
        if owned is None:
            self._by_number.pop(queue.queue_id, None)
        else:
            self._by_number[queue.queue_id] = owned

    def lost(self, queues: Sequence[QueueRef]) -> None:
        super().lost(queues)
        self.owners.forget()

    # --- who owns what

    @property
    def shards(self) -> int:
        """Return the number of shards, which never changes; 0 while the topics do not exist."""
        if not self._shard_count:
            self._shard_count = self.topics.shards
        return self._shard_count

    def ready(self) -> Iterator[OwnedShard]:
        """Return the shards that this proxy owns and has read completely."""
        return (owned for owned in list(self._owned.values()) if owned.held.ready)

    def owned(self, number: int) -> OwnedShard | None:
        """Return the shard with this number if this proxy owns it and has read it completely, else None."""
        owned = self._by_number.get(number)
        return owned if owned is not None and owned.held.ready else None

    def owned_of(self, transaction: bytes) -> OwnedShard | None:
        """Return the shard of a transaction if this proxy owns it and has read it completely, else None."""
        return self.owned(shard_of(transaction, self.shards)) if self.shards else None

    def first_due(self) -> list[int]:
        """Return when the first transaction of each shard is asked about next, on the clock of `now_ms`."""
        due = (owned.held.core.first_due_ms for owned in self.ready())
        return [due_ms for due_ms in due if due_ms is not None]

    def retry_waiting(self) -> None:
        """Let the calls that wait for a shard's owner check again."""
        for waiter in list(self.waiting):
            waiter.retry()

    # --- calls

    def atomic_fault(self) -> SendRefusal | None:
        """Return a refusal if the engine has no atomic commits across topics, which transactions need, else
        None."""
        if self.backend.capabilities.atomic:
            return None
        what = f"the engine {self.backend.capabilities.engine} cannot commit several topics as one"
        return illegal("not_atomic", what, "allowed here: sends without a transaction")

    def group_fault(self, name: bytes | None) -> SendRefusal | None:
        """Return the refusal of an invalid producer group name. None: it is valid, and `groups` has it."""
        if name in self.groups:
            return None
        fault = legal_group(name)
        if fault is None and name is not None:
            if len(self.groups) >= GROUPS_MAX:
                self.groups.clear()
            self.groups[name] = name.decode()
        return fault

    def end(self, call: Call, deadline: float) -> None:
        """Handle a call of endTransaction."""
        request = call.args.request
        verdict = self._legal_end(call)
        if isinstance(verdict, SendRefusal):
            self.counts.count_refused(f"end: {verdict.reason}")
            call.reply(IDL.EndTransactionResponse(code=int(verdict.code), msg=verdict.text))
            return
        transaction, action = verdict
        group = self.groups[request.producerGroup]
        self.begin()
        PendingEnd(self._ends, call, transaction, group, action, deadline).start()

    def _legal_end(self, call: Call) -> SendRefusal | tuple[bytes, TransactionAction]:
        request = call.args.request
        fault = DRAINING if self.flow.draining else self.atomic_fault()
        if fault is not None:
            return fault
        transaction = legal_id(request.transactionId)
        fault = (
            transaction if isinstance(transaction, SendRefusal) else self.group_fault(request.producerGroup)
        )
        if fault is not None or isinstance(transaction, SendRefusal):
            return fault or DRAINING
        action = ACTIONS.get(request.action)
        if action is None:
            what = f"action is {request.action}"
            return illegal("action", what, "allowed: 8 (commit), 12 (rollback), 0 (not known yet)")
        return self.flow.bound_fault(call.frame_bytes) or (transaction, action)

    def poll(self, call: Call) -> None:
        """Handle a call of pollTransactionChecks."""
        request = call.args.request
        fault = self._poll_fault(call)
        if fault is not None:
            self.counts.count_refused(f"poll: {fault.reason}")
            call.reply(IDL.PollChecksResponse(code=int(fault.code), msg=fault.text, checks=[]))
            return
        self.begin()
        count = min(max(request.countMax or 1, 1), COUNT_MAX)
        timeout_s = min(max(request.timeout or 0, 0), POLL_MS_MAX) / 1_000
        group = request.producerGroup.decode()
        self.polls.poll(call, group, count, timeout_s, forwarded=request.forwardedBy is not None)

    def _poll_fault(self, call: Call) -> SendRefusal | None:
        request = call.args.request
        if self.flow.draining or self._stopping:
            return DRAINING
        if self.polls.held.full:
            what = f"{POLLS_MAX} polls for checks are held"
            return refusal(Code.BUSY, "polls_max", what, "that is the bound; poll again later")
        if call.frame_bytes > POLL_BYTES_MAX:
            what = f"a poll of {call.frame_bytes} bytes"
            return illegal("poll_long", what, f"allowed: at most {POLL_BYTES_MAX}, for it is held")
        return self.atomic_fault() or self.group_fault(request.producerGroup)

    # --- periodic work

    def on_tick(self) -> None:
        """Expire polls and retry waiting calls, every tenth of a second; run the periodic work every
        second."""
        self.polls.expire_polls()
        self.retry_waiting()
        self._ticks += 1
        if self._ticks % TICKS_PER_RUN == 0:
            self.run_periodic_work()

    def run_periodic_work(self) -> None:
        """Claim shards, read them, offer due checks, end overdue transactions, flush, and set gauges."""
        if self._stopping:
            return
        self.acquire()
        queues = [queue for queue, owned in self._owned.items() if owned.held.ready]
        if queues:
            self.backend.bounds(queues).then(lambda answer: self._on_bounds(queues, answer))
        for owned in list(self._owned.values()):
            if owned.held.stuck:
                owned.held.start()
        now_ms = self.now_ms()
        for owned in self.ready():
            core = owned.held.core
            core.offer_due(now_ms)
            for transaction, reason in core.overdue():
                owned.deciding.end(transaction, TransactionOutcome.DEAD_LETTER, None, reason)
            owned.deciding.retry_held_back()
            owned.held.flush()
            owned.left_overs.move_all()
        self.polls.serve_groups()
        self._set_gauges(self.backend.clock_ms())
        self._runs += 1
        if self._runs % RUNS_PER_TRIM == 0:
            for owned in self.ready():
                self.backend.trim(owned.held.queue, owned.held.core.position)

    def _on_bounds(self, queues: list[QueueRef], answer: Completion[list[Bounds | None]]) -> None:
        """Read the half messages that other proxies have appended to owned shards."""
        if answer.error is not None:
            return
        for queue, bounds in zip(queues, answer.value, strict=True):
            owned = self._owned.get(queue)
            if owned is not None and bounds is not None and owned.held.ready:
                owned.held.core.raise_known_end(bounds.next)
                owned.held.when_read(-1, lambda error: None)

    def _set_gauges(self, now_ms: int) -> None:
        cores = [owned.held.core for owned in self._owned.values()]
        self.counts.open.value = sum(len(core.open) for core in cores)
        oldest = [core.oldest_ms for core in cores if core.oldest_ms is not None]
        self.counts.oldest_ms.value = max(now_ms - min(oldest), 0) if oldest else 0
