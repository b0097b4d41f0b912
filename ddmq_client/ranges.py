"""RangeReader: reads ranges of offsets and remembers nothing, for pipelines that keep every place themselves.

    with RangeReader("mq-1:9713", "archive", ["orders"]) as reader:
        for at in reader.bounds():
            found = reader.read(at.topic, at.queue_id, at.first, 500)

The group must be of the model broadcasting, or not exist: then the first call makes it. Nothing is shared
out, leased, acknowledged or stored at the proxies, and each of them can read every queue: the addresses are
alternatives, and the next one is called when one fails. For one thread at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from ddmq_client.core.frames import FrameError
from ddmq_client.core.nodes import ProxyAddress, parse_addresses
from ddmq_client.core.settings import TIMEOUT_MS_MAX, check, check_text, topic_names
from ddmq_client.core.verdicts import CallFailed
from ddmq_client.errors import ClosedError, LoginError, OptionError, PullError
from ddmq_client.idl.codes import CONSUMER_PORT, Code
from ddmq_client.net.connection import FramedConnection, resolve_in_time
from ddmq_client.process import Home, new_client_id
from ddmq_client.received import FetchedQueue, Message, fetched_here, queue_number
from ddmq_client.security.login import TokenSource
from ddmq_client.security.profiles import choose_connection
from ddmq_client.security.tls import TlsOptions, secure_addresses
from ddmq_client.wire.consuming import FetchSettings, fetch_frame, is_permanent, read_fetched, to_login_error
from ddmq_client.wire.producing import ProxyCallError

LINGER_MS_MAX = 30_000
TRIES_MIN = 3  # a proxy that hangs leaves time to ask others
PAUSE_S = (0.02, 0.5)  # between tries when no proxy could answer: first, last
ELSEWHERE = (CallFailed, FrameError, ProxyCallError)
LATER = (Code.BUSY, Code.SHUTTING_DOWN)


class QueueBounds(NamedTuple):
    """The range of readable offsets, `[first, end)`, of one queue."""

    topic: str
    queue: str
    first: int
    end: int

    @property
    def queue_id(self) -> int:
        """The number of the queue in its topic, as `SendResult.queue_id`; -1 if its name has none."""
        return queue_number(self.queue)

    @property
    def number(self) -> int:
        """An old name of `queue_id`, which will be removed in the next release."""
        return self.queue_id


class RangeReader:
    """Reads any range of any queue of `topics`.

    proxies     consumer proxies, written as for Consumer; any of them can serve every read
    group       the group whose subscriptions define what may be read (with their filters); its model is
                broadcasting
    timeout_ms  for one method call, during which all proxies are retried
    client_id   name in the proxies' logs; made from host and process when absent
    token, token_file  how this client logs in, as for Consumer
    profile      as for Consumer
    """

    def __init__(
        self,
        proxies: str | Sequence[str] | None,
        group: str,
        topics: str | Sequence[str],
        *,
        timeout_ms: int = 10_000,
        client_id: str | None = None,
        tls: bool | TlsOptions | None = None,
        token: TokenSource = None,
        token_file: str | os.PathLike[str] | None = None,
        profile: str | None = None,
    ) -> None:
        """Check the arguments (raises OptionError); the first call connects."""
        connection = choose_connection("consumer", profile, proxies, tls, token, token_file)
        addresses = parse_addresses(connection.proxies, CONSUMER_PORT, login=connection.login)
        self._proxies = secure_addresses(addresses, connection.tls)
        check_text("group", group)
        check("timeout_ms", timeout_ms, 1, TIMEOUT_MS_MAX)
        topics = topic_names(topics)
        if not topics:
            raise OptionError("topics is empty; allowed: the names of the topics to read, at least one")
        for topic in topics:
            check_text("topics", topic)
        name = client_id or new_client_id()
        self._settings = FetchSettings(group, name, name, "broadcasting", topics, exact=True)
        self._timeout_s = timeout_ms / 1000
        self._address_cache: dict[ProxyAddress, list[ProxyAddress]] = {}
        self._names: dict[tuple[str, int], str] = {}  # of the queues, on the wire
        self._connection: FramedConnection | None = None
        self._home = Home("reader")
        self._closed = False

    def bounds(self) -> list[QueueBounds]:
        """Return the readable range of every queue of the topics; a topic that does not exist has no queues.

        Raises PullError if the proxies reject the call, or none answers in time.
        """
        queues = [
            QueueBounds(one.topic, one.queue, one.first_offset or 0, one.end_offset or 0)
            for one in self._fetch({}, 1, 1)
        ]
        self._names = {(each.topic, each.queue_id): each.queue for each in queues}
        return queues

    def read(
        self, topic: str, queue: int | str, offset: int, max_messages: int = 1_000, linger_ms: int = 20
    ) -> FetchedQueue:
        """Return messages of `queue` from `offset` on; the next ones start at `next_offset`.

        `queue`: the `queue_id` or the wire name of a queue of this reader's topics. Returns at most
        `max_messages`, and no more than the subscription's batch limit and 4 MiB allow. At the end of the
        queue it waits `linger_ms`. For an offset out of range it returns no messages, and the nearest offset
        to continue at. Raises PullError if the queue does not exist, and as `bounds` does.
        """
        check("offset", offset, 0, 2**63 - 1)
        check("max_messages", max_messages, 1, 1_000_000)
        check("linger_ms", linger_ms, 1, LINGER_MS_MAX)
        name = queue if isinstance(queue, str) else self._name_of(topic, queue)
        for batch in self._fetch({topic: {name: offset}}, max_messages, linger_ms):
            if (batch.topic, batch.queue) == (topic, name):
                fetched_here(batch, self._settings.group, time.monotonic())
                return batch
        raise PullError(f"queue {queue} of topic {topic} cannot be read: there is no such queue (any more)")

    def _name_of(self, topic: str, queue_id: int) -> str:
        if (topic, queue_id) not in self._names:
            self.bounds()
        name = self._names.get((topic, queue_id))
        if name is None:
            raise PullError(f"topic {topic} has no queue {queue_id}, or is none of this reader's topics")
        return name

    def offset_at(self, bounds: QueueBounds, stored_ms: int) -> int:
        """Return the first offset of the queue whose message was stored at or after `stored_ms` (epoch ms).

        Returns `bounds.end` if all messages were stored before. Uses a binary search with one small read per
        step.
        """
        low, high = bounds.first, bounds.end
        while low < high:
            middle = (low + high) // 2
            message = self._first_of(bounds, middle, high)
            if message is None or (message.stored_ms or 0) >= stored_ms:
                high = middle
            else:
                low = message.offset + 1
        return low

    def _first_of(self, bounds: QueueBounds, offset: int, end: int) -> Message | None:
        """Return the first message in `[offset, end)`; None if all offsets are gaps."""
        while offset < end:
            batch = self.read(bounds.topic, bounds.queue, offset, 1, 1)
            if batch.messages:
                return batch.messages[0] if batch.messages[0].offset < end else None
            if batch.next_offset <= offset:
                return None
            offset = batch.next_offset
        return None

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self._closed = True
        if not self._home.is_forked:
            self._drop_connection()

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(
        self, offsets: Mapping[str, Mapping[str, int]], batch: int, linger_ms: int
    ) -> list[FetchedQueue]:
        if self._closed:
            raise ClosedError("the reader has been closed")
        self._home.check_process()
        linger_s = linger_ms / 1000
        deadline = time.monotonic() + linger_s + self._timeout_s
        pause = PAUSE_S[0]
        failure: Exception = Exception("no name of the proxies resolves")

        def frame(now: float, sequence_id: int) -> bytes:
            return fetch_frame(self._settings, offsets, batch, linger_ms, sequence_id)

        while True:
            failures: list[Exception] = []
            for connection in self._list_connections(deadline):
                latest = time.monotonic() + linger_s + self._timeout_s / TRIES_MIN
                try:
                    return _check_exact(read_fetched(*connection.call(frame, min(deadline, latest))))
                except PullError as error:
                    error.proxy = connection.name
                    if error.code not in LATER:
                        raise
                    failure = error
                except ELSEWHERE as error:
                    failure = to_login_error(error, connection.name)
                failures.append(failure)
                self._drop_connection()
            if failures and all(map(is_permanent, failures)):
                if isinstance(failure, LoginError):
                    raise failure
                raise PullError(f"no proxy of {self._join_names()} serves this reader: {failure}")
            if time.monotonic() + pause >= deadline:
                raise PullError(
                    f"in {self._timeout_s:g} s no proxy of {self._join_names()} answered: {failure}"
                )
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_S[1])

    def _list_connections(self, deadline: float) -> Iterator[FramedConnection]:
        """Yield the open connection, then a new one to each proxy in turn."""
        if self._connection is not None:
            yield self._connection
        addresses = resolve_in_time(self._proxies, self._address_cache, deadline - time.monotonic())
        for address in addresses or ():
            self._connection = FramedConnection(address)
            yield self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _join_names(self) -> str:
        return ", ".join(map(str, self._proxies))


def _check_exact(queues: list[FetchedQueue]) -> list[FetchedQueue]:
    if any(one.first_offset is None for one in queues):
        raise PullError("the proxy is too old: it does not know exact fetches")
    return queues
