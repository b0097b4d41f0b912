"""What the session tests share: a writer and members on one hub, a raw client, ways to wait."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.completion import Completion
from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions import codec
from backend.file_log.sessions.election import ElectedBackend, ElectedLog, Election
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.pipe import HEAD, MAGIC, VERSION, FrameKind, SessionLimits, encode_frame
from backend.file_log.sessions.server import SessionServer, connect, listen
from backend.records import AppendResult, NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from tests.played_memory import PlayedMemory
from tests.support.rig import Rig
from tests.support.waits import done, soon, until

CLOCK = SystemClock()
_ids = itertools.count(1)


def record(topic: str = "orders", queue_id: int = 0, body: bytes = b"body", tags: bytes = b"") -> NewRecord:
    delivery = encode(b"", body, tags, None)
    return NewRecord(topic, queue_id, next(_ids).to_bytes(16, "big"), 5, delivery, tags=tags)


def queue(topic: str = "orders", queue_id: int = 0) -> QueueRef:
    return QueueRef(topic, 1, queue_id)


class Engine(PlayedMemory):
    """The memory engine, counting what it is asked; `close` leaves it whole, as a killed writer's disk."""

    def __init__(self) -> None:
        super().__init__(CLOCK)
        self.appends = 0
        self.commits = 0
        self.reads = 0

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        self.appends += 1
        return super().append(records, deadline, into)

    def commit(self, *args: Any, **more: Any) -> Completion[list[AppendResult]]:
        self.commits += 1
        return super().commit(*args, **more)

    def close(self) -> None:
        """Only `end` closes it."""

    def end(self) -> None:
        super().close()


class SessionsRig(Rig):
    """One directory, one engine that outlives its writers, and processes that are not processes."""

    def __init__(self, directory: Path, limits: SessionLimits | None = None) -> None:
        super().__init__()
        self.directory = directory
        self.limits = limits or SessionLimits()
        self.engine = Engine()
        self.metrics = Registry()
        self.readers: list[bool] = []
        self._elections: list[Election] = []
        self._closers: list[Callable[[], None]] = []

    def open_writer(self, directory: Path, lock: DirectoryLock) -> ElectedLog:
        return ElectedLog(self.engine)

    def enter(
        self, may_write: bool = True, metrics: Registry | None = None
    ) -> tuple[Election, ElectedBackend]:
        """One more process."""
        election = Election(
            self.directory, self.open_writer, CLOCK, metrics or Registry(), self.limits, may_write
        )
        self._elections.append(election)
        return election, election.start()

    def serve(self, limits: SessionLimits | None = None) -> SessionServer:
        """Only a server, without lock and election."""
        server = SessionServer(
            self.engine, self.directory, CLOCK, self.metrics, limits or self.limits, self.readers.append
        )
        self._closers.append(server.close)
        return server

    def member(self, limits: SessionLimits | None = None) -> MemberBackend:
        """A member with a session, which nobody renews."""
        member = MemberBackend(CLOCK, Registry(), limits or self.limits)
        self._closers.append(member.close)
        self.attach(member)
        return member

    def served_by(self) -> tuple[SessionServer, MemberBackend]:
        """A topic, a server, and a member of it."""
        self.make()
        return self.serve(), self.member()

    def served_member(self) -> MemberBackend:
        return self.served_by()[1]

    def stuck_member(
        self, on_lost: Callable[[], object] = lambda: None, **limits: Any
    ) -> tuple[MemberBackend, RawServer]:
        """A member that is welcomed by nobody."""
        server = RawServer(self.directory)
        member = MemberBackend(CLOCK, Registry(), SessionLimits(**limits), on_lost=on_lost)
        self._closers += [member.close, server.close]
        sock = connect(self.directory)
        assert sock is not None
        member.link.attach_socket(sock)
        return member, server

    def attach(self, member: MemberBackend) -> None:
        sock = connect(self.directory)
        assert sock is not None
        member.link.attach_socket(sock)
        until(lambda: member.link.is_ready or not member.link.is_attached, "the member has its session")

    def serve_from_new_writer(self, member: MemberBackend) -> None:
        """By another server, and the member has a session with it."""
        self.serve()
        self.attach(member)

    def make(self, name: str = "orders", queues: int = 1) -> None:
        done(self.engine.put_topic(TopicInfo(name, 0, queues), soon()))

    def close(self) -> None:
        for close in [*self._closers, *(election.close for election in self._elections)]:
            close()
        self.engine.end()


def house(directory: Path, **limits: Any) -> SessionsRig:
    return SessionsRig(directory, SessionLimits(**limits))


class RawClient:
    """The other end of the socket, byte by byte."""

    def __init__(self, directory: Path, greet: bool = True) -> None:
        sock = connect(directory)
        assert sock is not None
        self.sock = sock
        self._got = b""
        self.is_closed = False
        if greet:
            self.send(FrameKind.HELLO, 0, codec.encode((MAGIC, VERSION, "test")))
            self.next(FrameKind.READY)

    def send(self, kind: int, ident: int, body: bytes) -> None:
        self.raw(encode_frame(FrameKind(kind), ident, body))

    def raw(self, data: bytes) -> None:
        self.sock.send(data)

    def next(self, *kinds: FrameKind) -> tuple[FrameKind, int, bytes]:
        """The next frame of one of these kinds; others are passed over."""
        while True:
            until(self._has_frame, f"a frame of kind {kinds}")
            length, kind, ident = HEAD.unpack_from(self._got)
            body, self._got = self._got[HEAD.size : HEAD.size + length], self._got[HEAD.size + length :]
            if kind in kinds:
                return FrameKind(kind), ident, body

    def _has_frame(self) -> bool:
        self._receive()
        if len(self._got) < HEAD.size:
            return False
        return len(self._got) >= HEAD.size + HEAD.unpack_from(self._got)[0]

    def _receive(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self.is_closed = self.is_closed or not data
        self._got += data

    def wait_closed(self) -> None:
        def is_closed() -> bool:
            self._receive()
            return self.is_closed

        until(is_closed, "the writer ends the session")

    @property
    def unread(self) -> list[FrameKind]:
        """Kinds of the frames that are there and not taken."""
        self._receive()
        kinds, at = [], 0
        while at + HEAD.size <= len(self._got):
            length, kind, _ = HEAD.unpack_from(self._got, at)
            kinds.append(FrameKind(kind))
            at += HEAD.size + length
        return kinds

    def close(self) -> None:
        self.sock.close()


class RawServer:
    """A writer that only takes; what it says is up to the test."""

    def __init__(self, directory: Path) -> None:
        self.listener = listen(directory)

    def accept(self) -> socket.socket:
        connections: list[socket.socket] = []

        def accepted() -> bool:
            try:
                connections.append(self.listener.accept()[0])
            except BlockingIOError:
                return False
            return True

        until(accepted, "a connection")
        connections[0].setblocking(False)
        return connections[0]

    def close(self) -> None:
        self.listener.close()
