# Generated from ddmq_client/aio/sender.py by tools/unasync.py: change that one.
"""Sending: Sends, as applications call it; JobSender, which carries a job to its end over the
producer's connections.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Literal

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core import verdicts
from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import Node
from ddmq_client.core.sending import SendJob
from ddmq_client.core.verdicts import CallFailed, CallVerdict
from ddmq_client.delays import When, when_of
from ddmq_client.errors import BusyError, ClosedError, LoginError, NotStoredError, OptionError, SendError
from ddmq_client.net.router import ProxyRouter
from ddmq_client.net.sync import now
from ddmq_client.observer import ClientObserver, SendCall, observe_send
from ddmq_client.outgoing import OutgoingMessage, SendResult, ShardKey, with_level
from ddmq_client.wire.producing import ProxyCallError, read_results

Read = Callable[[bytes, int, bytes], list[SendResult]]  # payload, sequence id, method
ONEWAY_ATTEMPTS = 4


class JobSender:
    """Runs send jobs to their end, each in its caller's thread or task. Safe for many threads."""

    def __init__(self, router: ProxyRouter) -> None:
        self._router = router
        self.last_error: SendError | None = None  # of the latest attempt, also of one that is tried again

    def run(self, job: SendJob, read: Read = read_results) -> list[SendResult]:
        """Run a job within its deadline; return all results. `read` extracts the results from an answer."""
        router = self._router
        try:
            while True:
                node = router.pick_node(job.tried, job.deadline)
                if node is None:
                    job.give_up(NotStoredError(router.describe_unresolved()))
                    return job.results
                keys = router.recognises_keys() if job.has_keys else None
                job.begin(node, router.recognises_resends(), keys)
                elsewhere = self._attempt_send(job, node, read)
                self.last_error = job.error
                wait = job.next_wait(now(), elsewhere)
                if wait is None:
                    return job.results
                if wait:
                    router.pause(wait)
        except BusyError as error:
            job.give_up(error)
        except ClosedError as error:
            job.give_up(NotStoredError(str(error)))
        finally:
            job.end()
        return job.results

    def oneway(self, make_frame: Callable[[float, int], bytes], deadline: float) -> None:
        """Write a request that has no answer. Raises NotStoredError if it could not be written."""
        tried: set[Node] = set()
        failure: NotStoredError | None = None
        for _ in range(ONEWAY_ATTEMPTS):
            node = self._router.pick_node(tried, deadline)
            if node is None:
                break
            if now() >= deadline:
                failure = failure or NotStoredError(
                    f"the time is up (timeout_ms) before {node.name} was tried"
                )
                break
            tried.add(node)
            try:
                self._write(node, make_frame, deadline)
                return
            except CallFailed as error:
                login_failed = error.verdict is CallVerdict.LOGIN_FAILED
                failure = (LoginError if login_failed else NotStoredError)(error.text, None, node.name)
                elsewhere = self._router.record_outcome(node, error.verdict, tried)
                if login_failed and not elsewhere:
                    break
        raise failure or NotStoredError(self._router.describe_unresolved())

    def _attempt_send(self, job: SendJob, node: Node, read: Read) -> bool:
        """Make one attempt at `node`; return whether an untried node is in rotation."""
        try:
            results = self._exchange_frames(job, node, read)
        except CallFailed as failure:
            return self._record_failure(job, node, failure.verdict, failure.text)
        except FrameError as error:
            return self._record_failure(job, node, CallVerdict.LOST, f"{error} (from {node.name})")
        except ProxyCallError as error:
            return self._record_failure(job, node, verdicts.of_error_kind(error.kind), str(error))
        stored = all(result.code == 0 for result in results)
        elsewhere = not stored and self._router.has_fresh(job.tried)
        verdict = job.take_results(node, results, elsewhere)
        if verdict is CallVerdict.STORED and node.is_healthy:
            return False
        return self._router.record_outcome(node, verdict, job.tried)

    def _record_failure(self, job: SendJob, node: Node, verdict: CallVerdict, text: str) -> bool:
        elsewhere = self._router.record_outcome(node, verdict, job.tried)
        job.take_failure(node, verdict, text, elsewhere)
        return elsewhere

    def _exchange_frames(self, job: SendJob, node: Node, read: Read) -> list[SendResult]:
        connection = self._router.lease(node, job.deadline)
        try:
            deadline = job.attempt_deadline(now())
            payload, sequence_id = connection.call(job.encode_request, deadline)
            return read(payload, sequence_id, job.method)
        except FrameError:
            connection.close()  # what comes next on it cannot be trusted
            raise
        finally:
            self._router.give_back(node, connection)

    def _write(self, node: Node, make_frame: Callable[[float, int], bytes], deadline: float) -> None:
        connection = self._router.lease(node, deadline)
        try:
            connection.send_only(make_frame, deadline)
        finally:
            self._router.give_back(node, connection)


class Sends(ABC):
    """The `send` methods, shared by the producer and its transactions."""

    _observer: ClientObserver | None
    _single: SendCall  # what an observer is told of a send

    @explain_arguments("docs/client.md#sending", missing="for an OutgoingMessage: send_message(message)")
    def send(
        self,
        topic: str,
        body: object,
        *,
        key: str | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        shard_key: ShardKey | None = None,
        queue: int | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        level: int | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: timedelta | None = None,
        times: int | None = None,
        catch_up: Literal["fire_once", "all", "skip"] | None = None,
        idempotency_key: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored. Arguments: see OutgoingMessage; timeout_ms: see
        the class.

        delay, deliver_at  deliver the message after this delay, or at this time (a datetime with a time zone)
        level              deliver it after this delay level (1 to 18); such a message cannot be cancelled
        cron, zone         deliver it at each time of a five-field cron expression, in this time zone (UTC)
        every, times       deliver it repeatedly, `times` in all (without end when absent); with a cron,
                           this often at each of its times
        catch_up           the deliveries to make if some were missed: "fire_once" (default), "all" or "skip"

        The result of a delayed message (except by `level`) is a DelayResult with `delay_id` and `due_at`.

        Raises InvalidMessageError, NoSuchTopicError (NotAllowedError) or NotStoredError (ThrottledError,
        BusyError, LoginError) if the message is certainly not stored, UnknownOutcomeError if it may be
        stored, and ClosedError.
        """
        try:
            when = when_of(delay, deliver_at, cron, zone, every, times, catch_up, level)
            properties = with_level(properties, level)
        except OptionError as error:
            raise self._argument_error(error) from None
        message = OutgoingMessage(topic, body, key, tags, properties, shard_key, queue, idempotency_key)
        if self._observer is not None:
            return self._send_observed(message, when, timeout_ms)
        return self._send(message, when, timeout_ms)

    @explain_arguments("docs/client.md#sending", surplus="for a topic and a body: send(topic, body)")
    def send_message(self, message: OutgoingMessage, *, timeout_ms: int | None = None) -> SendResult:
        """Send one message, given as an object, and wait until it is stored; see `send`."""
        if self._observer is not None:
            return self._send_observed(message, None, timeout_ms)
        return self._send(message, None, timeout_ms)

    def _send_observed(
        self, message: OutgoingMessage, when: When | None, timeout_ms: int | None
    ) -> SendResult:
        assert self._observer is not None
        with observe_send(self._observer.sending((message,), self._single)) as send:
            result = self._send(send.messages[0], when, timeout_ms)
            send.ended((result,))
            return result

    def _argument_error(self, error: OptionError) -> OptionError:
        """Convert the error about wrong arguments of a send, of which nothing was sent."""
        return error

    @abstractmethod
    def _send(self, message: OutgoingMessage, when: When | None, timeout_ms: int | None) -> SendResult:
        """Send a message; return the result if it is stored, else raise its error."""
