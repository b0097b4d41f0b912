"""ConsumerService: reads from the backend, serves Thrift. Names of the wire are translated here and in
answers.py.

A pull: the results that it carries are applied and made durable; then messages are taken under a lease; if
there are none it waits until there are, or its linger ends. `submit` carries results alone. `fetch` and
`ack`, for clients that keep their own offsets, are in fetches/.

Everything runs on the hub and nothing blocks. `tick` does the work that is due: lingers, lease deadlines,
retries; after `start` the heartbeat calls it, in tests the test does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from backend.completion import Completion, followed, succeeded
from backend.port import Backend
from backend.records import AppendResult, QueueRef
from backend.traces import TraceWriter
from ddmq_client.idl import consumer
from ddmq_common.clock import NEVER, Clock
from ddmq_common.config import Reloaded, merge_live_values
from ddmq_common.delays.levels import DEFAULT_LEVELS, Levels
from ddmq_common.errors import TryLaterError
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, Service
from ddmq_rpc.links import ReadToken
from proxy_consumer import answers
from proxy_consumer.config import LIVE_KEYS, ConsumerConfig, GroupsFile, SubscriptionDefaults
from proxy_consumer.fetches.service import Fetches
from proxy_consumer.groups import stats
from proxy_consumer.groups.changes import Changes, SubscriptionChange
from proxy_consumer.groups.consistency import Difference, GroupClient
from proxy_consumer.groups.directory import Directory
from proxy_consumer.groups.gauges import Gauges, own_states
from proxy_consumer.groups.group import SOURCE_LOG, StoredSubscription
from proxy_consumer.groups.key_loading import KeyLoading
from proxy_consumer.groups.ordering import GroupOrdering
from proxy_consumer.groups.retry_waiting import RetryPath, RetryPaths
from proxy_consumer.groups.stalled import Stall
from proxy_consumer.groups.stats import (
    GroupSummary,
    LiveState,
    SubscriptionStats,
    live_state,
    summarize_group,
)
from proxy_consumer.pulls import Pulls, code_of
from proxy_consumer.push.pushers import Pushers
from proxy_consumer.replies import ReplyHandling, ReplySender
from proxy_consumer.results import Results
from proxy_consumer.rights import ConsumerRights
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import BROADCASTING
from proxy_consumer.tracing.messages import MessageWaits

USED_S = 10.0  # a subscription counts as used for this long after a pull


class ConsumerService:
    """One consumer proxy over one backend."""

    def __init__(
        self,
        backend: Backend,
        config: ConsumerConfig,
        metrics: Registry,
        clock: Clock,
        random: Random,
        address: str = "",
        levels: Levels = DEFAULT_LEVELS,
        traces: TraceWriter | None = None,
        replies: ReplySender | None = None,
        read_token: ReadToken | None = None,
    ) -> None:
        """Create the service of a consumer proxy; `start` begins its work.

        `address`: what this proxy advertises unless the configuration's `advertise` is set. `levels`: the
        waits of the level scheduler, for retries. `replies`: sends the messages that acknowledgements carry;
        None if this proxy cannot send them. `read_token`: returns the token that logs it in at other proxies.
        """
        self._runtime = Runtime(backend, config, metrics, clock, random)
        self._runtime.traces = traces
        self._runtime.read_token = read_token
        self._runtime.levels = levels
        self._runtime.address = config.advertise or address
        self._directory = Directory(self._runtime)
        self._changes = Changes(self._runtime, self._directory)
        self._fetches = Fetches(self._runtime, self._directory)
        self._results = Results(self._runtime, self._directory.groups, self._fetches)
        forwarding = self._results.forwarding
        self._replies = ReplyHandling(self._runtime, self._directory.groups, forwarding, replies)
        self._pushers = Pushers(self._runtime, self._directory, random)
        self._pulls = Pulls(self._runtime, self._directory, self._results, self._fetches)
        self._retry_paths = RetryPaths(self._runtime)
        self._gauges = Gauges(
            self._runtime, self._directory, self._retry_paths, self._fetches.committed_offsets
        )
        self._drained: Completion[None] | None = None
        self._drain_until = 0.0

    def service(self) -> Service:
        """Return the handlers for the RPC server."""
        handlers = {
            "pull": self._pulls.pull,
            "submit": self.submit,
            "settle": self.settle,
            "reply": self._replies.reply,
            "getConsumeStats": self.get_consume_stats,
            "fetch": self._fetches.fetch,
            "ack": self._fetches.acks.ack,
        }
        on_closed = self._pulls.consistency.close_connection
        rights = ConsumerRights(self._runtime, self._directory.groups, self._fetches)
        return Service(consumer, answers.SERVICE, handlers, on_closed, rights.build_rules())

    def start(self, *, timer: bool = True) -> None:
        """Load the groups and start to serve; without `timer` the caller must call `tick`."""
        self._directory.start(follow=self._pushers.on_change)
        self._fetches.start()
        self._pushers.start()
        self._runtime.metrics.add_collector(self._gauges.fill_gauges)
        self._gauges.stalled.start()
        if timer:
            self._runtime.heartbeat.start(self._on_tick)

    def advertise(self, address: str) -> None:
        """Set the HOST:PORT at which other proxies reach this one; the configured `advertise` takes
        precedence.

        Call it before the first pull: the memberships publish the address.
        """
        self._runtime.address = self._runtime.config.advertise or address

    def _on_tick(self) -> bool:
        self.tick()
        waiting = self._pulls.wheel.count + self._fetches.waiting_count
        return waiting > 0 or bool(self._runtime.traced) or self._drained is not None

    def tick(self) -> None:
        """Do the work that is due now."""
        now = self._runtime.now()
        self._runtime.timers.run_due(now)
        self._pulls.expire_due(now)
        self._fetches.expire_due(now)
        for trace in list(self._runtime.traced):
            trace.run_tick()
        if self._drained is not None:
            self._drain_on(now)

    def next_due(self) -> float:
        """Return when the next lease ends or the next retry is due, in monotonic seconds; may be early.

        NEVER: nothing waits for a time."""
        due = [
            min(each.buffer.next_event(), each.retries.next_event())
            for each in self._directory.all_subscriptions()
        ]
        return min(due, default=NEVER)

    def end_wait(self, call: Call) -> None:
        """Answer a pull or a fetch that waits, as if its linger were over; nothing happens to any other."""
        for waiter in (*self._pulls.wheel, *self._fetches.wheel):
            if getattr(waiter, "call", None) is call:
                waiter.give_up()

    def drain(self, deadline: float) -> Completion[None]:
        """Stop delivering; accept results until no message is leased, `drain_leases_ms` have passed, or
        `deadline`.

        Waiting pulls are answered empty at once. The completion succeeds when all accepted results are
        durable.
        """
        if self._drained is None:
            self._drained = Completion()
            self._pulls.draining = True
            self._fetches.drain()
            self._pushers.stop()
            self._gauges.stop()
            now = self._runtime.now()
            self._drain_until = min(deadline, now + self._runtime.config.drain_leases_ms / 1000)
            for group in list(self._directory.groups.values()):
                group.answer_empty()
            self._drain_on(now)
            self._runtime.heartbeat.wake_up()
        return self._drained

    def _drain_on(self, now: float) -> None:
        drained = self._drained
        if drained is None or drained.done:
            return
        leased = any(each.buffer.budget.leased for each in self._directory.all_subscriptions())
        if leased and now < self._drain_until:
            return
        self._runtime.stopping = True
        self._directory.stop()
        if self._runtime.open_commits == 0 or now >= self._drain_until + 1.0:
            self._runtime.heartbeat.stop()
            self._results.forwarding.close()
            drained.succeed(None)

    # --- handlers

    def submit(self, call: Call) -> None:
        """Store the results that a client sends without a pull; reply true once they are durable.

        The reply is also true if results were ignored.
        """
        self._store(call, call.args.result, lambda _: call.reply_encoded(answers.SUBMITTED[call.wire]))

    def settle(self, call: Call) -> None:
        """Store results that a client of ddmq_client sends without a pull; reply with those that are late.

        With `leave`, the client announces that it stops, so its waiting pulls are answered immediately.
        """
        request = call.args.request
        group = self._directory.groups.get(request.groupId or b"")
        if request.leave and group is not None and request.clientId:
            self._pulls.leave(group, request.clientId, call.caller)

        def answer(late: Sequence[Any]) -> None:
            call.reply(answers.IDL.SettleResponse(late=late))

        if request.result is None:
            answer(())
        else:
            self._store(call, request.result, answer)

    def _store(self, call: Call, result: Any, answer: Callable[[Sequence[Any]], None]) -> None:
        """Apply results; call `answer` with the LateResults once the others are durable."""
        try:
            applied = self._results.apply_results(result)
        except TryLaterError as error:
            answers.throw_pull_error(call, code_of(error), f"the results are not stored: {error}")
            return
        if not applied.open:
            answer(applied.late)
            return

        def stored(error: Exception | None) -> None:
            if error is None:
                answer(applied.late)
            else:
                answers.throw_pull_error(call, code_of(error), f"the results are not stored: {error}")

        self._results.store_results(applied, stored)

    def get_consume_stats(self, call: Call) -> None:
        """Reply with the committed and next offset of each queue; an empty list for an unknown group or
        topic."""
        request = call.args.request
        group = self._directory.groups.get(request.group)
        if group is None:
            call.reply([])
            return
        topic = request.topic.decode("utf-8", "replace") if request.topic else None

        def send_stats(counted: Completion[list[SubscriptionStats]]) -> None:
            if counted.error is not None:
                answers.throw_pull_error(
                    call, code_of(counted.error), f"stats are not available: {counted.error}"
                )
            else:
                call.reply([_wire_stats(each) for each in counted.value if each.queues])

        stats.group_stats(self._runtime, group, topic).then(send_stats)

    # --- for the command line and the admin API

    def declare(self, file: GroupsFile, source: str) -> Completion[None]:
        """Create or change the subscriptions of conf/groups.yaml; `source` names the file.

        A change of settings moves no offsets. Fails with the first error; the other changes still apply.
        """
        return self._changes.declare_groups(file, source)

    def reconfigure(self, fresh: ConsumerConfig) -> Reloaded:
        """Apply new limits and defaults while clients are connected; the result names the keys that need a
        restart."""
        reload = merge_live_values(self._runtime.config, fresh, LIVE_KEYS)
        self._runtime.config = reload.config
        if "defaults" in reload.changed:
            self._directory.defaults_changed()
        self._pushers.check_all()
        return reload

    def groups(self) -> list[GroupSummary]:
        """Return a summary of each group, by name."""
        groups = sorted(self._directory.groups.values(), key=lambda group: group.name)
        return [summarize_group(group) for group in groups]

    def find_group(self, name: str) -> GroupSummary | None:
        """Return the summary of one group, or None."""
        group = self._directory.groups.get(name.encode())
        return None if group is None else summarize_group(group)

    def subscription_names(self) -> Sequence[tuple[str, str]]:
        """Return the (group, topic) of every subscription, sorted. Until one is added or removed, each call
        returns the same object."""
        return self._directory.list_names()

    def count_owned_queues(self) -> dict[tuple[str, str], int]:
        """Return (group, topic) → the number of queues that this proxy owns, of those with any."""
        counts = {
            (group.name, each.topic): len(own_states(each))
            for group in self._directory.groups.values()
            for each in group.subscriptions.values()
        }
        return {name: count for name, count in counts.items() if count}

    def find_push_error(self, group: str, topic: str) -> str:
        """Return why this proxy does not push the subscription; "" if it does, or if it is not a push
        subscription."""
        subscription = self._directory.find_subscription(group, topic)
        return "" if subscription is None else self._pushers.find_error(subscription)

    def counts(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Return (group, topic) → messages delivered and acknowledged since the start, of subscriptions in
        use here."""
        counts = {}
        for each in self._directory.all_subscriptions():
            if each.joined:
                tally = each.buffer.tally
                counts[each.group.name, each.topic] = (tally.delivered.value, tally.acked.value)
        return counts

    def list_subscriptions(self) -> list[tuple[str, str]]:
        """Return (group, topic) of every subscription whose progress is stored here, sorted."""
        return sorted(
            (each.group.name, each.topic)
            for each in self._directory.all_subscriptions()
            if each.config.model != BROADCASTING
        )

    def finished_positions(self, group: str, topic: str) -> dict[QueueRef, int]:
        """Return how many offsets a subscription has finished in each queue that this proxy holds, counted
        from offset 0; this includes what is not committed yet."""
        subscription = self._directory.find_subscription(group, topic)
        if subscription is None:
            return {}
        maps = {queue: state.ack_map for queue, state in own_states(subscription).items()}
        return {queue: acks.committed + acks.count_above() for queue, acks in maps.items()}

    def group_stats(self, group: str) -> Completion[list[SubscriptionStats]]:
        """Return the progress of every subscription of a group. Raises CallerError if there is no such
        group."""
        return stats.group_stats(self._runtime, self._directory.group_named(group), None)

    def retry_paths(self) -> Completion[RetryPath]:
        """Count the messages on the retry paths by group and topic; the numbers are the same at every
        proxy."""
        return self._retry_paths.count_waiting()

    def subscribe(
        self, group: str, topic: str, config: SubscriptionDefaults | None = None
    ) -> Completion[int]:
        """Create a group's subscription (and the group); an existing one is not changed.

        `config.start` says where it starts; the result is the number of messages before that. Raises
        CallerError or BoundReachedError.
        """
        return self._directory.subscribe(group, topic, config or self._runtime.config.defaults)[1]

    def change_subscription(
        self, group: str, topic: str, settings: Mapping[str, Any], unset: Sequence[str] = ()
    ) -> Completion[SubscriptionChange]:
        """Create a subscription, or set the values in `settings` and reset `unset` to the defaults.

        Offsets do not move. Raises CallerError (also for settings that a file owns) or BoundReachedError.
        """
        return self._changes.change_settings(group, topic, settings, unset)

    def differences(self, group: str) -> list[Difference]:
        """Return how clients of a group subscribe differently, as far as this proxy knows."""
        return self._pulls.consistency.list_differences(group)

    def is_used(self, group: str, topic: str) -> bool:
        """Whether a client has pulled or fetched the topic for the group here within USED_S, or it is
        pushed."""
        subscription = self._directory.find_subscription(group, topic)
        if subscription is None:
            return False
        pulled = self._runtime.now() < subscription.last_used + USED_S
        return pulled or subscription.pushed or bool(self._fetches.committed_offsets(group, topic))

    def stalled(self, group: str) -> list[Stall]:
        """Return the stalled queues of a group for which clients wait, as of the last check."""
        return self._gauges.stalled.stalls_of(
            group, self._directory.group_named(group).subscriptions.values()
        )

    def groups_with_clients(self) -> list[str]:
        """Return the names of the groups with clients at this proxy, sorted."""
        return self._pulls.consistency.list_groups()

    def clients(self, group: str) -> list[GroupClient]:
        """Return the clients that pull for a group at this proxy, with their messages in flight."""
        return self._pulls.consistency.list_clients(group)

    def subscription_source(self, group: str, topic: str) -> StoredSubscription:
        """Return the values that a subscription sets itself, and its owner: `log`, or the name of a file."""
        return self._changes.stored_settings(group, topic) or StoredSubscription({}, 0, SOURCE_LOG)

    def message_state(self, group: str, topic: str, queue: QueueRef, offset: int) -> LiveState | None:
        """Return the state of a message; None if this proxy does not own the queue."""
        subscription = self._directory.find_subscription(group, topic)
        return None if subscription is None else live_state(subscription, queue, offset)

    def explain_waits(self, group: str, topic: str, queue: QueueRef, since_ms: int) -> MessageWaits | None:
        """Return the reasons that have held up a group's deliveries from a queue since `since_ms`; None if
        not traced."""
        subscription = self._directory.find_subscription(group, topic)
        trace = None if subscription is None else subscription.trace
        return None if trace is None else trace.waits_since(queue, since_ms)

    def order_keys(self, group: str) -> GroupOrdering:
        """Return a group's order keys, for operators to list, park, skip and replay.

        Raises CallerError if there is no such group.
        """
        return self._directory.ordering_of(self._directory.group_named(group))

    def ordered_groups(self) -> list[str]:
        """Return the names of the groups that have an order key or parked keys, sorted."""
        return self._directory.list_ordered_groups()

    def find_absent_queues(self, group: str) -> dict[str, list[QueueRef]]:
        """Return the queues of a group's ordered topics that this proxy does not own, by topic; their keys
        are not known here. Raises CallerError if there is no such group."""
        absent: dict[str, list[QueueRef]] = {}
        for each in self._directory.group_named(group).subscriptions.values():
            info = self._runtime.backend.topic(each.topic) if each.config.order_key else None
            if info is not None:
                queues = [queue for queue in info.refs() if queue not in each.buffer.queues]
                if queues:
                    absent[each.topic] = queues
        return absent

    @property
    def address(self) -> str:
        """HOST:PORT where other proxies reach this one, as `holders` of a backend states it; "": nowhere."""
        return self._runtime.address

    def load_order_keys(self, group: str, *, hold: bool = False) -> Completion[GroupOrdering]:
        """Return a group's order keys, after its ordered queues were acquired if no proxy owned them.

        `hold`: the caller will change a key, so the queues are kept for a while. Fails with TryLaterError if
        the queues are not loaded in time. Raises CallerError if there is no such group.
        """
        pulled_group = self._directory.group_named(group)
        stopping = self._pulls.draining or self._runtime.stopping
        loading = KeyLoading(self._runtime, pulled_group)
        loading.start(acquire=not stopping and self._fetches.find_pull_error(pulled_group) is None, hold=hold)
        return followed(loading.done, lambda: succeeded(self._directory.ordering_of(pulled_group)))

    def delete_group(self, group: str, topic: str | None = None) -> Completion[list[AppendResult]]:
        """Delete a group and its subscriptions, or one of them; waiting clients are answered empty."""
        return self._directory.delete(group, topic)


def _wire_stats(row: SubscriptionStats) -> Any:
    return answers.IDL.ConsumeStats(
        group=row.group,
        topic=row.topic,
        consumeOffsets={queue.qid: queue.committed for queue in row.queues},
        produceOffsets={queue.qid: queue.next for queue in row.queues},
    )
