# Generated from ddmq_client/aio/replying.py by tools/unasync.py: change that one.
"""ReplyCalls: acknowledgements that carry messages, each a call with connections of their own.

A call goes to the proxy that the message came from. If that proxy does not answer, or no longer owns the
queue, the call goes to the other proxies, one after another. Each concurrent acknowledgement has its own
connection.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import ProxyAddress
from ddmq_client.core.prefetch_buffer import PrefetchBuffer
from ddmq_client.core.replying import ReplyJob, ReplyTo
from ddmq_client.core.settings import ConsumerSettings
from ddmq_client.core.verdicts import CallFailed, CallVerdict, of_error_kind
from ddmq_client.errors import ClientError, ClosedError, LeaseOverError
from ddmq_client.net.connection import FramedConnection
from ddmq_client.net.sync import Condition, Lock, now, sleep
from ddmq_client.outgoing import SendResult
from ddmq_client.received import Message
from ddmq_client.wire.producing import UNKNOWN_METHOD, ProxyCallError
from ddmq_client.wire.replying import read_reply, reply_request

IDLE_MAX = 16  # idle connections to one proxy


class ReplyCalls:
    """Sends the acknowledgements with messages of one consumer. Safe for many threads."""

    def __init__(
        self, settings: ConsumerSettings, shared: Lock, buffer: PrefetchBuffer, space_freed: Condition
    ) -> None:
        """Create the calls of one consumer.

        `shared`: the lock of the buffer. `space_freed`: notified when a message was settled.
        """
        self._settings = settings
        self._shared = shared
        self._buffer = buffer
        self._space_freed = space_freed
        self._lock = Lock()
        self._addresses: Sequence[ProxyAddress] = ()
        self._idle: dict[ProxyAddress, list[FramedConnection]] = {}
        self._in_use: set[FramedConnection] = set()
        self._closed = False

    def set_proxies(self, addresses: Sequence[ProxyAddress]) -> None:
        """Set the proxies, and close idle connections to any others."""
        with self._lock:
            self._addresses = list(addresses)
            removed = [self._idle.pop(address) for address in set(self._idle) - set(addresses)]
        for connection in (each for idle in removed for each in idle):
            connection.close()

    def acknowledge(
        self, message: Message, messages: Sequence[bytes], timeout_ms: int | None
    ) -> Sequence[SendResult]:
        """Acknowledge a message and send other messages, in one commit; return the results of the sends."""
        with self._shared:
            if not self._buffer.begin_reply(message):
                raise ClientError(f"{message!r} is settled, or has no lease; nothing is sent with it")
        stored = False
        try:
            results = self._run_job(message, messages, timeout_ms)
            stored = True
        finally:
            with self._shared:
                self._buffer.end_reply(message, stored=stored)
                self._space_freed.notify_all()
        return results

    def _run_job(
        self, message: Message, messages: Sequence[bytes], timeout_ms: int | None
    ) -> Sequence[SendResult]:
        settings, origin = self._settings, message.delivery.origin
        to = ReplyTo(origin.group, origin.topic, origin.queue, message.offset, message.lease_id or 0)
        timeout_s = (settings.timeout_ms if timeout_ms is None else timeout_ms) / 1000
        job = ReplyJob(reply_request(to, settings.client_id), messages, now() + timeout_s)
        self._run(job, message.delivery.source.proxy.resolve_failover().name)
        if job.error is not None:
            message.lost = message.lost or isinstance(job.error, LeaseOverError)
            raise job.error
        return job.results

    def _run(self, job: ReplyJob, first: str) -> None:
        """Retry the job until it ends or its deadline passes.

        `first`: the proxy to ask first, as HOST:PORT.
        """
        with self._lock:
            addresses = sorted(self._addresses, key=lambda address: str(address) != first)
        attempt = 0
        wait: float | None = 0.0
        while wait is not None and addresses:
            if wait:
                sleep(wait)
            self._try_proxy(job, addresses[attempt % len(addresses)])
            attempt += 1
            wait = job.next_wait(now(), attempt < len(addresses))

    def _try_proxy(self, job: ReplyJob, address: ProxyAddress) -> None:
        connection = self._take_connection(address)
        name = str(address)
        try:
            payload, sequence_id = connection.call(job.encode_request, job.attempt_deadline(now()))
            job.take_answer(read_reply(payload, sequence_id), name)
        except CallFailed as failure:
            job.take_failure(failure.verdict, failure.text, name)
        except FrameError as error:
            connection.close()
            job.take_failure(CallVerdict.LOST, f"{error} (from {name})", name)
        except ProxyCallError as error:
            if error.kind == UNKNOWN_METHOD:
                job.on_unsupported(f"the proxy at {name} is too old for acknowledgements that carry messages")
            else:
                job.take_failure(of_error_kind(error.kind), str(error), name)
        finally:
            self._give_back(address, connection)

    def _take_connection(self, address: ProxyAddress) -> FramedConnection:
        with self._lock:
            if self._closed:
                raise ClosedError("the consumer has been stopped")
            idle = self._idle.get(address)
            connection = idle.pop() if idle else FramedConnection(address)
            self._in_use.add(connection)
            return connection

    def _give_back(self, address: ProxyAddress, connection: FramedConnection) -> None:
        with self._lock:
            self._in_use.discard(connection)
            idle = self._idle.setdefault(address, [])
            keep = not (connection.closed or self._closed) and len(idle) < IDLE_MAX
            if keep:
                idle.append(connection)
        if not keep:
            connection.close()

    def close(self) -> None:
        """Close every connection; calls in progress fail."""
        with self._lock:
            self._closed = True
            connections = [each for idle in self._idle.values() for each in idle] + list(self._in_use)
            self._idle.clear()
        for connection in connections:
            connection.close()
