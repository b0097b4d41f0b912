"""Forwards results for queues that another proxy holds, and answers once that proxy has answered.

A client may send its results over any connection. This proxy looks up the owner of each queue that it does
not hold (`holders` of the backend) and sends the results on by the Thrift method `submit`, with its own
address in the field `forwardedBy`: a call with that field is never forwarded again, so results cannot
circulate. Queues between two owners, and owners that do not answer, end in TryLaterError: the client sends
its results again. An acknowledgement that carries messages is forwarded likewise, by the method `reply`
(`pass_on`).

A queue without an owner may have been released by a proxy that stopped in an orderly way and recorded its
clients' leases: a proxy that gets results for it acquires it, as for a pull, and then applies the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backend.completion import Completion, succeeded, when_all
from backend.records import QueueRef
from ddmq_common.errors import DdmqError, DrainingError, TryLaterError
from ddmq_common.metrics.catalogue import FORWARDED
from ddmq_common.names import RETRY_PREFIX, retry_topic
from proxy_consumer.core.timer_queue import NEVER
from proxy_consumer.fetches.service import Fetches
from proxy_consumer.peers import PassedReply, Peers
from proxy_consumer.runtime import Runtime
from proxy_consumer.subscription.subscription import Group

HOLDERS_AGE_S = 1.0
HOLDERS_MAX = 1_000  # cached lookups
LOOKUP_S = 2.0
ACQUIRE_WAIT_S = 2.0  # how long results wait until this proxy has acquired their queues
POLL_INTERVAL_S = 0.005
_RETRY_MARK = f"_{RETRY_PREFIX}_".encode()  # only retry qids contain it

Done = Callable[[Exception | None], None]
ForeignResult = tuple[Group, Any]  # a result with the group of its queue
_Holders = dict[bytes, str]  # qid → address


class Forwarding:
    """Looks up the proxies that own queues, and forwards results to them."""

    def __init__(self, runtime: Runtime, fetches: Fetches) -> None:
        self._runtime = runtime
        self._fetches = fetches
        self._peers = Peers(runtime)
        self._cached: dict[tuple[str, bytes], tuple[float, _Holders]] = {}
        self._done = runtime.metrics.cell(FORWARDED, "forwarded")
        self._no_owner = runtime.metrics.cell(FORWARDED, "nobody holds it")
        self._between = runtime.metrics.cell(FORWARDED, "between two owners")

    def may_be_elsewhere(self, group: Group, context: Any) -> bool:
        """Whether another proxy may hold the queue that `context` names."""
        return bool(self._runtime.address) and self.queue_exists(group, context)

    def queue_exists(self, group: Group, context: Any) -> bool:
        """Whether `context` names an existing queue of the group, on any proxy."""
        if context.topic not in group.subscriptions:
            return False
        return self._qid_exists(
            _holders_key(group, context)[1].decode("utf-8", "replace"), context.qid or b""
        )

    def _qid_exists(self, topic: str, qid: bytes) -> bool:
        """Whether `qid` names an existing queue of the topic; ids invented by a client do not."""
        info, number = self._runtime.backend.topic(topic), qid.rpartition(b"_")[2]
        if info is None or not number.isdigit() or len(number) > 9 or int(number) >= info.queues:
            return False
        return self._runtime.qid(QueueRef(topic, info.incarnation, int(number))).encode() == qid

    def send(
        self, foreign: list[ForeignResult], apply: Callable[[list[ForeignResult], Done], None], done: Done
    ) -> None:
        """Forward results; `done` is called with the first error, or None once all are answered.

        `apply` is called to apply the results of queues that this proxy has acquired.
        """
        lookups = {
            key: self._find_holders(key)
            for key in {_holders_key(group, one.context) for group, one in foreign}
        }
        when_all(lookups.values(), lambda: self._dispatch_results(foreign, lookups, apply, done))

    def pass_on(self, group: Group, context: Any, passed: PassedReply) -> None:
        """Forward a reply, an acknowledgement that carries messages, to the proxy that holds its queue.

        `context` names the queue. If no other proxy holds it, `passed.done` gets TryLaterError.
        """
        key = _holders_key(group, context)

        def on_holders(lookup: Completion[_Holders]) -> None:
            holders = {} if lookup.error is not None else lookup.value
            address = holders.get(context.qid, "")
            if address not in ("", self._runtime.address):
                self._done.value += 1
                self._peers.reply(address, passed)
                return
            self._cached.pop(key, None)
            if lookup.error is None and not holders and not self._runtime.stopping:
                self._acquire_queues(group, context.topic)  # a repeated acknowledgement is handled here
            self._between.value += 1
            passed.done(TryLaterError(f"queue {_as_text(context.qid)} is between two owners"))

        self._find_holders(key).then(on_holders)

    def forget_holders(self) -> None:
        """Clear the cached owners, because one of them has lost its queue."""
        self._cached.clear()

    def _find_holders(self, key: tuple[str, bytes]) -> Completion[_Holders]:
        runtime = self._runtime
        cached = self._cached.get(key)
        if cached is not None and cached[0] > runtime.now():
            return succeeded(cached[1])
        lookup: Completion[_Holders] = Completion()

        def on_answer(holders: Completion[Mapping[QueueRef, str]]) -> None:
            if holders.error is not None:
                lookup.fail(holders.error)
                return
            by_qid = {runtime.qid(queue).encode(): where for queue, where in holders.value.items()}
            if len(self._cached) >= HOLDERS_MAX:
                self._cached.clear()
            self._cached[key] = (runtime.now() + HOLDERS_AGE_S, by_qid)
            lookup.succeed(by_qid)

        group, topic = key[0], key[1].decode("utf-8", "replace")
        try:
            runtime.backend.holders(group, topic, runtime.now() + LOOKUP_S).then(on_answer)
        except DdmqError as error:
            lookup.fail(error)
        return lookup

    def _dispatch_results(
        self,
        foreign: list[ForeignResult],
        lookups: Mapping[tuple[str, bytes], Completion[_Holders]],
        apply: Callable[[list[ForeignResult], Done], None],
        done: Done,
    ) -> None:
        by_address: dict[str, list[Any]] = {}
        acquiring: list[ForeignResult] = []
        error: Exception | None = None
        for group, result in foreign:
            context = result.context
            lookup = lookups[_holders_key(group, context)]
            if lookup.error is not None:
                error = error or TryLaterError(
                    f"the owner of queue {_as_text(context.qid)} is unknown: {lookup.error}"
                )
            elif not (holders := lookup.value):
                self._cached.pop(_holders_key(group, context), None)
                if self._runtime.stopping:
                    error = error or DrainingError("this proxy is shutting down; send the results again")
                elif self._acquire_queues(group, context.topic):
                    acquiring.append((group, result))
                else:
                    self._no_owner.value += 1
                    group.unknown_queue.value += 1
            elif holders.get(context.qid, self._runtime.address) in ("", self._runtime.address):
                self._between.value += 1
                self._cached.pop(_holders_key(group, context), None)
                error = error or TryLaterError(
                    f"queue {_as_text(context.qid)} is between two owners; send the results again"
                )
            else:
                by_address.setdefault(holders[context.qid], []).append(result)
        if not acquiring:
            self._submit_results(by_address, error, done)
            return
        waiting = AwaitedQueues(self._runtime, acquiring, apply, done)
        self._submit_results(by_address, error, waiting.passed_on)

    def _acquire_queues(self, group: Group, topic: bytes) -> bool:
        """Start to acquire the group's unowned queues of `topic`, as a pull does; False if the topic cannot
        be pulled here."""
        subscription = group.subscriptions.get(topic)
        if (
            subscription is None
            or subscription.creating
            or subscription.pushed
            or self._fetches.find_pull_error(group)
        ):
            return False
        subscription.on_use(self._runtime.now())
        return True

    def _submit_results(
        self, by_address: Mapping[str, list[Any]], error: Exception | None, done: Done
    ) -> None:
        unanswered = len(by_address)
        if not unanswered:
            done(error)
            return

        def on_answer(failure: Exception | None) -> None:
            nonlocal unanswered, error
            unanswered -= 1
            if failure is None:
                self._done.value += 1
            else:
                self._cached.clear()  # the queue may have moved
                error = error or failure
            if unanswered == 0:
                done(error)

        for address, results in by_address.items():
            self._peers.submit(address, results, on_answer)

    def close(self) -> None:
        """Close the connections to other proxies; calls in flight fail."""
        self._peers.close()


class AwaitedQueues:
    """Results that wait until this proxy has acquired their queues. Also a task of the timer queue."""

    def __init__(
        self,
        runtime: Runtime,
        foreign: list[ForeignResult],
        apply: Callable[[list[ForeignResult], Done], None],
        done: Done,
    ) -> None:
        self.wake_at = NEVER
        self._runtime = runtime
        self._results = foreign
        self._apply = apply
        self._done = done
        self._until = runtime.now() + ACQUIRE_WAIT_S
        self._error: Exception | None = None

    def passed_on(self, error: Exception | None) -> None:
        """Start to wait, after the other results of the call were answered with `error`."""
        self._error = error
        self.due(self._runtime.now())

    def due(self, now: float) -> None:
        """Apply the results if all their queues are held here; otherwise check again a little later, or
        fail."""
        unowned = [
            each
            for group, each in self._results
            if (each.context.topic, each.context.qid) not in group.queues
        ]
        if not unowned:
            self._apply(self._results, lambda error: self._done(error or self._error))
        elif now < self._until and not self._runtime.stopping:
            self._runtime.timers.set(self, now + POLL_INTERVAL_S)
        else:
            qid = _as_text(unowned[0].context.qid)
            self._done(TryLaterError(f"queue {qid} is between two owners; send the results again"))


def _holders_key(group: Group, context: Any) -> tuple[str, bytes]:
    """Return the group name, and the topic whose owners hold the queue: the retry topic for retried
    messages."""
    retried = _RETRY_MARK in (context.qid or b"")
    return group.name, retry_topic(group.name).encode() if retried else context.topic


def _as_text(name: bytes) -> str:
    return name[:140].decode("utf-8", "replace")
