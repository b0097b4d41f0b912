"""InProcessServer: all parts of a server over the memory engine, with a manual event loop and a manual clock.

Nothing runs on its own. A client's request is served on the client's thread: one thread at a time enters the
server, handles the request, runs all callbacks that are ready, and leaves. Time only passes in `step_time`,
from one due event to the next. One exception: a request may need a few milliseconds, because the first one of
its kind creates topics; then the timers for that ring at once.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

from backend.memory import MemoryBackend
from backend.records import QueueRef, TopicInfo
from ddmq.in_process import views
from ddmq.in_process.calls import HOLD_MS, Answered, InProcessCall, InProcessService
from ddmq.in_process.loop import ManualLoop
from ddmq_common.clock import NEVER, ManualClock
from ddmq_common.errors import DdmqError
from ddmq_common.event_loop import use_loop
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import QUEUES_DEFAULT, is_internal
from ddmq_rpc.envelope import FrameLengthError, Frames
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from delay_service.service import DelayService
from delay_service.store.memory_store import MemoryDelayStore
from delay_service.store.port import DelayStore
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.groups.ordering import KeyOutcome
from proxy_consumer.groups.stats import SubscriptionStats
from proxy_consumer.order_keys.canonical import bound_text, text_of_raw
from proxy_consumer.service import ConsumerService
from proxy_producer.config import ProducerConfig, TransactionLimits
from proxy_producer.service import ProducerService

ADDRESS = "192.0.2.1"  # of a network that is kept for documentation, so it is nobody's
NUDGES_MAX = 2_000  # timers that may ring for one request
STEP_S = 4.0  # the longest step: the clock of transactions counts no longer pauses
FRAME_BYTES_MAX = 32 << 20
WAIT_S = 1.0
KEYS_MAX = 1_000
OVERDUE_S = 0.1  # until what is due already, and could not be done, is looked at again
PULL, POLL = "pull", "pollTransactionChecks"
HELD_CALLS = frozenset({PULL, "fetch", POLL})  # calls that are held


class InProcessServer:
    """A whole server in the process of a test, without sockets or greenlets. `seed`: the seed of its random
    choices. Many threads may use it."""

    rejection = DdmqError  # what its operators' calls raise for wrong arguments

    def __init__(self, wall_ms: int, seed: int = 0) -> None:
        self.clock = ManualClock(wall_ms)
        self.loop = ManualLoop(self.clock)
        self.metrics = Registry()
        self._lock = threading.RLock()
        self._changed = threading.Condition(threading.Lock())
        self._watchers: list[Callable[[], object]] = []
        self._numbers = itertools.count(1)
        self._closed = False
        self._holding: list[InProcessConnection] = []  # those that have pulled, or polled for checks
        with self._lock, use_loop(self.loop):
            self._start(Random(seed))
            self._run_until(self._is_started)

    # --- putting it together

    def _start(self, random: Random) -> None:
        clock, metrics = self.clock, self.metrics
        backend = self.backend = MemoryBackend(clock)
        delay = DelayConfig(shards=1)
        self.levels = LevelService(backend, delay, metrics, clock)
        self.delays = DelayService(backend, delay, metrics, clock, _open_store)
        producer = ProducerConfig(transactions=TransactionLimits(shards=1))
        self.producer = ProducerService(backend, producer, metrics, clock, random)
        self.consumer = ConsumerService(
            backend,
            ConsumerConfig(linger_max_ms=HOLD_MS),
            metrics,
            clock,
            random,
            replies=self.producer.replies,
        )
        self.levels.start()
        self.delays.start()
        self.producer.advertise(f"{ADDRESS}:1")
        self.producer.transactions.begin()
        self.consumer.start()
        self._services = {
            "producer": InProcessService(self.producer.service(), clock),
            "consumer": InProcessService(self.consumer.service(), clock),
        }

    def _is_started(self) -> bool:
        return self.levels.owned_count == len(DelayConfig().levels) and self.delays.health().ready

    def close(self) -> None:
        """Stop every service and close all connections."""
        with self.enter_loop():
            if self._closed:
                return
            self._closed = True
            self.producer.close()
            self.levels.close()
            self.delays.close()
            self.backend.close()

    # --- entering

    @contextmanager
    def enter_loop(self) -> Iterator[None]:
        """Enter the server for the block, one thread at a time; ready callbacks are run before the block
        ends."""
        with self._lock, use_loop(self.loop):
            yield
            self.loop.run()
        self.report_change()

    def report_change(self) -> None:
        """Wake the threads that wait in `wait_for_change`, and call the watchers."""
        with self._changed:
            self._changed.notify_all()
        for watcher in list(self._watchers):
            watcher()

    def watch_changes(self, watcher: Callable[[], object]) -> Callable[[], None]:
        """Call `watcher()` after each block of `enter_loop`, on the same thread. The returned function ends
        this."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def wait_for_change(self, seconds: float) -> None:
        """Wait until another thread has used the server, at most for `seconds`."""
        with self._changed:
            self._changed.wait(seconds)

    # --- connections

    def connect(self, component: str) -> InProcessConnection:
        """Return a connection to "producer" or "consumer"."""
        return InProcessConnection(self, self._services[component], f"{ADDRESS}:{1023 + next(self._numbers)}")

    def serve_frame(
        self, connection: InProcessConnection, service: InProcessService, frame: bytes, on_answer: Answered
    ) -> None:
        """Handle one request of a connection until it is answered or held."""
        with self.enter_loop():
            if self._closed:
                connection.close()
                return
            call = service.open_call(frame, connection.peer, on_answer)
            connection.call = call
            if call is not None and call.method_name in (PULL, POLL) and not call.is_rejected:
                self._record_holding(connection, call)
            if call is not None and call.open and call.method_name not in HELD_CALLS:
                self._run_until(lambda: not call.open)

    def _record_holding(self, connection: InProcessConnection, call: InProcessCall) -> None:
        request = call.args.request
        if call.method_name == PULL and request.clientId is not None:
            connection.pulls = request.groupId.decode(), request.clientId.decode()
        self._holding = [each for each in self._holding if not each.closed and each is not connection]
        self._holding.append(connection)

    def _list_pulling(self) -> set[tuple[str, str]]:
        """Return the group and the client of every connection that pulls."""
        return {each.pulls for each in self._holding if each.pulls is not None and not each.closed}

    def end_wait(self, call: InProcessCall) -> None:
        """Answer a held call now, because its client no longer wants to wait."""
        with self.enter_loop():
            if call.open:
                self.consumer.end_wait(call)
                self.producer.transactions.polls.waiting.end_wait(call)

    def _run_until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until the condition is true. If nothing else is ready, move the time to the next
        timer, at most NUDGES_MAX times."""
        for _ in range(NUDGES_MAX):
            if self.loop.run_until(condition):
                return
            moment = self.loop.next_ring()
            if moment == NEVER:
                return
            self.loop.move_to(moment)

    # --- time

    def next_event(self) -> float:
        """Return when the next delay, retry, lease or check is due, in monotonic seconds; NEVER if there is
        none."""
        now, wall_ms = self.clock.monotonic(), self.backend.clock_ms()
        moments = [self.consumer.next_due()]
        for shard in self.delays.shards.values():
            moments.append(_to_moment(shard.first_due_ms(), now, self.clock.wall_ms()))
        moments += [_to_moment(due_ms, now, wall_ms) for due_ms in self.levels.first_due()]
        steady_ms = self.producer.transactions.now_ms()
        moments += [_to_moment(due_ms, now, steady_ms) for due_ms in self.producer.transactions.first_due()]
        return min((moment if moment > now else now + OVERDUE_S for moment in moments), default=NEVER)

    def step_time(self, until: float) -> None:
        """Advance the time to the next due event, at most to `until` (monotonic seconds), and run what is due
        then."""
        with self.enter_loop():
            moment = min(self.next_event(), until)
            step_s = STEP_S if self.producer.transactions.first_due() else NEVER
            while self.clock.monotonic() < moment:
                self.loop.move_to(min(moment, self.clock.monotonic() + step_s))
                self._do_due_work()
            self._do_due_work()

    def _do_due_work(self) -> None:
        self.loop.run()
        self.consumer.tick()
        self.producer.transactions.run_periodic_work()
        self.loop.run()

    # --- topics and groups

    def create_topic(self, name: str, queues: int = QUEUES_DEFAULT) -> TopicInfo:
        """Create a topic, or return the one that exists."""
        with self.enter_loop():
            info = self.backend.topic(name)
            if info is None:
                info = self.backend.put_topic(TopicInfo(name, 0, queues), self._next_deadline()).wait(WAIT_S)
            return info

    def set_group(self, group: str, topic: str, settings: Mapping[str, Any]) -> None:
        """Create a group's subscription with these settings, or change them. Raises CallerError."""
        with self.enter_loop():
            exists = any(each.name == group and topic in each.topics for each in self.consumer.groups())
            if not exists:
                start = settings.get("start", SubscriptionDefaults().start)
                self.consumer.subscribe(group, topic, SubscriptionDefaults(start=start)).wait(WAIT_S)
            rest = {name: value for name, value in settings.items() if name != "start"}
            if rest:
                self.consumer.change_subscription(group, topic, rest).wait(WAIT_S)

    def list_topics(self, *, internal: bool = True) -> list[str]:
        """Return the names of all topics, or without `internal` those of applications."""
        with self.enter_loop():
            return [name for name in self.backend.topics() if internal or not is_internal(name)]

    def list_groups(self) -> list[str]:
        """Return the names of all groups."""
        with self.enter_loop():
            return [each.name for each in self.consumer.groups()]

    def list_stats(self, group: str) -> list[SubscriptionStats]:
        """Return the statistics of every subscription of a group; empty if there is no such group."""
        with self.enter_loop():
            return self._read_stats(group)

    def list_clients(self, group: str) -> list[str]:
        """Return the ids of the clients that pull for a group."""
        with self.enter_loop():
            return [client for name, client in self._list_pulling() if name == group]

    def busy_reason(self, ignored: Collection[str] = ()) -> str:
        """Return a text that names the present or possible work of a client; "" if all clients are idle.

        `ignored`: ids of clients without a handler, which keep their messages until the test settles them.
        """
        with self.enter_loop():
            for group in {group for group, client in self._list_pulling() if client not in ignored}:
                for each in self._read_stats(group):
                    open_count, what = each.lag + each.retry_lag, f"topic {each.topic} of group {group}"
                    if each.in_flight:
                        return f"{each.in_flight} messages of {what} are in flight"
                    if open_count and not each.waiters:
                        return f"{open_count} messages of {what} wait for a client that does not pull"
            return self._checking_reason()

    def _read_stats(self, group: str) -> list[SubscriptionStats]:
        if not any(each.name == group for each in self.consumer.groups()):
            return []
        return self.consumer.group_stats(group).wait(WAIT_S)

    def _checking_reason(self) -> str:
        """Return a text if a producer is answering a check of a transaction, else "". A client that has
        answered a check polls again, so a client that does not poll is still answering."""
        answering = any(each.pulls is None and not (each.closed or each.is_polling) for each in self._holding)
        undecided = any(owned.shard.core.open for owned in self.producer.transactions.list_ready_shards())
        return "a producer's check is asked about a transaction" if answering and undecided else ""

    def waiting_for_retry(self, topic: str) -> str:
        """Return a text with the number of messages of the topic that a pulling group has not finished,
        waiting retries included; "" if there are none."""
        with self.enter_loop():
            positions = self.levels.list_positions()
            for group in {group for group, _ in self._list_pulling()}:
                for each in self._read_stats(group):
                    if each.topic == topic:
                        count = views.count_retries(self.backend, positions, group, topic)
                        count += each.lag + each.retry_lag
                        if count:
                            return f"{count} messages of group {group}"
            return ""

    def list_messages(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic, in the order in which they were stored."""
        with self.enter_loop():
            return views.list_messages(self.backend, topic)

    def dead_letters(self, group: str) -> list[dict[str, Any]]:
        """Return the dead letters of a group, oldest first."""
        with self.enter_loop():
            return views.list_dead_letters(self.backend, group)

    def waiting_delays(self) -> list[dict[str, Any]]:
        """Return the delayed messages that are not due yet, in the order of their due times."""
        with self.enter_loop():
            return views.list_delays(self.delays)

    def blocked_keys(self, group: str, limit: int = KEYS_MAX) -> list[dict[str, Any]]:
        """Return the order keys of a group whose first message is not finished."""
        with self.enter_loop():
            return [dataclasses.asdict(each) for each in self.consumer.order_keys(group).blocked_keys(limit)]

    def act_on_key(self, group: str, action: str, key: str) -> list[KeyOutcome]:
        """Park, skip or replay the key that `key` names. Raises CallerError."""
        with self.enter_loop():
            ordering = self.consumer.order_keys(group)
            actions = {"park": ordering.park, "skip": ordering.skip, "replay": ordering.replay}
            as_text = canonical_key(json.dumps(key, ensure_ascii=False))
            blocked = {each.key for each in ordering.blocked_keys(KEYS_MAX)} | ordering.parked_keys
            internal = key if key in blocked and as_text not in blocked else as_text
            return actions[action](internal).wait(WAIT_S)

    def _next_deadline(self) -> float:
        return self.clock.monotonic() + WAIT_S


class InProcessConnection:
    """One client's connection to the in-process server. `closed`: whether the server or the client has closed
    it."""

    def __init__(self, server: InProcessServer, service: InProcessService, peer: str) -> None:
        self.peer = peer
        self.call: InProcessCall | None = None
        self.pulls: tuple[str, str] | None = None  # group and client of its pulls
        self.closed = False
        self._server = server
        self._service = service
        self._frames = Frames(FRAME_BYTES_MAX)

    def send(self, data: bytes, on_answer: Answered) -> None:
        """Accept bytes from the client. `on_answer` is called with the frame of each answer, perhaps on
        another thread."""
        try:
            frame = self._frames.feed_bytes(bytes(data))
            while frame is not None and not self.closed:
                self._server.serve_frame(self, self._service, frame, on_answer)
                frame = self._frames.next_frame()
        except FrameLengthError:
            self.close()

    def end_wait(self) -> None:
        """Make the server answer the held call now."""
        call = self.call
        if call is not None and call.open:
            self._server.end_wait(call)

    @property
    def is_polling(self) -> bool:
        """Whether the server holds a poll of this connection."""
        return self.call is not None and self.call.open

    @property
    def linger_s(self) -> float | None:
        """The time in seconds for which the client lets the server hold the open call; None if no call is
        held."""
        call = self.call
        if call is None or not call.open or call.method_name not in HELD_CALLS:
            return None
        return call.linger_ms / 1_000

    def close(self) -> None:
        """Close the connection from the client's side."""
        if self.closed:
            return
        self.closed = True
        with self._server.enter_loop():
            if self.call is not None:
                self.call.abandon_call()
            self._service.close_connection(self.peer)


def canonical_key(text: str) -> str:
    """Return a key that is given as JSON text in the form in which the proxies compare keys."""
    return bound_text(text_of_raw(text.encode()) or "null")


def _to_moment(due_ms: int | None, now: float, clock_ms: int) -> float:
    return NEVER if due_ms is None else now + max(0, due_ms - clock_ms) / 1_000


def _open_store(queue: QueueRef, epoch: int) -> DelayStore:
    return MemoryDelayStore()
