"""Who writes: any server process becomes the writer when there is none, else it is a member.

Rules:
* Whoever holds the lock opens the log, then listens; nobody listens without the lock.
* A member that loses its session at once tries the lock, then the socket, then again, a little later
  each time, until one of the two works. So a dead writer is replaced within the time that opening the
  log takes, plus some milliseconds.
* A process that may not write (a tool) never touches the lock; with no server there it fails with one line.
* A clean stop removes the socket, then gives back the lock, in this order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gevent
from gevent.event import Event

from backend.file_log.lock import DirectoryInUseError, DirectoryLock, lock_holder
from backend.file_log.sessions.elected import ElectedBackend
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.pipe import SessionLimits
from backend.file_log.sessions.reads import MakeReads
from backend.file_log.sessions.server import SOCKET_FILE, SessionServer, connect
from backend.port import Backend
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, RemoteError
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.private_files import make_private

log = logging.getLogger(__name__)
RETRY_FIRST_S, RETRY_LAST_S = 0.005, 0.1  # between tries for the lock and the socket
HANDSHAKE_S = 2.0  # how long a connected writer may take to welcome us
START_S = 10.0  # how long a server process tries at its start
TOOL_START_S = 3.0  # how long a tool waits for a takeover that is under way


class ElectedLog(NamedTuple):
    """The engine in the writer. `on_readers` is told whether other processes read its files themselves."""

    backend: Backend
    on_readers: Callable[[bool], object] = lambda any_reader: None


OpenWriter = Callable[[Path, DirectoryLock], ElectedLog]


class Election:
    """One process's part in it.

    `open_writer` opens the engine (called with the lock held, at start or at a takeover); `may_write` False
    never becomes the writer; `reads` makes the reading half of a member, default: through the writer.
    """

    def __init__(
        self,
        directory: Path,
        open_writer: OpenWriter,
        clock: Clock,
        metrics: Registry,
        limits: SessionLimits | None = None,
        may_write: bool = True,
        reads: MakeReads | None = None,
    ) -> None:
        self._directory = directory
        self._open_writer = open_writer
        self._clock = clock
        self._metrics = metrics
        self._takeovers = metrics.cell(catalogue.TAKEOVERS)  # there with 0, so that an alert sees the first
        self._limits = limits or SessionLimits()
        self._may_write = may_write
        self._make_reads = reads
        self._lock: DirectoryLock | None = None
        self._server: SessionServer | None = None
        self._member: MemberBackend | None = None
        self._face: ElectedBackend | None = None
        self._changed = Event()
        self._keeper: Any = None
        self._closed = False

    @property
    def is_writer(self) -> bool:
        """True from the moment the log is open here."""
        return self._server is not None

    def start(self) -> ElectedBackend:
        """The directory's log for this process, as its writer or as a member. Blocks the calling greenlet.

        Raises RemoteError when nobody answers (and we may not write, or another process holds the lock), else
        what opening the log raises.
        """
        if self._may_write:
            make_private(self._directory)
        try:
            backend = self._first_backend()
        except BaseException:
            self.close()
            raise
        self._face = ElectedBackend(backend, self.close, self._drain)
        if not self.is_writer:
            self._keeper = gevent.spawn(self._keep)
        return self._face

    def close(self) -> None:
        """Leave: sessions, log, socket, lock. May be called twice."""
        self._closed = True
        if self._keeper is not None and self._keeper is not gevent.getcurrent():
            self._keeper.kill(block=False)
        if self._member is not None:
            self._member.close()
        if self._server is not None:
            self._server.close()
            (self._directory / SOCKET_FILE).unlink(missing_ok=True)
            self._server.backend.close()
        if self._lock is not None:
            self._lock.release()

    def _drain(self) -> None:
        if self._server is not None:
            self._server.going()

    # --- becoming one or the other

    def _first_backend(self) -> Backend:
        end = self._clock.monotonic() + (START_S if self._may_write else TOOL_START_S)
        pause = RETRY_FIRST_S
        while True:
            opened = self._try_lock()
            if opened is not None:
                return opened.backend
            member = self._try_socket()
            if member.link.ready:
                return member
            if member.link.refusal is not None:
                raise member.link.refusal
            if self._clock.monotonic() >= end or self._nobody_there():
                raise RemoteError(self._nobody_text())
            gevent.sleep(pause)
            pause = min(pause * 2, RETRY_LAST_S)

    def _nobody_there(self) -> bool:
        return not self._may_write and not (self._directory / SOCKET_FILE).exists()

    def _nobody_text(self) -> str:
        if self._may_write:
            return f"{self._directory} is written by {lock_holder(self._directory)}, which does not answer"
        return (
            f"no server is running on {self._directory}; start one with:"
            f" ddmq serve --data-dir {self._directory}"
        )

    def _try_lock(self) -> ElectedLog | None:
        """Become the writer; None when somebody else is, or we may not."""
        if not self._may_write:
            return None
        try:
            lock = DirectoryLock.acquire(self._directory, self._clock.wall_ms())
        except DirectoryInUseError:
            return None
        if self._somebody_writes():
            lock.release()
            return None
        try:
            opened = self._open_writer(self._directory, lock)
            try:
                server = self._serve(opened)
            except BaseException:
                opened.backend.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._lock, self._server = lock, server
        return opened

    def _somebody_writes(self) -> bool:
        """Somebody answers at the writer's socket although nobody held the lock: its file was deleted."""
        sock = connect(self._directory)
        if sock is None:
            return False
        sock.close()
        log.error(
            "%s has a writer, but its lock file was deleted; this process does not write", self._directory
        )
        return True

    def _serve(self, opened: ElectedLog) -> SessionServer:
        return SessionServer(
            opened.backend, self._directory, self._clock, self._metrics, self._limits, opened.on_readers
        )

    def _try_socket(self) -> MemberBackend:
        """Try for a session; the member is `link.ready` when it worked."""
        member = self._member
        if member is None:
            member = MemberBackend(self._clock, self._metrics, self._limits, self._make_reads)
            member.on_ready_hook = member.on_lost = self._changed.set
            self._member = member
        sock = connect(self._directory)
        if sock is not None:
            self._changed.clear()
            member.link.attach(sock)
            self._changed.wait(HANDSHAKE_S)
            if not member.link.ready:
                member.link.drop("silent", f"the writer did not welcome us within {HANDSHAKE_S} s")
        return member

    # --- staying one

    def _keep(self) -> None:
        """Runs for as long as this process is a member."""
        member = self._member
        assert member is not None
        while not self._closed:
            self._changed.wait()
            self._changed.clear()
            if not member.link.ready:
                self._replace_writer(member)
            if self.is_writer:
                return

    def _replace_writer(self, member: MemberBackend) -> None:
        """Until there is a session again, or we are the writer."""
        lost_at, pause = self._clock.monotonic(), RETRY_FIRST_S
        while not self._closed:
            try:
                opened = self._try_lock()
            except (DdmqError, OSError) as error:
                log.error("taking over %s failed, trying again: %s", self._directory, error)
                opened = None
            except Exception:  # a bug, but giving up would leave this process without a log for good
                log.exception("taking over %s failed, trying again", self._directory)
                opened = None
            if opened is not None:
                self._take_over(member, opened, lost_at)
                return
            if self._try_socket().link.ready:
                return
            gevent.sleep(pause)
            pause = min(pause * 2, RETRY_LAST_S)

    def _take_over(self, member: MemberBackend, opened: ElectedLog, lost_at: float) -> None:
        assert self._face is not None
        self._face.switch(opened.backend, member.surrender())
        member.close()
        self._member = None
        self._takeovers.value += 1
        log.warning(
            "this process writes %s now, %.3f s after the writer was lost",
            self._directory,
            self._clock.monotonic() - lost_at,
        )
