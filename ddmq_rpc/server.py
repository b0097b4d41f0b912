"""The listening socket of one service, and the sweep that ends slow connections.

Start: bind, listen, accept. Stop: `stop_accepting`, wait until `open_calls` is 0 or the drain deadline
has passed, `close`. Everything runs as callbacks on the hub of the thread that called `start`.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

from gevent import get_hub

from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.callers import CallerTable
from ddmq_rpc.access import open_methods
from ddmq_rpc.addresses import address_of
from ddmq_rpc.api import Service
from ddmq_rpc.connections import RpcConnection
from ddmq_rpc.time_slices import SLICE_S, Shared
from ddmq_rpc.traffic import RpcCounts, RpcLimits, TlsPort, Traffic, log

__all__ = ["RpcLimits", "RpcServer", "TlsPort"]

LISTEN_BACKLOG = 4_096
ACCEPTS_PER_WAKEUP = 64  # new connections, before others get their turn
SWEEP_S = 0.5
ACCEPT_PAUSE_S = 0.2  # after an accept that failed: the next would, too
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class RpcServer:
    """Serves one Thrift service on one address. `callers`: who may do what; None if rights are off.

    Raises ValueError for handlers that the IDL lacks or that have no rule.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        limits: RpcLimits,
        metrics: Registry,
        clock: Clock,
        tls: TlsPort | None = None,
        callers: CallerTable | None = None,
    ) -> None:
        self._callers = callers
        self._host, self._port = host, port
        self._limits = limits
        self._counts = RpcCounts(metrics, service.name)
        self._clock = clock
        self._tls = tls
        self._methods = open_methods(service, callers, self._counts)
        self._on_closed = service.on_closed
        self._traffic: Traffic | None = None
        self._listener: socket.socket | None = None
        self._acceptor: Any = None
        self._sweeper = HubTimer()
        self._spare_descriptor = -1
        self._accept_timer = HubTimer()
        self._failure_logged = False
        self._address: tuple[str, int] | None = None

    def start(self) -> None:
        """Bind the address and start to accept. Raises ConfigError if the address cannot be used."""
        loop = get_hub().loop
        self._listener = _listen(self._host, self._port)
        self._address = self._listener.getsockname()[:2]
        self._spare_descriptor = os.open(os.devnull, os.O_RDONLY)
        self._traffic = Traffic(
            loop, self._limits, self._methods, self._counts, self._clock,
            shared=_get_shared_slices(get_hub()), callers=self._callers,
        )  # fmt: skip
        if self._callers is not None:
            self._callers.on_change.append(self.recheck_rights)
        self._traffic.on_closed, self._traffic.tls = self._on_closed, self._tls
        self._acceptor = loop.io(self._listener.fileno(), 1)
        self._acceptor.start(self._on_acceptable)
        self._sweeper.every(SWEEP_S, self.close_slow_connections)

    def serve(self, service: Service) -> None:
        """Use another service of the same IDL for new calls. Connections stay open."""
        self._methods, self._on_closed = (
            open_methods(service, self._callers, self._counts), service.on_closed
        )  # fmt: skip
        if self._traffic is not None:
            self._traffic.methods, self._traffic.on_closed = self._methods, self._on_closed

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that clients connect to, with the real port if port 0 was configured."""
        if self._address is None:
            raise RuntimeError("the server has not been started")
        return self._address

    @property
    def open_calls(self) -> int:
        """Return the number of calls without an answer; 0 means drained."""
        return self._traffic.open_calls if self._traffic else 0

    def list_peers(self) -> list[str]:
        """Return the peer address (HOST:PORT) of each open connection."""
        return [] if self._traffic is None else [each.peer for each in self._traffic.connections]

    def close_slow_connections(self) -> None:
        """Close the connections that exceed a time limit. A timer calls this every half second."""
        if self._traffic is not None:
            self._traffic.close_slow_connections()

    def recheck_rights(self) -> None:
        """Apply changed rights to every connection: close those whose token is no longer valid, and reject
        the waiting calls whose rights are gone."""
        if self._traffic is not None:
            for connection in list(self._traffic.connections):
                connection.recheck_rights()

    def stop_accepting(self) -> None:
        """Refuse new connections; existing ones continue. A second call does nothing."""
        if self._listener is None:
            return
        self._acceptor.stop()
        self._acceptor.close()
        self._listener.close()
        self._listener = None
        self._accept_timer.stop()
        self._close_spare()

    def close(self) -> None:
        """Close all connections and abandon open calls. A second call does nothing."""
        self.stop_accepting()
        self._sweeper.stop()
        if self._traffic is not None:
            self._traffic.close()
        if self._callers is not None and self.recheck_rights in self._callers.on_change:
            self._callers.on_change.remove(self.recheck_rights)

    def _on_acceptable(self) -> None:
        listener, traffic = self._listener, self._traffic
        if listener is None or traffic is None:
            return
        slices, clock = traffic.slices, traffic.stopwatch
        first = started = clock()
        for _ in range(ACCEPTS_PER_WAKEUP):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_failed(listener, error)
                return
            address = address_of(peer[0])
            if traffic.admit_connection(address):
                self._failure_logged = False
                accepted.setblocking(False)
                RpcConnection(traffic, accepted, f"{peer[0]}:{peer[1]}", address)
            else:
                accepted.close()
            now = clock()
            slices.record_accept(address, started, now)
            if now - first > SLICE_S:
                return  # the others come before the next accepts
            started = now

    def _accept_failed(self, listener: socket.socket, error: OSError) -> None:
        """Handle a failed accept: without free descriptors reject the client with the spare one, else
        pause."""
        self._counts.count_rejected("accept")
        if error.errno in _NO_DESCRIPTORS and self._reject_client(listener):
            return
        if not self._failure_logged:
            self._failure_logged = True
            log.warning("accept failed", extra={"error": error.strerror or str(error)})
        self._acceptor.stop()
        self._accept_timer.once(ACCEPT_PAUSE_S, lambda: self._acceptor.start(self._on_acceptable))

    def _reject_client(self, listener: socket.socket) -> bool:
        """Accept one waiting client and close it; return False if that fails, too."""
        self._close_spare()
        try:
            listener.accept()[0].close()
            self._spare_descriptor = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            return False
        return True

    def _close_spare(self) -> None:
        if self._spare_descriptor >= 0:
            os.close(self._spare_descriptor)
            self._spare_descriptor = -1


def _get_shared_slices(hub: Any) -> Shared:
    """Return the time-slice state that all servers of this hub share, created in the first call."""
    shared: Shared | None = getattr(hub, "ddmq_time_slices", None)
    if shared is None:
        shared = hub.ddmq_time_slices = Shared()
    return shared


def _listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking listening socket. Accepted sockets inherit its options."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((address[0], port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; allowed: a free port, an own address"
        ) from error
    listener.setblocking(False)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    return listener
