"""Links to other proxies, over which calls are passed on: one for each proxy.

A link has the calls that wait and a few connections, each worked by one greenlet that takes what waits,
sends it and reads the answer. Bounded in links, connections, waiting calls and time; a link that nobody used
for a while closes. What a call is, and how it is made, says a subclass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from ddmq_client.idl import producer
from ddmq_common.errors import BoundReachedError, ConfigError, DrainingError, TryLaterError
from ddmq_common.security.callers import TOKEN_MECHANISM
from ddmq_common.security.connecting import check_channel, secure_connection
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import structs
from ddmq_rpc.envelope import FrameLengthError, Frames

if TYPE_CHECKING:
    from gevent import socket

LINKS_MAX = 256
CONNECT_S = 1.0
IDLE_S = 60.0
READ_BYTES = 1 << 16
LOGIN_BYTES_MAX = 1 << 16
LOGIN_SERVICE = "ProducerService"  # the consumer's method is the same
_FAILURES = (OSError, EOFError, FrameLengthError, ReplyError, ValueError, TryLaterError, ConfigError)


class LinkBounds(NamedTuple):
    """The limits on the RPC calls from this process to one other process.

    `calls`: the maximum of waiting calls. `together`: how many calls one request may contain. `answer_s`:
    the time limit for an answer.
    """

    connections: int
    calls: int
    together: int
    answer_s: float


C = TypeVar("C")
ReadToken = Callable[[], bytes]


class CallLink(ABC, Generic[C]):
    """The link to one proxy: a queue of waiting calls, and connections that send them.

    `port`: the port of that proxy, "producer" or "consumer".
    """

    port: ClassVar[str]

    def __init__(self, address: str, bounds: LinkBounds, read_token: ReadToken | None = None) -> None:
        """Create the link to the proxy at `address`. `read_token`: returns the token with which each
        connection logs in; None or b"": it does not log in."""
        from gevent.event import Event  # loaded with the first link

        self.address = address
        self.waiting: deque[C] = deque()
        self._bounds = bounds
        self._read_token = read_token
        self._arrived = Event()
        self._workers: set[Any] = set()
        self._resting = 0  # workers that wait for a call

    @abstractmethod
    def call(self, connection: socket.socket, batch: list[C]) -> None:
        """Send these calls as one request and store their answers.

        An error that this raises goes to `on_calls_done`.
        """

    @abstractmethod
    def on_calls_done(self, batch: list[C], error: Exception | None) -> None:
        """Report the outcome of the calls to their callers. `error`: None if they were answered."""

    def take(self) -> list[C]:
        """Remove and return the next calls for one request. At least one call must be waiting."""
        return [self.waiting.popleft()]

    @property
    def is_idle(self) -> bool:
        """Return whether no call waits and no worker runs."""
        return not self.waiting and not self._workers

    def put(self, call: C) -> None:
        """Queue a call, and start a worker if all others are busy.

        At the bound, the call ends with an error at once.
        """
        bounds = self._bounds
        if len(self.waiting) >= bounds.calls:
            text = f"{bounds.calls} calls wait for {self.address}; that is the bound"
            self.on_calls_done([call], BoundReachedError(text))
            return
        self.waiting.append(call)
        self._arrived.set()
        if self._resting * bounds.together < len(self.waiting) and len(self._workers) < bounds.connections:
            import gevent

            worker = gevent.spawn(self._run_worker)
            self._workers.add(worker)
            worker.rawlink(self._workers.discard)

    def close(self) -> None:
        """Stop the workers and end the waiting calls with DrainingError."""
        import gevent

        workers, self._workers = self._workers, set()
        gevent.killall(list(workers), block=False)
        unsent, self.waiting = list(self.waiting), deque()
        if unsent:
            self.on_calls_done(unsent, DrainingError("this proxy is shutting down"))

    def _run_worker(self) -> None:
        connection: socket.socket | None = None
        batch: list[C] = []
        try:
            while self._wait():
                batch = self.take()
                error: Exception | None = None
                try:
                    connection = connection or self._connect()
                    self.call(connection, batch)
                except _FAILURES as failure:
                    error = failure
                    if connection is not None and not isinstance(failure, ReplyError | TryLaterError):
                        connection.close()
                        connection = None
                finished_batch, batch = batch, []
                self.on_calls_done(finished_batch, error)
        finally:
            if batch:
                self.on_calls_done(batch, TryLaterError("the connection was closed"))
            if connection is not None:
                connection.close()

    def _wait(self) -> bool:
        """Wait for a call; return False if none came within IDLE_S seconds."""
        self._resting += 1
        try:
            while not self.waiting:
                self._arrived.clear()
                if not self._arrived.wait(IDLE_S):
                    return bool(self.waiting)
            return True
        finally:
            self._resting -= 1

    def _connect(self) -> socket.socket:
        from gevent import socket

        host, _, port = self.address.rpartition(":")
        host = host.strip("[]")
        connection = socket.create_connection((host, int(port)), timeout=CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = secure_connection(connection, self.port, host)
        connection.settimeout(self._bounds.answer_s)
        token = b"" if self._read_token is None else self._read_token()
        if token:
            try:
                check_channel(connection)
                log_in(connection, token)
            except BaseException:
                connection.close()
                raise
        return connection


K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=CallLink[Any])


class Links(Generic[K, L]):
    """The RPC links of this process to other processes, by key."""

    def __init__(self) -> None:
        self._links: dict[K, L] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._links)

    def get_link(self, key: K, make: Callable[[], L]) -> L:
        """Return the link of `key`, created with `make` if needed.

        Raises DrainingError after `close`, BoundReachedError.
        """
        if self._closed:
            raise DrainingError("this proxy is shutting down; ask another one")
        link = self._links.get(key)
        if link is None:
            self._links = {name: link for name, link in self._links.items() if not link.is_idle}
            if len(self._links) >= LINKS_MAX:
                raise BoundReachedError(f"calls are passed on over {LINKS_MAX} links; that is the bound")
            link = self._links[key] = make()
        return link

    def close(self) -> None:
        """Close every link and reject new ones."""
        self._closed = True
        for link in self._links.values():
            link.close()


def log_in(connection: socket.socket, token: bytes) -> None:
    """Log a connection to another process in. Raises TryLaterError if the token is not accepted there."""
    request = structs(producer).AuthRequest(mechanism=TOKEN_MECHANISM, credentials=token)
    frame = encode_call(producer, LOGIN_SERVICE, "authenticate", request=request)
    answer = exchange_frame(connection, producer, LOGIN_SERVICE, frame, CONNECT_S, LOGIN_BYTES_MAX).success
    if answer.code != 0:
        text = (answer.msg or b"").decode("utf-8", "replace")
        raise TryLaterError(f"the login with node_token of security.yaml was rejected: {text}")


def exchange_frame(
    connection: socket.socket, idl: ModuleType, service: str, frame: bytes, seconds: float, bytes_max: int
) -> Any:
    """Send a call's frame over `connection`; return the result struct of the answer."""
    import gevent

    with gevent.Timeout(seconds, OSError(f"no answer within {seconds:.1f} s")):
        connection.sendall(frame)
        frames = Frames(bytes_max)
        answer = None
        while answer is None:
            data = connection.recv(READ_BYTES)
            if not data:
                raise EOFError("the connection was closed")
            answer = frames.feed_bytes(data)
    return decode_reply(idl, service, answer).result
