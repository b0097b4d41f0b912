# Generated from ddmq_client/aio/fetching.py by tools/unasync.py: change that one.
"""FetchConsumer: the low-level way to read. The application manages the offset in every queue itself.

    with FetchConsumer("mq-1:9713", "loader") as consumer:
        while running():
            for queue in consumer.fetch(100):
                store(queue.topic, queue.queue_id, queue.messages)
            consumer.ack()

The proxies share the group's queues out among its consumers. Nothing is leased, filtered by tag, retried or
dead-lettered: messages come in order, queue by queue, from where the client says, and acknowledging means
storing the next offset of a queue. For one caller at a time.

Each proxy is called by an activity of its own, which lasts as long as the call: nothing keeps running when a
consumer is dropped without being closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType

from ddmq_client.application.arguments import explain_arguments
from ddmq_client.core.fetching import Assignments, FetchAnswer, Queue, Round
from ddmq_client.core.instance_offsets import Offsets
from ddmq_client.core.nodes import (
    RESOLVE_EVERY_S,
    UNRESOLVED_RETRY_S,
    ProxyAddress,
    describe_unresolved,
    parse_addresses,
)
from ddmq_client.core.settings import TIMEOUT_MS_MAX, check, check_text
from ddmq_client.errors import ClosedError, PullError
from ddmq_client.idl.codes import CONSUMER_PORT
from ddmq_client.net.connection import FramedConnection, resolve_in_time
from ddmq_client.net.sync import INLINE, Activity, Condition, Home, Lock, now
from ddmq_client.process import new_client_id
from ddmq_client.received import FetchedQueue
from ddmq_client.security.login import TokenSource
from ddmq_client.security.profiles import choose_connection
from ddmq_client.security.tls import TlsOptions, secure_addresses
from ddmq_client.wire.consuming import (
    FAILURES,
    FetchSettings,
    ack_frame,
    fetch_frame,
    leave_frame,
    read_acked,
    read_fetched,
    to_login_error,
)

LINGER_MS_MAX = 30_000
ACK_TRIES = 3
LEAVE_S = 1.0
RESOLVE_WAIT_S = 0.2  # while older addresses are cached: a name server that hangs delays no fetch for longer


class FetchConsumer:
    """Fetches messages of all queues of a group, and acknowledges by offset.

    proxies      written as for Consumer; each owns other queues, so all are called, at the same time
    group        the consumer group
    consumer_id  the id of this consumer in its group; generated when absent. A proxy gives the queues of an
                 id that was closed, or made no call for 30 s, to other consumers
    timeout_ms   for one call, in addition to its linger time
    token, token_file  how this client logs in, as for Consumer
    profile      as for Consumer
    """

    @explain_arguments("docs/client.md#reading-by-offset")
    def __init__(
        self,
        proxies: str | Sequence[str] | None,
        group: str,
        *,
        consumer_id: str | None = None,
        timeout_ms: int = 5_000,
        tls: bool | TlsOptions | None = None,
        token: TokenSource = None,
        token_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
    ) -> None:
        """Check the arguments (raises OptionError); the first fetch connects."""
        connection = choose_connection("consumer", profile, proxies, tls, token, token_file)
        addresses = parse_addresses(connection.proxies, CONSUMER_PORT, login=connection.login)
        self._proxies = secure_addresses(addresses, connection.tls)
        check_text("group", group)
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        name = new_client_id() if consumer_id is None else consumer_id
        check_text("consumer_id", name)
        self._settings = FetchSettings(group, name, name, "clustering")
        self._timeout_s = timeout_ms / 1000
        self._assignments = Assignments(group)
        self._address_cache: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._addresses: dict[str, ProxyAddress] = {}
        self._connections: dict[str, FramedConnection] = {}
        self._for_acks: dict[str, FramedConnection] = {}  # of their own: a fetch may be waiting
        self._calls: dict[str, Activity] = {}
        self._lock = Lock()  # of the two below, which completed calls change
        self._since: dict[str, float] = {}  # when the pending call to a proxy started
        self._answers: list[FetchAnswer] = []
        self._changed = Condition(self._lock)
        self._home = Home("consumer")
        self._resolve_at = 0.0
        self._closed = False

    @property
    def consumer_id(self) -> str:
        """The id of this consumer in its group."""
        return self._settings.consumer_id

    @property
    def assignments(self) -> list[Queue]:
        """The (topic, queue name on the wire) of each queue that this consumer owned at the last fetch."""
        return self._assignments.list_queues()

    def seek(self, topic: str, queue: int | str, offset: int) -> None:
        """Let the next fetch of this queue begin at `offset`.

        An offset out of range moves to the nearest existing one. `queue`: the `queue_id` of an assigned queue
        (OptionError for another one), or its name on the wire.
        """
        self._assignments.seek(topic, queue, offset)
        with self._lock:
            waiting = self._since.keys() - {answer.proxy for answer in self._answers}
        for name in waiting:  # from where this queue was: they may last for all their linger time
            self._drop_call(name)

    def fetch(self, max_messages: int = 32, linger_ms: int = 500) -> list[FetchedQueue]:
        """Fetch up to `max_messages` of each queue; return one entry for each queue with messages.

        Waits up to `linger_ms` for the first messages, and does not wait for other proxies once one has
        delivered some. Raises PullError if a proxy rejects the call, or the last error if no proxy answers.
        An interrupted fetch loses nothing: the next fetch returns its messages.
        """
        check("max_messages", max_messages, 1, 1_000_000)
        check("linger_ms", linger_ms, 1, LINGER_MS_MAX)
        self._find_proxies()
        time = now()
        fetch = Round(self._assignments, self._addresses, max_messages, time, linger_ms / 1000)
        while True:
            for name in fetch.select_proxies(self._since):
                self._start_call(name, max_messages, fetch.linger_ms(time))
            if not self._answers:
                until = fetch.wait_until(now(), self._since)
                if until is None:
                    return fetch.collect_result(time)
                self._wait(until)
            time = now()
            for answer in self._take_answers():
                fetch.take_answer(answer, time)

    def ack(self, offsets: Mapping[str, Mapping[int, int] | Mapping[str, int]] | None = None) -> bool:
        """Store the group's next offset in queues (topic → queue → offset).

        By default, of all fetched messages. Queues are named as in `seek`. Returns True once the offsets are
        durable, or False if a proxy could not store them in three attempts: the messages may then be
        delivered again. Queues that are no longer assigned to this consumer are skipped.
        """
        self._home.check_process()
        stored = True
        for name, mine in self._assignments.acks_by_proxy(offsets).items():
            deadline = now() + self._timeout_s
            for _ in range(ACK_TRIES):
                if self._ack_at(name, mine, deadline):
                    self._assignments.confirm_acks(mine)
                    break
            else:
                stored = False
        return stored

    def close(self) -> None:
        """Leave the group, so that other consumers get the queues at once, and close. May be called twice."""
        was_closed, self._closed = self._closed, True
        if self._home.is_forked:
            return
        proxies = list(self._connections)
        self._break_off()
        for name in [] if was_closed else proxies:
            self._leave(name)

    def __enter__(self) -> FetchConsumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _find_proxies(self) -> None:
        if self._closed:
            raise ClosedError("the consumer has been closed")
        self._home.check_process()
        if now() >= self._resolve_at or not self._addresses:
            wait_s = RESOLVE_WAIT_S if self._addresses else self._timeout_s
            resolved = resolve_in_time(self._proxies, self._address_cache, wait_s)
            addresses = (
                self._addresses if resolved is None else {str(address): address for address in resolved}
            )
            self._resolve_at = now() + (RESOLVE_EVERY_S if addresses else UNRESOLVED_RETRY_S)
            for name in self._addresses.keys() - addresses.keys():
                self._drop_call(name)
                self._assignments.drop_proxy(name)
            self._addresses = addresses
            if not addresses:
                raise PullError(describe_unresolved(self._proxies, in_time=resolved is not None))

    def _start_call(self, name: str, max_messages: int, linger_ms: int) -> None:
        """Start a fetch at this proxy in an activity of its own, because it may outlast the current
        `fetch`."""
        connection = self._connections.setdefault(name, FramedConnection(self._addresses[name]))
        offsets, started = self._assignments.next_offsets(name), now()
        call = partial(self._call, name, connection, offsets, max_messages, linger_ms, started)
        self._since[name] = started
        if INLINE and len(self._addresses) == 1:
            call()
            return
        self._calls[name] = Activity(call, f"ddmq-fetch-{name}")
        try:
            self._calls[name].start()
        except RuntimeError:  # no thread could be started
            self._drop_call(name)
            raise

    def _call(
        self,
        name: str,
        connection: FramedConnection,
        offsets: Offsets,
        max_messages: int,
        linger_ms: int,
        started: float,
    ) -> None:
        def frame(at: float, sequence_id: int) -> bytes:
            return fetch_frame(self._settings, offsets, max_messages, linger_ms, sequence_id)

        outcome: Sequence[FetchedQueue] | Exception
        try:
            outcome = read_fetched(*connection.call(frame, started + linger_ms / 1000 + self._timeout_s))
        except Exception as error:
            if not isinstance(error, PullError):
                connection.close()
            outcome = to_login_error(error, name)
        except BaseException:  # interrupted, or cancelled by whoever cancels everything
            with self._lock:
                if self._since.get(name) == started:
                    del self._since[name]
                    self._changed.notify()
            raise
        with self._lock:
            if self._since.get(name) == started:  # else the call was dropped
                self._answers.append(FetchAnswer(name, offsets, max_messages, started, now(), outcome))
                self._changed.notify()

    def _wait(self, until: float) -> None:
        """Wait until a call is completed, at most until `until`."""
        with self._lock:
            remaining_s = until - now()
            if not self._answers and remaining_s > 0:
                self._changed.wait(min(remaining_s, threading.TIMEOUT_MAX))

    def _take_answers(self) -> list[FetchAnswer]:
        """Remove and return the received answers, in their order."""
        with self._lock:
            answers, self._answers = self._answers, []
            for answer in answers:
                del self._since[answer.proxy]
            return answers

    def _drop_call(self, name: str) -> None:
        """Cancel the call to this proxy, and discard its answer."""
        with self._lock:
            self._since.pop(name, None)
            self._answers = [answer for answer in self._answers if answer.proxy != name]
        call = self._calls.pop(name, None)
        if call is not None:
            call.cancel()
        connection = self._connections.pop(name, None)
        if connection is not None:
            connection.close()

    def _break_off(self) -> None:
        for name in list(self._connections):
            self._drop_call(name)
        for connection in self._for_acks.values():
            connection.close()
        self._for_acks.clear()

    def _ack_at(self, name: str, offsets: Mapping[str, Mapping[str, int]], deadline: float) -> bool:
        address = self._addresses.get(name)
        if address is None or self._closed:
            return False
        connection = self._for_acks.setdefault(name, FramedConnection(address))
        try:
            return read_acked(
                *connection.call(
                    lambda at, sequence_id: ack_frame(self._settings, offsets, sequence_id), deadline
                )
            )
        except FAILURES:
            connection.close()
            return False

    def _leave(self, name: str) -> None:
        """Announce to one proxy that this consumer fetches no more.

        If that fails, other consumers get its queues after 30 s.
        """
        address = self._addresses.get(name)
        if address is None:
            return
        connection = FramedConnection(address)
        with suppress(*FAILURES):
            connection.call(lambda at, sequence_id: leave_frame(self._settings, sequence_id), now() + LEAVE_S)
        connection.close()
