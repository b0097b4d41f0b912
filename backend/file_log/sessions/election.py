"""Election: any server process becomes the writer if there is none; otherwise it is a member.

Rules:
* The owner of the lock opens the log, then listens; no process listens without the lock.
* A member that loses its session at once tries the lock, then the socket, and repeats this with growing
  pauses until one of the two succeeds. So a dead writer is replaced within the time that opening the log
  takes, plus some milliseconds.
* A process that may not write (a tool) never touches the lock; if there is no server it fails with one line.
* A clean stop removes the socket, then releases the lock, in this order.

The proxies use ElectedBackend, whether this process is the writer or a member. When that changes (this
process takes over from a writer that died), requests that were not sent go to the new backend, waits are
parked again, memberships are notified by `lost` and rejoin, and watchers are notified of the differences.
Requests that were sent and not answered were settled by the member before, with an unknown outcome. The
proxies notice only those answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gevent
from gevent.event import Event

from backend.completion import Completion
from backend.engine import Watchers, at_once
from backend.file_log.lock import DirectoryInUseError, DirectoryLock, lock_owner
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.mirror import find_changed_keys
from backend.file_log.sessions.pipe import SessionLimits
from backend.file_log.sessions.reads import MakeReads
from backend.file_log.sessions.requests import SessionRequest
from backend.file_log.sessions.server import SOCKET_FILE, SessionServer, connect
from backend.port import Assignment, Backend, Join, Membership, MembershipListener
from backend.records import QueueRef
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
    """The log engine that this process runs after it has become the writer.

    `on_readers` is called with whether any other process reads the log's files directly.
    """

    backend: Backend
    on_readers: Callable[[bool], object] = lambda any_reader: None


OpenWriter = Callable[[Path, DirectoryLock], ElectedLog]


class Election:
    """Makes this process the writer or a member of one log directory, and replaces a writer that died.

    `open_writer` opens the engine; it is called with the lock held, at start or at a takeover. With
    `may_write` False this process never becomes the writer. `reads` makes the component with which a member
    reads; by default it reads through the writer.
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
        """Whether this process is the writer and has opened the log."""
        return self._server is not None

    def start(self) -> ElectedBackend:
        """Open the directory's log as its writer or as a member; blocks the calling greenlet.

        Raises RemoteError if no writer answers (and this process may not write, or another has the lock), and
        the errors of opening the log.
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
            self._keeper = gevent.spawn(self._keep_session)
            if self._may_write:
                log.info(
                    "another server process already uses %s and writes it (%s); this one joins it, and may"
                    " take over when that one ends",
                    self._directory,
                    lock_owner(self._directory),
                )
        return self._face

    def close(self) -> None:
        """Close sessions, log, socket and lock, in this order. May be called twice."""
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
            self._server.announce_stop()

    # --- becoming one or the other

    def _first_backend(self) -> Backend:
        end = self._clock.monotonic() + (START_S if self._may_write else TOOL_START_S)
        pause = RETRY_FIRST_S
        while True:
            opened = self._try_lock()
            if opened is not None:
                return opened.backend
            member = self._try_socket()
            if member.link.is_ready:
                return member
            if member.link.rejection is not None:
                raise member.link.rejection
            if self._clock.monotonic() >= end or self._has_no_server():
                raise RemoteError(self._no_server_text())
            gevent.sleep(pause)
            pause = min(pause * 2, RETRY_LAST_S)

    def _has_no_server(self) -> bool:
        return not self._may_write and not (self._directory / SOCKET_FILE).exists()

    def _no_server_text(self) -> str:
        if self._may_write:
            return f"{self._directory} is written by {lock_owner(self._directory)}, which does not answer"
        return (
            f"no server is running on {self._directory}; start one with:"
            f" ddmq serve --data-dir {self._directory}"
        )

    def _try_lock(self) -> ElectedLog | None:
        """Take the lock and open the log.

        Return None if another process owns the lock, or this one may not write.
        """
        if not self._may_write:
            return None
        try:
            lock = DirectoryLock.acquire(self._directory, self._clock.wall_ms())
        except DirectoryInUseError:
            return None
        if self._is_socket_served():
            lock.release()
            return None
        try:
            opened = self._open_writer(self._directory, lock)
            try:
                server = self._start_server(opened)
            except BaseException:
                opened.backend.close()
                raise
        except BaseException:
            lock.release()
            raise
        self._lock, self._server = lock, server
        return opened

    def _is_socket_served(self) -> bool:
        """Return whether another process serves the socket although the lock was free.

        Its lock file was deleted then.
        """
        sock = connect(self._directory)
        if sock is None:
            return False
        sock.close()
        log.error(
            "%s has a writer, but its lock file was deleted; this process does not write", self._directory
        )
        return True

    def _start_server(self, opened: ElectedLog) -> SessionServer:
        return SessionServer(
            opened.backend, self._directory, self._clock, self._metrics, self._limits, opened.on_readers
        )

    def _try_socket(self) -> MemberBackend:
        """Try to open a session with the writer.

        The returned member's `link.is_ready` says whether that worked.
        """
        member = self._member
        if member is None:
            member = MemberBackend(
                self._clock,
                self._metrics,
                self._limits,
                self._make_reads,
                on_ready=self._changed.set,
                on_lost=self._changed.set,
            )
            self._member = member
        sock = connect(self._directory)
        if sock is not None:
            self._changed.clear()
            member.link.attach_socket(sock)
            self._changed.wait(HANDSHAKE_S)
            if not member.link.is_ready:
                member.link.end_session("silent", f"the writer did not welcome us within {HANDSHAKE_S} s")
        return member

    # --- staying one

    def _keep_session(self) -> None:
        """Wait for session losses and replace each lost session, for as long as this process is a member."""
        member = self._member
        assert member is not None
        while not self._closed:
            self._changed.wait()
            self._changed.clear()
            if not member.link.is_ready:
                self._replace_writer(member)
            if self.is_writer:
                return

    def _replace_writer(self, member: MemberBackend) -> None:
        """Retry until there is a session with a new writer, or this process has become the writer."""
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
            if self._try_socket().link.is_ready:
                return
            gevent.sleep(pause)
            pause = min(pause * 2, RETRY_LAST_S)

    def _take_over(self, member: MemberBackend, opened: ElectedLog, lost_at: float) -> None:
        assert self._face is not None
        self._face.switch_backend(opened.backend, member.take_unsent())
        member.close()
        self._member = None
        self._takeovers.value += 1
        log.warning(
            "this process writes %s now, %.3f s after the writer was lost",
            self._directory,
            self._clock.monotonic() - lost_at,
        )


class ElectedMembership:
    """A membership that rejoins at each new backend; all its queues are lost at every change of backend."""

    def __init__(self, face: ElectedBackend, join: Join, listener: MembershipListener) -> None:
        self._face = face
        self._join = join
        self.listener = listener
        self.owned: set[QueueRef] = set()
        self._inner: Membership | None = None
        self.moves = 0
        self.moving = True  # has no place at the present backend yet

    def join_backend(self, backend: Backend) -> None:
        """Join at `backend`; calls that an earlier backend still makes are ignored."""
        self.moves += 1
        self.moving = False
        self._inner = backend.join(self._join, _Relay(self))

    def leave_backend(self) -> None:
        """Report all queues as lost, because the backend is being replaced."""
        self.moves += 1
        self.moving = True
        self._inner = None
        queues = sorted(self.owned)
        self.owned.clear()
        self.listener.lost(queues)

    def release(self, queues: Iterable[QueueRef]) -> None:
        released = list(queues)
        self.owned.difference_update(released)
        if self._inner is not None:
            self._inner.release(released)

    def leave(self) -> None:
        self.moves += 1
        self.owned.clear()
        self._face.remove_membership(self)
        if self._inner is not None:
            self._inner.leave()


class _Relay:
    """Passes the listener calls of one backend on to a membership, until it leaves that backend."""

    def __init__(self, membership: ElectedMembership) -> None:
        self._membership, self._move = membership, membership.moves

    def _has_left(self) -> bool:
        return self._move != self._membership.moves

    def assigned(self, assignment: Assignment) -> None:
        if not self._has_left():
            self._membership.owned.update(assignment.queues)
            self._membership.listener.assigned(assignment)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        if not self._has_left():
            self._membership.listener.revoked(queues, deadline)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        if not self._has_left():
            self._membership.owned.difference_update(queues)
            self._membership.listener.lost(queues)


# The methods that `_bind_backend` sets: a call to the face is a call to the present Backend, directly
# (`read` and `find` are the port's own, and call `start_read` and `start_find`).
BOUND = (
    "topic", "topics", "put_topic", "delete_topic", "setting", "settings", "append", "commit", "start_read",
    "wait", "bounds", "offset_for_time", "start_find", "progress", "holders", "health", "clock_ms",
    "read_log_state", "clean_log", "count_owned_sends",
)  # fmt: skip
_bound: Any = None


class ElectedBackend(Backend):
    """The backend of the proxies; it forwards every call to `current`, the writer's or a member's.

    `on_close` ends the election. Do not store one of this object's bound methods: it would keep calling the
    backend that was current at the time; store the object.
    """

    topic = topics = put_topic = delete_topic = setting = settings = append = commit = start_read = _bound
    read_log_state = clean_log = count_owned_sends = _bound
    wait = bounds = offset_for_time = start_find = progress = holders = health = clock_ms = _bound

    def __init__(self, current: Backend, on_close: Callable[[], None], on_drain: Callable[[], None]) -> None:
        self.current = current
        self._on_close = on_close
        self._on_drain = on_drain
        self._watchers = Watchers(at_once)
        self._memberships: dict[ElectedMembership, None] = {}
        self._bind_backend(current)

    def _bind_backend(self, backend: Backend) -> None:
        self.current = backend
        self.capabilities = backend.capabilities
        self.cluster, self.broker = backend.cluster, backend.broker
        for name in BOUND:
            setattr(self, name, getattr(backend, name))
        self._unwatch = backend.watch_settings(self._watchers.notify_changed)

    def switch_backend(self, backend: Backend, leftovers: Sequence[SessionRequest]) -> None:
        """Make `backend` current and send it `leftovers`, the requests that the previous one did not send."""
        old = self.current
        changed = find_changed_keys(old.topics(), backend.topics(), old.settings(""), backend.settings(""))
        for membership in self._memberships:
            membership.leave_backend()
        self._unwatch()
        self._bind_backend(backend)
        commits = [request.reissue_on(backend) for request in leftovers if not request.is_done]
        self._join_after([commit for commit in commits if commit is not None])
        for key in changed:
            self._watchers.notify_changed(key)

    def _join_after(self, commits: Sequence[Completion[Any]]) -> None:
        """Rejoin all memberships once `commits` are answered: a new grant would fence those of old epochs."""
        waiting = len(commits)

        def on_answered(_: object) -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                self._join_all()

        for commit in commits:
            commit.then(on_answered)
        if not commits:
            self._join_all()

    def _join_all(self) -> None:
        for membership in list(self._memberships):
            if membership.moving:
                self._rejoin_groups(membership)

    def _rejoin_groups(self, membership: ElectedMembership) -> None:
        try:
            membership.join_backend(self.current)
        except DdmqError as error:
            log.error("a membership could not be carried over to the new writer: %s", error)

    def remove_membership(self, membership: ElectedMembership) -> None:
        """Remove a membership that has left, so that it does not rejoin."""
        self._memberships.pop(membership, None)

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        membership = ElectedMembership(self, join, listener)
        self._memberships[membership] = None
        try:
            membership.join_backend(self.current)
        except Exception:
            self.remove_membership(membership)
            raise
        return membership

    def drain(self, deadline: float) -> Completion[None]:
        self._on_drain()
        return self.current.drain(deadline)

    def close(self) -> None:
        """Close the backend and end the election; the lock is released last."""
        self._on_close()
        self._memberships.clear()
