"""The methods fetch and ack: checks requests, begins and ends fetches, and makes acks durable.

At one proxy, a group is either pulled from or fetched from at a time, because both would claim the same
queues: the first use decides, until the group is idle (30 s after the last fetch, `idle_ms` after the last
pull). A fetch of a group that is pulled from gets nothing assigned; a pull of a group that is fetched from
gets a PullException. Groups of the model broadcasting can only be fetched from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from backend.records import QueueRef
from ddmq_client.idl.codes import Code
from ddmq_common.errors import DdmqError, TryLaterError
from ddmq_common.metrics.catalogue import FETCHERS, FETCHES
from ddmq_rpc.access import record_over
from ddmq_rpc.api import Call
from proxy_consumer.fetches import answers
from proxy_consumer.fetches.acks import Acks
from proxy_consumer.fetches.answers import Target
from proxy_consumer.fetches.exact import ExactFetches
from proxy_consumer.fetches.fetch import Fetch, count_fetched
from proxy_consumer.fetches.group import FetchedGroup
from proxy_consumer.fetches.instances import Instances
from proxy_consumer.groups.directory import Directory
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import BROADCASTING, Group

IDS_MAX = 1_000  # consumer ids of one group at one proxy
ID_BYTES_MAX = 255
SWEEP_S = 0.25
LOG_INTERVAL_S = 60.0  # between two log entries of the same rejection
MODELS = (None, b"clustering", b"broadcasting")


class Fetches:
    """The handlers of `fetch` and `ack` at one proxy."""

    def __init__(self, runtime: Runtime, directory: Directory) -> None:
        self._runtime = runtime
        self._directory = directory
        self.groups: dict[bytes, FetchedGroup] = {}
        self.acks = Acks(runtime, directory, self.groups)
        self.wheel = runtime.linger_wheel()
        self.instances = Instances(runtime, directory, self.wheel)
        self._sweep_at = 0.0
        self._logged_until: dict[str, float] = {}
        self._stop_watching: Callable[[], None] | None = None
        self._draining = False
        cell = runtime.metrics.cell
        self._exact = ExactFetches(runtime, self.wheel, self._count_delivered)
        self._with_messages = cell(FETCHES, "messages")
        self._empty = cell(FETCHES, "empty")
        self._rejected = cell(FETCHES, "refused")
        self._fetchers = cell(FETCHERS)

    # --- life

    def start(self) -> None:
        """Watch for resets of offsets and changes of topics."""
        self._stop_watching = self._runtime.backend.watch_settings(self._setting_changed)

    def committed_offsets(self, group: str, topic: str) -> dict[QueueRef, int]:
        """Return the committed offset of each queue of a topic that is fetched from at this proxy."""
        fetched = self.groups.get(group.encode())
        topic_positions = None if fetched is None else fetched.topics.get(topic)
        return {} if topic_positions is None else topic_positions.committed_offsets()

    def drain(self) -> None:
        """Answer the waiting fetches, release every queue, and reject new fetches."""
        self._draining = True
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self.instances.drain()
        self._exact.drain()
        for fetched in list(self.groups.values()):
            self._drop_group(fetched)

    @property
    def waiting_count(self) -> int:
        """The number of fetches that wait."""
        return self.wheel.count

    def expire_due(self, now: float) -> None:
        """Answer the fetches whose deadline has passed, and release the consumer ids that no longer fetch."""
        for waiter in self.wheel.take_expired(now):
            waiter.give_up()
        self.instances.expire_due(now)
        if now < self._sweep_at or not self.groups:
            return
        self._sweep_at = now + SWEEP_S
        for fetched in list(self.groups.values()):
            self._sweep_group(fetched, now)
        self._fetchers.value = sum(len(fetched.roster) for fetched in self.groups.values())

    def _sweep_group(self, fetched: FetchedGroup, now: float) -> None:
        expired = fetched.roster.expire_ids(now)
        if self._directory.groups.get(fetched.group.name.encode()) is not fetched.group or not len(
            fetched.roster
        ):
            self._drop_group(fetched)
            return
        if expired:
            fetched.on_released(expired)
        if any(topic.retry_at is not None for topic in fetched.topics.values()):
            fetched.on_use()

    def _drop_group(self, fetched: FetchedGroup) -> None:
        self.groups.pop(fetched.group.name.encode(), None)
        fetched.leave()

    def _setting_changed(self, key: str) -> None:
        kind, _, rest = key.partition("/")
        name, _, topic = rest.partition("/")
        if kind == "reset" and name.encode() in self.groups:
            topic_positions = self.groups[name.encode()].topics.get(topic)
            if topic_positions is not None:
                topic_positions.reread_progress()
        elif kind == "subscription":
            self.instances.wake_pulls(name)
            self._exact.wake_fetches(name)
            if (fetched := self.groups.get(name.encode())) is not None:
                fetched.on_use()
                fetched.on_change()
        elif kind == "group" and rest.encode() in self.groups:
            fetched = self.groups[rest.encode()]
            if self._directory.groups.get(rest.encode()) is not fetched.group:
                self._drop_group(fetched)
        elif kind == "topic":
            self.instances.wake_pulls()
            for fetched in self.groups.values():
                fetched.on_change()

    # --- permission to pull

    def find_pull_error(self, group: Group) -> str | None:
        """Return why the group cannot be pulled from now; None if it can."""
        if group.is_broadcasting:
            return (
                f"group {group.name} is broadcasting: every instance gets everything, from its own position; "
                f"fetch, or pull as group {group.name}%INSTANCE (any name of your own for INSTANCE)"
            )
        fetched = self.groups.get(group.name.encode())
        if fetched is None:
            return None
        who = b", ".join(list(fetched.roster.consumer_ids)[:3]).decode("utf-8", "replace")
        return (
            f"group {group.name} is fetched from at this proxy (consumer ids {who}); it can be pulled from "
            "30 s after the last fetch, or through another proxy"
        )

    # --- fetch

    def fetch(self, call: Call) -> None:
        """Handle a client's RPC call `fetch`: it reads messages from several queues by offset."""
        request = call.args.request
        if self._draining:
            self._reject_fetch(call, Code.SHUTTING_DOWN, "this proxy is shutting down; fetch elsewhere")
            return
        error = _find_request_error(request)
        if error is not None:
            self._reject_fetch(call, Code.ILLEGAL_MESSAGE, error)
            return
        if request.leave:
            if fetched := self.groups.get(request.groupId):
                fetched.roster.leave(request.consumerId)
            call.reply_encoded(answers.NOTHING[call.wire])
            return
        group = self._find_group(call, request)
        if group is None:
            return
        are_creating = all(each.creating for each in group.subscriptions.values())
        if group.subscriptions and are_creating and not request.exact:
            call.reply_encoded(answers.NOTHING[call.wire])  # created a moment ago, by this client or another
            return
        self._begin(call, group)

    def _find_group(self, call: Call, request: Any) -> Group | None:
        """Return the group to fetch from; None if the call was rejected."""
        group = self._directory.groups.get(request.groupId)
        if request.topics and (group is None or self._answer_missing(group, request)):
            group = self._create(call, request)
        elif group is None:
            self._reject_fetch(call, Code.NO_SUCH_QUEUE, f"group {_as_text(request.groupId)} does not exist")
        if group is None:
            return None
        error = self._find_use_error(group, request)
        if error is not None:
            self._reject_fetch(call, Code.ILLEGAL_MESSAGE, error)
            return None
        return group

    def _answer_missing(self, group: Group, request: Any) -> bool:
        return any(topic not in group.subscriptions for topic in request.topics)

    def _create(self, call: Call, request: Any) -> Group | None:
        """Create the subscriptions that a request names; return their group, or None if the call was
        rejected."""
        config = self._runtime.config
        if not config.auto_create_groups:
            self._reject_fetch(
                call,
                Code.NO_SUCH_QUEUE,
                f"group {_as_text(request.groupId)} does not subscribe to all of "
                f"{[_as_text(topic) for topic in request.topics]}, and groups are not made on first use here",
            )
            return None
        settings = config.defaults
        if request.model is not None:
            settings = replace(settings, model=request.model.decode())
        try:
            name = request.groupId.decode()
            for topic in request.topics:
                self._directory.subscribe_on_use(name, topic.decode(), settings)
        except (UnicodeDecodeError, ValueError) as error:
            self._reject_fetch(call, Code.ILLEGAL_MESSAGE, f"the group cannot be made: {error}")
            return None
        except DdmqError as error:
            code = Code.BUSY if isinstance(error, TryLaterError) else Code.ILLEGAL_MESSAGE
            self._reject_fetch(call, code, str(error))
            return None
        return self._directory.groups.get(request.groupId)

    def _find_use_error(self, group: Group, request: Any) -> str | None:
        shared = [each for each in group.subscriptions.values() if each.config.model != BROADCASTING]
        if request.model is not None:
            model = request.model.decode()
            for each in group.subscriptions.values():
                if each.config.model != model and (
                    not request.topics or each.topic.encode() in request.topics
                ):
                    return f"group {group.name} reads {each.topic} as {each.config.model}, not as {model}"
        pulled = any(each.joined for each in shared) and not request.exact
        if group.name.encode() not in self.groups and pulled:
            return (
                f"group {group.name} is pulled from at this proxy; it can be fetched from "
                f"{self._runtime.config.idle_ms // 1000} s after the last pull"
            )
        return None

    def _begin(self, call: Call, group: Group) -> None:
        config = self._runtime.config
        if self.wheel.count >= config.waiters_max:
            self._reject_fetch(call, Code.BUSY, f"{config.waiters_max} fetches are open; that is the bound")
            return
        over = None if call.caller is None else call.caller.usage.check_waiting()
        if over is not None:
            record_over(call, over)
            self._reject_fetch(call, Code.BUSY, over)
            return
        if call.args.request.exact:
            self._exact.begin(call, group)
            return
        key = group.name.encode()
        fetched = self.groups.get(key)
        if fetched is None or fetched.group is not group:
            fetched = self.groups[key] = FetchedGroup(self._runtime, group, IDS_MAX)
        fresh = fetched.roster.begin(call.args.request.consumerId, self._runtime.now())
        if fresh is None:
            self._reject_fetch(
                call, Code.BUSY, f"group {group.name} has {IDS_MAX} consumer ids; that is the bound"
            )
            return
        fetched.on_use()
        if fresh:
            fetched.on_change()
        self._run(call, fetched)

    def _run(self, call: Call, fetched: FetchedGroup) -> None:
        def on_done(fetch: Fetch, targets: Sequence[Target]) -> None:
            self._on_fetch_done(fetched, fetch, targets)

        consumer: bytes = call.args.request.consumerId
        fetch = Fetch(self._runtime, call, consumer, fetched.plan_targets, self.wheel, on_done)
        fetched.fetches.add(fetch)
        fetch.start()

    def _on_fetch_done(self, fetched: FetchedGroup, fetch: Fetch, targets: Sequence[Target]) -> None:
        fetched.fetches.discard(fetch)
        fetched.roster.end(fetch.consumer, self._runtime.now())
        fetched.on_answered(fetch, targets)
        self._count_delivered(count_fetched(self._runtime, fetched.group.name, targets))

    def _count_delivered(self, messages: int) -> None:
        (self._with_messages if messages else self._empty).value += 1

    def _reject_fetch(self, call: Call, code: Code, text: str) -> None:
        self._rejected.value += 1
        now = self._runtime.now()
        kind = f"{int(code)} {text[:40]}"
        self._logged_until = {logged: until for logged, until in self._logged_until.items() if until > now}
        if kind not in self._logged_until and len(self._logged_until) < IDS_MAX:
            self._logged_until[kind] = now + LOG_INTERVAL_S
            log.warning("fetch refused", extra={"peer": call.peer, "reason": text})
        answers.reject_fetch(call, code, text)


def _find_request_error(request: Any) -> str | None:
    """Return why a fetch request is invalid; None if it is valid."""
    size = len(request.consumerId)
    if not 0 < size <= ID_BYTES_MAX:
        return f"consumerId has {size} bytes; allowed: 1 to {ID_BYTES_MAX}"
    if (request.maxLingerTime or 0) < 0:
        return f"maxLingerTime is {request.maxLingerTime} ms; allowed: 0 (20 ms) or more"
    if request.model not in MODELS:
        return f"model is {request.model[:40]!r}; allowed: clustering, broadcasting"
    if request.exact and (request.model != b"broadcasting" or not request.topics):
        return "exact is set, but not model=broadcasting with the topics to read; exact reads those only"
    return None


def _as_text(name: bytes) -> str:
    return name[:130].decode("utf-8", "replace")
