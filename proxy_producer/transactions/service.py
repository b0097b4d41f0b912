"""Transactions: the transaction service of one producer proxy: the shards that it owns, and its calls.

It creates the half topic and the op topic at the first prepare. If they exist already, it joins the group as
soon as other proxies can reach this one (`advertise`); nothing runs before. Each second it reads what other
proxies appended, offers the checks that are due, and claims shards.
"""

from __future__ import annotations

from collections import Counter
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
from ddmq_common.security.callers import Caller
from ddmq_common.security.quotas import OverQuota
from ddmq_rpc.access import record_over
from ddmq_rpc.api import Call
from ddmq_rpc.links import ReadToken
from proxy_producer.admission import DRAINING
from proxy_producer.config import ProducerConfig
from proxy_producer.core.rejections import SendRejection, build_illegal_rejection, build_rejection
from proxy_producer.delay.context import DelayLevels
from proxy_producer.flow import Flow, SweepTimer
from proxy_producer.topics import InternalTopic
from proxy_producer.transactions.check_back import COUNT_MAX, IDL, POLL_BYTES_MAX, POLLS_MAX
from proxy_producer.transactions.claimed_shard import ClaimedShard
from proxy_producer.transactions.codec import shard_of
from proxy_producer.transactions.combined_commits import CombinedCommits
from proxy_producer.transactions.context import TransactionContext, TransactionCounts, TransactionTopics
from proxy_producer.transactions.core.clock import SteadyClock
from proxy_producer.transactions.deciding import OwnedShard, TransactionDecider
from proxy_producer.transactions.ends import EndContext, PendingEnd
from proxy_producer.transactions.left_overs import LeftOvers
from proxy_producer.transactions.legal import check_group_name, parse_transaction_id
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
        read_token: ReadToken | None = None,
    ) -> None:
        backend = self.backend = flow.backend
        super().__init__(backend, clock.monotonic)
        self.flow = flow
        self.counts = TransactionCounts(metrics)
        self.topics = TransactionTopics(
            backend, config.transactions.shards, clock, config.timeout_ms_max / 1_000
        )
        self.owners = Owners(backend, clock, read_token)
        self.polls = Polls(self.owners, clock, self.counts, self.list_ready_shards)
        self._ends = EndContext(flow, self.owners, self.counts, self.find_ready_shard, lambda: self.shards)
        self._clock = clock
        self._timer = timer
        timeout_s = config.timeout_ms_max / 1_000
        commits = CombinedCommits(backend, lambda: clock.monotonic() + timeout_s)
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
        """Start a granted shard by reading its queue. No transaction is decided before that is complete."""
        shard = ClaimedShard(self._context, queue, epoch, view.generation, acks_of(view, bounds), bounds.next)
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

    def list_ready_shards(self) -> Iterator[OwnedShard]:
        """Return the shards that this proxy owns and has read completely."""
        return (owned for owned in list(self._owned.values()) if owned.shard.ready)

    def find_ready_shard(self, number: int) -> OwnedShard | None:
        """Return the shard with this number if this proxy owns it and has read it completely, else None."""
        owned = self._by_number.get(number)
        return owned if owned is not None and owned.shard.ready else None

    def find_shard_of(self, transaction: bytes) -> OwnedShard | None:
        """Return the shard of a transaction if this proxy owns it and has read it completely, else None."""
        return self.find_ready_shard(shard_of(transaction, self.shards)) if self.shards else None

    def first_due(self) -> list[int]:
        """Return when the first transaction of each shard is asked about next, on the clock of `now_ms`."""
        due = (owned.shard.core.first_due_ms for owned in self.list_ready_shards())
        return [due_ms for due_ms in due if due_ms is not None]

    def retry_waiting(self) -> None:
        """Let the calls that wait for a shard's owner check again."""
        for waiter in list(self.waiting):
            waiter.retry()

    def count_senders(self) -> Counter[str]:
        """Return the number of open transactions of this proxy's shards by the identity that began them."""
        total = Counter[str]()
        for owned in self.list_ready_shards():
            total.update(owned.shard.core.by_sender)
        return total

    def check_quota(self, transaction: bytes, sender: Caller) -> OverQuota | None:
        """Return why an identity may not begin a transaction, or None. The shards of this proxy have their
        share of the quota."""
        allowed, owned = sender.usage.quotas.open_transactions, self.find_shard_of(transaction)
        if not allowed or owned is None or transaction in owned.shard.core.open:
            return None
        cores = [owned.shard.core for owned in self.list_ready_shards()]
        count, share = sum([core.by_sender[sender.name] for core in cores]), len(cores) / self.shards
        if count < allowed * share:
            return None
        what = f"{count} open transactions in {len(cores)} of {self.shards} shards"
        return sender.usage.reject_share("open_transactions", what, allowed)

    # --- calls

    def check_atomic_support(self) -> SendRejection | None:
        """Return a rejection if the engine has no atomic commits across topics, which transactions need, else
        None."""
        if self.backend.capabilities.atomic:
            return None
        what = f"the engine {self.backend.capabilities.engine} cannot commit several topics as one"
        return build_illegal_rejection("not_atomic", what, "allowed here: sends without a transaction")

    def check_group(self, name: bytes | None) -> SendRejection | None:
        """Return the rejection of an invalid producer group name. None: it is valid, and `groups` has it."""
        if name in self.groups:
            return None
        rejection = check_group_name(name)
        if rejection is None and name is not None:
            if len(self.groups) >= GROUPS_MAX:
                self.groups.clear()
            self.groups[name] = name.decode()
        return rejection

    def end(self, call: Call, deadline: float) -> None:
        """Handle a call of endTransaction."""
        request = call.args.request
        verdict = self._legal_end(call)
        if isinstance(verdict, SendRejection):
            self.counts.count_rejected(f"end: {verdict.reason}")
            call.reply(IDL.EndTransactionResponse(code=int(verdict.code), msg=verdict.text))
            return
        transaction, action = verdict
        group = self.groups[request.producerGroup]
        self.begin()
        PendingEnd(self._ends, call, transaction, group, action, deadline).start()

    def _legal_end(self, call: Call) -> SendRejection | tuple[bytes, TransactionAction]:
        request = call.args.request
        rejection = DRAINING if self.flow.draining else self.check_atomic_support()
        if rejection is not None:
            return rejection
        transaction = parse_transaction_id(request.transactionId)
        rejection = (
            transaction if isinstance(transaction, SendRejection) else self.check_group(request.producerGroup)
        )
        if rejection is not None or isinstance(transaction, SendRejection):
            return rejection or DRAINING
        action = ACTIONS.get(request.action)
        if action is None:
            what = f"action is {request.action}"
            return build_illegal_rejection(
                "action", what, "allowed: 8 (commit), 12 (rollback), 0 (not known yet)"
            )
        return self.flow.check_bounds(call.frame_bytes) or (transaction, action)

    def poll(self, call: Call) -> None:
        """Handle a call of pollTransactionChecks."""
        request = call.args.request
        rejection = self._check_poll(call)
        if rejection is not None:
            self.counts.count_rejected(f"poll: {rejection.reason}")
            call.reply(IDL.PollChecksResponse(code=int(rejection.code), msg=rejection.text, checks=[]))
            return
        self.begin()
        count = min(max(request.countMax or 1, 1), COUNT_MAX)
        timeout_s = min(max(request.timeout or 0, 0), POLL_MS_MAX) / 1_000
        group = request.producerGroup.decode()
        self.polls.poll(call, group, count, timeout_s, forwarded=request.forwardedBy is not None)

    def _check_poll(self, call: Call) -> SendRejection | None:
        request = call.args.request
        if self.flow.draining or self._stopping:
            return DRAINING
        if self.polls.waiting.full:
            what = f"{POLLS_MAX} polls for checks are held"
            return build_rejection(Code.BUSY, "polls_max", what, "that is the bound; poll again later")
        over = None if call.caller is None else call.caller.usage.check_waiting()
        if over is not None:
            record_over(call, over)
            return SendRejection(Code.BUSY, "quota", over)
        if call.frame_bytes > POLL_BYTES_MAX:
            what = f"a poll of {call.frame_bytes} bytes"
            return build_illegal_rejection(
                "poll_long", what, f"allowed: at most {POLL_BYTES_MAX}, for it is held"
            )
        return self.check_atomic_support() or self.check_group(request.producerGroup)

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
        queues = [queue for queue, owned in self._owned.items() if owned.shard.ready]
        if queues:
            self.backend.bounds(queues).then(lambda answer: self._on_bounds(queues, answer))
        for owned in list(self._owned.values()):
            if owned.shard.stuck:
                owned.shard.start()
        now_ms = self.now_ms()
        for owned in self.list_ready_shards():
            core = owned.shard.core
            core.offer_due(now_ms)
            for transaction, reason in core.take_overdue():
                owned.deciding.end(transaction, TransactionOutcome.DEAD_LETTER, None, reason)
            owned.deciding.retry_postponed()
            owned.shard.flush()
            owned.left_overs.move_all()
        self.polls.serve_groups()
        self._set_gauges(self.backend.clock_ms())
        self._runs += 1
        if self._runs % RUNS_PER_TRIM == 0:
            for owned in self.list_ready_shards():
                self.backend.trim(owned.shard.queue, owned.shard.core.position)

    def _on_bounds(self, queues: list[QueueRef], answer: Completion[list[Bounds | None]]) -> None:
        """Read the half messages that other proxies have appended to owned shards."""
        if answer.error is not None:
            return
        for queue, bounds in zip(queues, answer.value, strict=True):
            owned = self._owned.get(queue)
            if owned is not None and bounds is not None and owned.shard.ready:
                owned.shard.core.raise_observed_end(bounds.next)
                owned.shard.when_read(-1, lambda error: None)

    def _set_gauges(self, now_ms: int) -> None:
        cores = [owned.shard.core for owned in self._owned.values()]
        self.counts.open.value = sum(len(core.open) for core in cores)
        oldest = [core.oldest_ms for core in cores if core.oldest_ms is not None]
        self.counts.oldest_ms.value = max(now_ms - min(oldest), 0) if oldest else 0
