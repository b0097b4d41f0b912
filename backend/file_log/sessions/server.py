"""The writer's side: a Unix socket beside the log, over which other processes use this engine.

Rules:
* It serves any Backend; only `on_readers` depends on a log whose files members read directly.
* A session ends when its socket does, or after `silence_s` without a frame; its memberships are released at
  the same moment, so that its queues move.
* Time during which this process itself did not run (stopped, swapped out) does not count as silence of
  members.
* Changes of topics and settings go to every member. Only members that wait for records are notified of new
  ones, for all records of one commit with one system call.
* `announce_stop` precedes a planned stop: members queue new requests until there is another writer.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gevent import get_hub

from backend.file_log.sessions.mirror import change_frame
from backend.file_log.sessions.pipe import READABLE, FrameKind, SessionLimits
from backend.file_log.sessions.session import Session
from backend.port import Backend
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, ConfigError, DdmqError, StorageError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.peer_user import peer_uid

log = logging.getLogger(__name__)
ACCEPT_MAX = 16  # connections taken per turn of the hub


class SessionServer:
    """Serves `backend` to other processes through the socket DIR/writer.sock.

    Only the owner of the directory's lock may create one. `on_readers` is called with whether any member
    reads the log's files directly (its views should then be written at once). Raises StorageError.
    """

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        clock: Clock,
        metrics: Registry,
        limits: SessionLimits | None = None,
        on_readers: Callable[[bool], object] = lambda any_reader: None,
    ) -> None:
        self.backend = backend
        self.clock = clock
        self.limits = limits or SessionLimits()
        self._on_readers = on_readers
        self._readers = False
        self._metrics = metrics
        self._sessions: dict[int, Session] = {}
        self._count = 0
        self._open = metrics.cell(catalogue.SESSIONS)
        self._loop = get_hub().loop
        self._directory = directory
        self._listener = listen(directory)
        self._acceptable: Any = self._loop.io(self._listener.fileno(), READABLE)
        self._acceptable.start(self._accept)
        self._swept_at = clock.monotonic()
        self._sweep_timer = HubTimer(loop=self._loop)
        self._sweep_timer.every(self.limits.ping_s / 2, self.end_silent_sessions)
        self._unwatch = backend.watch_settings(self._send_change)
        self._closed = False

    @property
    def session_count(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    def announce_stop(self) -> None:
        """Announce to members that this writer will stop; open requests are still answered.

        Members send new requests to the next writer.
        """
        for session in self._sessions.values():
            session.pipe.send(FrameKind.GOING, 0, b"")

    def end_silent_sessions(self) -> None:
        """End sessions that sent no frame for `silence_s`; called every `ping_s / 2`."""
        if not (self._directory / SOCKET_FILE).exists():
            self._recreate_socket()
        if not self._acceptable.active:
            self._acceptable.start(self._accept)
        now = self.clock.monotonic()
        stalled = now - self._swept_at - self.limits.ping_s / 2
        self._swept_at = now
        for session in list(self._sessions.values()):
            if stalled > self.limits.ping_s:
                session.last_frame_at += stalled
            if now - session.last_frame_at > self.limits.silence_s:
                self._end_if_silent(session)

    def _recreate_socket(self) -> None:
        """Create the socket file that was deleted, as no process could connect any more."""
        try:
            listener = listen(self._directory)
        except DdmqError as error:
            log.error("%s", error)
            return
        log.warning("the socket %s was deleted; it is there again", self._directory / SOCKET_FILE)
        self._acceptable.stop()
        self._acceptable.close()
        self._listener.close()
        self._listener = listener
        self._acceptable = self._loop.io(listener.fileno(), READABLE)

    def close(self) -> None:
        """End every session and stop listening. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        self._sweep_timer.stop()
        self._acceptable.stop()
        self._acceptable.close()
        self._listener.close()
        for session in list(self._sessions.values()):
            session.pipe.flush()
            session.end("stopped", "the writer stops")

    # --- calls of sessions (session.Host)

    def count_rejection(self, reason: str) -> None:
        """Count a rejected session or request."""
        self._metrics.cell(catalogue.SESSION_REFUSED, reason).value += 1

    def readers_changed(self) -> None:
        """Call `on_readers` if it has changed whether any session reads the log's files directly."""
        any_reader = any(session.reads_files for session in self._sessions.values())
        if any_reader != self._readers:
            self._readers = any_reader
            self._on_readers(any_reader)

    def on_session_closed(self, session: Session, reason: str, text: str) -> None:
        """Remove a session that has ended."""
        self._sessions.pop(session.number, None)
        self._open.value = len(self._sessions)
        self.readers_changed()
        self._metrics.cell(catalogue.SESSIONS_ENDED, reason).value += 1
        log.info("session %d (%s) ended: %s", session.number, session.name or "unnamed", text)

    # --- inside

    def _end_if_silent(self, session: Session) -> None:
        silence_s = self.limits.silence_s
        if not session.pipe.paused:
            session.end("silent", f"nothing heard for {silence_s} s")
        elif session.pipe.out_bytes >= self.limits.out_bytes_max // 2:
            session.end("untaken", f"took nothing of what it was sent for {silence_s} s")

    def _accept(self) -> None:
        for _ in range(ACCEPT_MAX):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: waiting connections are accepted at a later sweep
                self.count_rejection("descriptors")
                log.error("a session cannot be taken: %s", error.strerror)
                self._acceptable.stop()
                return
            if peer_uid(sock) not in (os.geteuid(), 0):
                self.count_rejection("user")
                log.error("a session of another user is refused")
                sock.close()
                continue
            sock.setblocking(False)
            self._open_session(sock)

    def _open_session(self, sock: Any) -> None:
        limits = self.limits
        self._count += 1
        session = Session(self, self._count, self._loop, sock)
        if len(self._sessions) >= limits.sessions_max:
            self.count_rejection("sessions")
            text = f"{limits.sessions_max} sessions are open at the writer; allowed: {limits.sessions_max}"
            session.send_error(0, BoundReachedError(text))
            session.pipe.flush()
            session.pipe.close()
            return
        self._sessions[session.number] = session
        self._open.value = len(self._sessions)

    def _send_change(self, key: str) -> None:
        if not self._sessions:
            return
        data = change_frame(self.backend, key)
        for session in self._sessions.values():
            if session.is_welcomed:
                session.pipe.send_frame(data)


SOCKET_FILE = "writer.sock"
ADDRESS_BYTES_MAX = 107
BACKLOG = 128


@contextmanager
def socket_address(directory: Path) -> Iterator[str]:
    """Yield the address to bind or connect; it is valid inside the `with` block only.

    A Unix socket's address holds 107 bytes. A longer path is reached through /proc/self/fd/N/writer.sock, N
    being an open descriptor of the directory: the same file, at the same place, by a short name.

    Raises ConfigError when the path is too long and the system has no /proc to shorten it.
    """
    path = str(directory / SOCKET_FILE)
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    if not os.path.isdir("/proc/self/fd"):
        raise ConfigError(
            f"the path {path} has {len(os.fsencode(path))} bytes; a socket takes {ADDRESS_BYTES_MAX}:"
            " use a data directory with a shorter path"
        )
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_FILE}"
    finally:
        os.close(fd)


def listen(directory: Path) -> socket.socket:
    """Create the listening socket, replacing the socket file of a dead writer.

    Only the owner of the directory's lock may call this. Only the owner of the directory's files may connect
    (mode 0600). Raises StorageError.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        (directory / SOCKET_FILE).unlink(missing_ok=True)
        with socket_address(directory) as address:
            listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise StorageError(f"cannot listen on {directory / SOCKET_FILE}: {error}") from error
    finally:
        os.umask(mask)
    return listener


def connect(directory: Path) -> socket.socket | None:
    """Return a connected, non-blocking socket to the writer; None if no process listens.

    A listener that is not run by the directory's owner is not trusted: an error is logged and None returned.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        with socket_address(directory) as address:
            sock.connect(address)
    except OSError:  # no such file, no listener, or its backlog is full: the caller retries
        sock.close()
        return None
    owner, peer = directory.stat().st_uid, peer_uid(sock)
    if peer not in (owner, os.geteuid()):
        log.error(
            "the writer's socket is not served by the owner of the directory and is not used",
            extra={"directory": directory, "owner_uid": owner, "served_by_uid": peer},
        )
        sock.close()
        return None
    return sock
