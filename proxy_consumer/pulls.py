"""Pulls: applies the results in a request, then returns messages at once or waits until the linger ends.

A reply is sent as soon as there is at least one message; `maxLingerTime` is how long an empty pull waits.
Waiting pulls are served in order of arrival; the pull of a client that disconnects is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ddmq_client.idl.codes import Code
from ddmq_common.errors import BoundReachedError, CallerError, DdmqError, DrainingError, TryLaterError
from ddmq_common.metrics.catalogue import PULLS, WAITING_PULLS
from ddmq_common.security.callers import Caller
from ddmq_common.security.quotas import OverQuota
from ddmq_rpc.access import record_over
from ddmq_rpc.api import Call
from proxy_consumer import answers
from proxy_consumer.config import find_start_error
from proxy_consumer.core.held_pulls import PULL_BYTES_MAX, HeldPull
from proxy_consumer.core.steps import Delivery
from proxy_consumer.fetches.service import Fetches
from proxy_consumer.groups.consistency import (
    Client,
    Consistency,
    StatedOptionError,
    find_length_error,
    stated_settings,
)
from proxy_consumer.groups.directory import Directory
from proxy_consumer.results import Results
from proxy_consumer.runtime import Runtime, log
from proxy_consumer.subscription.subscription import Group, Subscription


class Pull(HeldPull):
    """One pull from its request to its reply."""

    __slots__ = ("_pulls", "call", "client", "extended_client", "group", "late", "notice")

    def __init__(
        self, pulls: Pulls, call: Call, topic: str | None, count: int, extended_client: bool
    ) -> None:
        super().__init__(topic, count)
        self._pulls = pulls
        self.call = call
        self.extended_client = extended_client
        self.group: Group | None = None
        self.client: Client | None = None
        self.late: Sequence[Any] = ()  # LateResults of the results in its request
        self.notice = ""  # a text for people, returned with its reply

    def give_up(self) -> None:
        self._pulls.stop_waiting(self)
        self._pulls.answer_empty(self)

    def deliver(self, delivery: Delivery) -> None:
        self._pulls.stop_waiting(self)
        self._pulls.answer_pull(self, delivery)


class Pulls:
    """The handler of `pull`, with the pulls that wait."""

    def __init__(self, runtime: Runtime, directory: Directory, results: Results, fetches: Fetches) -> None:
        self._runtime = runtime
        self._directory = directory
        self._results = results
        self._fetches = fetches
        self.consistency = Consistency(runtime)
        self.wheel = runtime.linger_wheel()
        self.draining = False
        cell = runtime.metrics.cell
        self._with_messages = cell(PULLS, "messages")
        self._empty = cell(PULLS, "empty")
        self._rejected = cell(PULLS, "refused")
        self._waiting = cell(WAITING_PULLS)

    # --- the request

    def pull(self, call: Call) -> None:
        """Handle a client's RPC call `pull`: it takes messages for a group, and may report results of earlier
        ones."""
        request = call.args.request
        rejection = _find_request_error(request)
        if rejection is not None:
            self._throw_error(call, Code.ILLEGAL_MESSAGE, rejection)
            return
        topic = request.topic.decode("utf-8", "replace") if request.topic else None
        pull = Pull(self, call, topic, request.maxBatchSize or (1 << 31), request.clientId is not None)
        if request.result is not None:
            try:
                applied = self._results.apply_results(request.result)
            except TryLaterError as error:
                self._throw_error(call, code_of(error), f"the results are not stored: {error}")
                return
            pull.late = applied.late if pull.extended_client else ()
            if applied.open:
                self._results.store_results(applied, lambda error: self._on_stored(pull, error))
                return
        self._take_messages(pull)

    def _on_stored(self, pull: Pull, error: Exception | None) -> None:
        """Continue a pull after its results were stored, or reject it if they were not."""
        if error is not None:
            self._throw_error(pull.call, code_of(error), f"the results are not stored: {error}")
        elif pull.call.open:
            self._take_messages(pull)
        else:
            self.answer_empty(pull)  # the client has disconnected; this ends the call

    def _take_messages(self, pull: Pull) -> None:
        if self.draining:
            self.answer_empty(pull)
            return
        if pull.call.caller is not None:
            usage = pull.call.caller.usage
            over = usage.check_in_flight()
            if over is not None:
                self._reject_over(pull, over)
                return
            pull.count = usage.limit_batch(pull.count)
        request = pull.call.args.request
        group = self._directory.groups.get(request.groupId)
        if group is None:
            if b"%" in request.groupId and self._fetches.instances.pull(pull.call):
                return
        elif (rejection := self._fetches.find_pull_error(group)) is not None:
            self._throw_error(pull.call, Code.ILLEGAL_MESSAGE, rejection)
            return
        subscription = None
        if pull.topic is not None:
            subscription = None if group is None else group.subscriptions.get(request.topic)
            if subscription is None:
                subscription = self._create(pull, request)
                group = self._directory.groups.get(request.groupId)
                if subscription is None:
                    return
        elif group is None:
            self._unknown_group(pull, request)
            return
        assert group is not None
        self._take_from(pull, group, subscription)

    def _unknown_group(self, pull: Pull, request: Any) -> None:
        """Answer a pull of an unknown group: ddmq_client gets an error, DDMQ clients an empty reply as
        always."""
        if not pull.extended_client:
            self.answer_empty(pull)
            return
        name = request.groupId.decode("utf-8", "replace")
        text = f"group {name} does not exist; pull a topic by name, or create it with `ddmq group set {name}`"
        self._throw_error(pull.call, Code.TOPIC_REFUSED, text)

    def leave(self, group: Group, client: bytes, caller: Caller | None = None) -> None:
        """Answer the waiting pulls of a client that stops, and remove it from the list of clients. `caller`:
        only those of this caller."""
        self.consistency.remove_client(group.name.encode(), client)
        for waiter in group.waiting:
            if not isinstance(waiter, Pull) or waiter.call.caller is not caller:
                continue
            if waiter.call.args.request.clientId == client:
                waiter.give_up()

    def _create(self, pull: Pull, request: Any) -> Subscription | None:
        """Return the subscription that the pull names, being created; None if the pull was rejected."""
        if not self._runtime.config.auto_create_groups:
            self.answer_empty(pull)
            return None
        if b"%" in request.groupId and self._directory.groups.get(request.groupId) is None:
            name = request.groupId.decode("utf-8", "replace")
            self._throw_error(pull.call, Code.ILLEGAL_MESSAGE, instance_text(name))
            return None
        try:
            name = request.groupId.decode()
            topic = request.topic.decode()
            config = stated_settings(request, self._runtime.config.defaults)
            on_skipped = None if request.start else partial(self._report_skipped, pull, name, topic)
            subscription, creation = self._directory.subscribe_on_use(name, topic, config, on_skipped)
            creation.then(lambda creation: self._reject_uncreated(pull, creation.error))
            return subscription
        except UnicodeDecodeError as error:
            self._throw_error(pull.call, Code.ILLEGAL_MESSAGE, f"group or topic name is not UTF-8: {error}")
        except StatedOptionError as error:
            self._throw_error(pull.call, Code.ILLEGAL_MESSAGE, str(error), error.option)
        except DdmqError as error:
            self._throw_error(pull.call, code_of(error), str(error))
        return None

    def _report_skipped(self, pull: Pull, group: str, topic: str, skipped: int) -> None:
        """Warn, in the log and in the client's next reply, that a new group starts after existing
        messages."""
        facts = {"group": group, "topic": topic, "messages": skipped}
        log.warning(
            "new group starts after existing messages", extra=facts | {"remedy": remedy_text(group, topic)}
        )
        text = f"new group {group} on topic {topic} starts after {skipped} existing messages; "
        if pull.call.open:
            pull.notice = text + remedy_text(group, topic)
        elif pull.client is not None:  # its pull was answered before the group was created
            pull.client.notice = text + remedy_text(group, topic)

    def _reject_uncreated(self, pull: Pull, error: Exception | None) -> None:
        """Reject a waiting pull if its subscription exceeds a bound that another proxy reached first."""
        if isinstance(error, BoundReachedError) and pull.call.open:
            self.stop_waiting(pull)
            self._throw_error(pull.call, code_of(error), str(error))

    def _take_from(self, pull: Pull, group: Group, subscription: Subscription | None) -> None:
        now, request = self._runtime.now(), pull.call.args.request
        pull.client = self.consistency.record_client(request, pull.call.peer)
        if request.filter or request.orderKey:
            difference = self.consistency.find_stated_difference(request, group, pull.client)
            if difference is not None:
                self._throw_error(pull.call, Code.ILLEGAL_MESSAGE, difference.text, difference.option)
                return
        pull.group = group
        if subscription is not None:
            if not subscription.readable:
                self._throw_error(
                    pull.call, Code.TOPIC_REFUSED, f"topic {subscription.topic} may not be read"
                )
                return
            if subscription.pushed:
                self._throw_error(pull.call, Code.TOPIC_REFUSED, pushed_text(group, subscription))
                return
            subscription.on_use(now)
        else:
            for each in group.subscriptions.values():
                each.on_use(now)
        if group.waiting.count == 0:
            delivery = (group if subscription is None else subscription).take_batch(now, pull.count)
            if delivery is not None:
                self.answer_pull(pull, delivery)
                return
            self._wait(pull, group, now)
        else:
            self._wait(pull, group, now)
            group.serve()

    # --- waiting

    def _wait(self, pull: Pull, group: Group, now: float) -> None:
        config = self._runtime.config
        if pull.call.frame_bytes > PULL_BYTES_MAX:
            self.answer_empty(pull)
            return
        if self.wheel.count >= config.waiters_max:
            self._throw_error(
                pull.call, Code.BUSY, f"{config.waiters_max} pulls are waiting; that is the bound"
            )
            return
        if pull.call.caller is not None:
            over = pull.call.caller.usage.check_waiting()
            if over is not None:
                self._reject_over(pull, over)
                return
            pull.usage = pull.call.caller.usage
        group.waiting.hold_pull(pull)
        self.wheel.add(pull, now + self._runtime.linger_s(pull.call.args.request.maxLingerTime))
        self._waiting.value = self.wheel.count
        pull.call.on_abandoned = lambda _: self.stop_waiting(pull)

    def _reject_over(self, pull: Pull, over: OverQuota) -> None:
        """Reject a pull because of a quota. The results in its request are stored."""
        record_over(pull.call, over)
        self._throw_error(pull.call, Code.BUSY, over)

    def stop_waiting(self, pull: Pull) -> None:
        """Stop waiting: the pull is answered, or its client disconnected."""
        pull.call.on_abandoned = None
        self.wheel.remove(pull)
        if pull.group is not None:
            pull.group.waiting.leave(pull)

    def expire_due(self, now: float) -> None:
        """Answer the pulls whose linger has ended."""
        for waiter in self.wheel.take_expired(now):
            waiter.give_up()
        self._waiting.value = self.wheel.count

    # --- answers

    def answer_pull(self, pull: Pull, delivery: Delivery) -> None:
        """Reply to a pull with messages, and count them as in flight at its client."""
        queue = delivery.queue
        if pull.client is not None:
            delivery.lease.assign_to(pull.client)
        if pull.call.caller is not None:
            delivery.lease.charge_to(pull.call.caller.usage)
        next_offset = None
        if pull.extended_client and pull.group is not None:
            next_offset = pull.group.subscription_of(queue).next_offset(queue, self._runtime.now())
        self._with_messages.value += 1
        answers.answer_pull(pull.call, queue.name, delivery, next_offset, pull.late, self._take_notice(pull))

    def answer_empty(self, pull: Pull) -> None:
        self._empty.value += 1
        answers.answer_empty(pull.call, pull.late, self._find_notice(pull))

    def _take_notice(self, pull: Pull) -> str:
        """Return the text for people that ddmq_client should get, once; "" if there is none."""
        if not pull.extended_client:
            return ""
        if pull.client is not None and pull.client.notice:
            notice, pull.client.notice = pull.client.notice, ""
            return notice
        return pull.notice

    def _find_notice(self, pull: Pull) -> str:
        if notice := self._take_notice(pull):
            return notice
        topic = pull.topic
        if not pull.extended_client or self.draining:
            return ""
        if topic is not None and self._runtime.backend.topic(topic) is None:
            return f"topic {topic} does not exist (yet)"
        subscriptions = () if pull.group is None else pull.group.subscriptions.values()
        paused = [each for each in subscriptions if each.paused_ms and topic in (None, each.topic)]
        return paused_text(paused[0]) if paused else ""

    def _throw_error(self, call: Call, code: int, text: str, option: str | None = None) -> None:
        self._rejected.value += 1
        answers.throw_pull_error(call, code, text, option)


def _find_request_error(request: Any) -> str | None:
    """Return why a pull request is invalid, or None; sizes that are too large are reduced instead."""
    if (request.maxBatchSize or 0) < 0:
        return f"maxBatchSize is {request.maxBatchSize}; allowed: 0 (the subscription's limit) or more"
    if (request.maxLingerTime or 0) < 0:
        return f"maxLingerTime is {request.maxLingerTime} ms; allowed: 0 (20 ms) or more"
    if request.start is not None and (
        rejection := find_start_error(request.start.decode("utf-8", "replace"))
    ):
        return rejection
    return find_length_error(request)


def remedy_text(group: str, topic: str) -> str:
    """Return how a group can get the messages before its start, as a text for people."""
    return (
        f"they are delivered with start='first' in the Consumer that makes the group, or now after"
        f" `ddmq offset reset {group} --topic {topic} --to first`"
    )


def paused_text(subscription: Subscription) -> str:
    """Return the text for people who pull from a paused subscription."""
    group, topic = subscription.group_name, subscription.topic
    since = datetime.fromtimestamp(subscription.paused_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"group {group} is paused on topic {topic} since {since}: nothing is delivered until "
        f"`ddmq group resume {group} --topic {topic}`"
    )


def pushed_text(group: Group, subscription: Subscription) -> str:
    """Return the error text for a pull from a subscription with a push sink."""
    return (
        f"group {group.name} does not pull topic {subscription.topic}: the proxy pushes it "
        f"(actions end with {subscription.config.actions[-1]})"
    )


def instance_text(name: str) -> str:
    """Return the error text for a pull that names an unknown group with an instance's name."""
    base = name.partition("%")[0]
    return (
        f"group {name} does not exist, and a name with % is not made by a pull: it is an instance of a "
        f"broadcasting group, and {base or name} is none (`ddmq group set {base or name} --topic TOPIC "
        f"--model broadcasting`); `ddmq group create {name} --topic TOPIC` makes an ordinary group"
    )


def code_of(error: Exception) -> Code:
    """Return the PullException code for an error. Clients only report it; they repeat every failed pull."""
    if isinstance(error, BoundReachedError):
        return Code.BUSY
    if isinstance(error, DrainingError):
        return Code.SHUTTING_DOWN
    if isinstance(error, CallerError):
        return Code.ILLEGAL_MESSAGE
    return Code.BACKEND_FAILED
