"""A server process: composes its components, and starts and stops them in the designed order.

Start: validate → open the log (lock, recover, or join its writer) → topics from files → proxies → ports
→ ready. Stop (SIGTERM): refuse new work → answer what is open → submit progress → sync → close →
unlock; a second SIGTERM stops at once, which loses nothing that was acknowledged.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from backend.engines import FILE_LOG, KAFKA, EngineSettings, open_engine
from backend.port import Backend, Health
from backend.traces import TraceWriter
from ddmq.address import HostPort, is_loopback, parse
from ddmq.server.admin import groups, topics
from ddmq.server.admin.api import AdminApi, build_starting_router
from ddmq.server.admin.figures import OtherProcesses
from ddmq.server.admin.operations.service import Operations
from ddmq.server.admin.processes.usage import UsedParts, list_usage, publish_usage
from ddmq.server.admin.processes.views import ProcessInfo
from ddmq.server.config import Configuration, changed_values, find_declaring_source, resolved_values
from ddmq.server.effective_settings import list_settings
from ddmq.server.findings.watch import FindingsWatch
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.local_socket import open_local_socket
from ddmq.server.http.routing import AdminRouter
from ddmq.server.live.live_views import LiveViews
from ddmq.server.process.hub import HubWatch
from ddmq.server.process.open_files import limits_within, raise_open_files
from ddmq.server.process.ports import (
    UnusablePort,
    cannot_listen,
    check_ports,
    describe_error,
    find_address_source,
)
from ddmq.server.process.process_security import ProcessSecurity
from ddmq.server.process.samples import SampleWriter, sample_writer
from ddmq.server.readable_secrets import warn_of_secrets
from ddmq_common.clock import Clock, SystemClock
from ddmq_common.errors import ConfigError, DdmqError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.deltas import Deltas
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from ddmq_common.private_files import make_private
from ddmq_rpc.api import Service
from ddmq_rpc.server import RpcServer
from delay_service.levels.service import LevelService
from delay_service.service import DelayService
from delay_service.store.opening import check_store_folder, standby_stores_in, stores_in
from proxy_consumer.service import ConsumerService
from proxy_producer.service import ProducerService
from proxy_producer.starting import reject_sends

log = logging.getLogger("ddmq.server")
DECLARE_WAIT_S = 15.0
LEVELS_WAIT_S = 3.0
OWNERS_WAIT_S = 1.0  # how long a health check waits for the owners of the levels
FRESH_S = 1.0  # how long the answer of a health check is reused
BATCH_WAIT_S = 5.0  # at a stop, for the batches of operations
COMPONENTS = ("producer", "consumer", "delay", "admin")
NO_SCHEDULER = Health(
    False,
    "no level scheduler: delayed messages and retries are stored and wait; run `ddmq delay-service` over "
    "this directory",
)


class SchedulerWatch:
    """Polls the backend for the process that owns the delay levels. While the backend does not answer, the
    levels count as owned."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._checked_at = float("-inf")
        self._last = Health(True, "")

    def health(self) -> Health:
        """Return the health. A greenlet reads it from the backend; on the hub, which must not block, the last
        health that was read is returned."""
        now = self._clock.monotonic()
        if now - self._checked_at >= FRESH_S and gevent.getcurrent() is not gevent.get_hub():
            self._checked_at = now
            self._last = self._read_scheduler_health(now)
        return self._last

    def _read_scheduler_health(self, now: float) -> Health:
        if self._backend.topic(SCHEDULE_TOPIC) is None:
            return NO_SCHEDULER
        try:
            request = self._backend.holders(LEVELS_GROUP, SCHEDULE_TOPIC, now + OWNERS_WAIT_S)
            owners = request.wait(OWNERS_WAIT_S)
        except (DdmqError, TimeoutError):
            return Health(True, "")
        return Health(True, "") if owners else NO_SCHEDULER


class ServerProcess:
    """The components of the server that run in one process on one event loop. `components`: some of
    COMPONENTS; the admin component always answers /health."""

    def __init__(self, config: Configuration, components: Iterable[str], clock: Clock | None = None) -> None:
        self.config = config
        self.components = tuple(component for component in COMPONENTS if component in set(components))
        self.clock = clock or SystemClock()
        self.metrics = Registry()
        self.security = ProcessSecurity(config, self.metrics, self.clock)
        self.others = OtherProcesses(self.security.read_node_token)
        self.addresses: dict[str, HostPort] = {}
        self.backend: Backend | None = None
        self.producer: ProducerService | None = None
        self.sends: ProducerService | None = (
            None  # for what acknowledgements and the admin API send: `producer`, or one without a port
        )
        self.consumer: ConsumerService | None = None
        self.delay: LevelService | None = None
        self.timers: DelayService | None = None
        self.traces: TraceWriter | None = None
        self._operations: Operations | None = None
        self._scheduler: SchedulerWatch | None = None
        self._started_ms = self.clock.wall_ms()
        self._findings: FindingsWatch | None = None
        self._samples: SampleWriter | None = None
        self._rpc: dict[str, RpcServer] = {}
        self._limits = config.rpc
        self._admin: AdminServer | None = None
        self._admin_socket: Any = None
        self._local_admin: AdminServer | None = None  # over the Unix socket
        self._live: LiveViews | None = None
        self._waits_for = "the log is not open yet"
        self._hub = HubWatch(self.metrics)
        self._stop = Event()
        self._draining = False

    def start(self) -> None:
        """Start all components; block until every port answers. Raises DdmqError or OSError with the reason
        in one line."""
        self.config.check_reach(component for component in self.components if component != "delay")
        check_ports(self.config, self.components)
        raise_open_files()
        self.security.load_certificates()
        self._limits = limits_within(
            self.config.rpc,
            len({"producer", "consumer"} & set(self.components)),
            configured="rpc.connections_max" in self.config.sources,
        )
        sys.setswitchinterval(0.0005)  # the commit thread must get the interpreter back quickly
        gc.freeze()  # what is imported stays; requests leave no cycles behind, so looking rarely is enough
        gc.set_threshold(20_000, 50, 200)
        self._hub.start()
        where = {"data_dir": self.config.serve.data_dir, "config": self.config.folder or "defaults"}
        log.info(
            "starting",
            extra={"parts": ",".join(self.components)} | where | {"set": changed_values(self.config)},
        )
        log.debug("configuration", extra={"config": resolved_values(self.config)})
        warn_of_secrets(self.config)
        try:
            self.security.load_identities(self.components)
            self.backend = self._open_backend()
            self._apply_topics()
            self._open_ports(self.backend)
            self._wait_for_levels()
            self._start_samples()
        except BaseException:
            self.close()
            raise

    def _open_backend(self) -> Backend:
        """Open the engine that backend.yaml names. Raises DdmqError."""
        config, data_dir = self.config.backend, self.config.serve.data_dir
        if config.engine != FILE_LOG:
            make_private(data_dir)
            self._answer_admin(
                build_starting_router(self.health, self._server_names())
            )  # its machines may be away for long
            if "producer" in self.components:
                self._listen("producer", reject_sends(lambda: self._waits_for, self.metrics))
        options = config.engine_options(self.config.log)
        settings = EngineSettings(data_dir, self.clock, self.metrics, options, self._wait_for)
        return open_engine(config.engine, settings)

    def _wait_for(self, reason: str) -> None:
        self._waits_for = reason
        if self._stop.is_set():  # the process that started this one has ended
            raise SystemExit(0)

    def _start_samples(self) -> None:
        serve = self.config.serve
        process, instance = (
            serve.build_process_name(self.components, socket.gethostname()),
            secrets.token_hex(8),
        )
        deltas = Deltas(self.metrics, process, instance, self._started_ms)
        self._samples = sample_writer(serve.samples, serve.data_dir, deltas, self.clock)
        if self._samples is not None:
            self._samples.start()

    def _apply_topics(self) -> None:
        source = find_declaring_source(self.config, "topics")
        if source and self.backend:
            topics.apply_file(self.backend, self.clock, self.config.topics.topics, source)

    def declare_groups(self, config: Configuration) -> None:
        """Apply the groups that groups.yaml declares. Raises DdmqError."""
        source = find_declaring_source(config, "groups")
        if source and self.consumer:
            self.consumer.declare(config.groups, source).wait(DECLARE_WAIT_S)

    def _wait_for_levels(self) -> None:
        """Wait until the delay services have started, so that a server that reports ready can deliver delayed
        messages. A failed start is retried."""
        try:
            for service in (self.delay, self.timers):
                if service is not None:
                    service.started.wait(LEVELS_WAIT_S)
        except TimeoutError:
            log.warning("ready is not true yet", extra={"reason": self.health().reason})

    def _open_ports(self, backend: Backend) -> None:
        metrics, clock = self.metrics, self.clock
        common: Any = {"metrics": metrics, "clock": clock, "levels": self.config.delay.table}
        common["random"] = random.Random()
        common["read_token"] = self.security.read_node_token
        serve = self.config.serve
        traces = self.traces = TraceWriter(
            backend, metrics, clock, self._trace_name(), secrets.token_hex(8), serve.trace_bytes_per_day
        )
        if "delay" in self.components:
            self.delay = LevelService(backend, self.config.delay, metrics, clock, address=self._bind_admin())
            self.delay.start()
            stores = self._delay_stores()
            self.timers = DelayService(
                backend, self.config.delay, metrics, clock, stores_in(*stores), self._bind_admin(),
                standby_opener=standby_stores_in(*stores), traces=traces,
                quota_of=self.security.find_delay_quota if self.security.callers is not None else None,
            )  # fmt: skip
            self.timers.start()
        self._scheduler = SchedulerWatch(backend, clock)
        if "producer" in self.components:
            self.producer = ProducerService(backend, self.config.producer, **common, traces=traces)
            self._listen("producer", self.producer.service())
            self.producer.advertise(str(self._producer_address()))
        if "consumer" in self.components:
            sends = self.producer or ProducerService(backend, self.config.producer, **common, traces=traces)
            self.sends = sends
            self.consumer = ConsumerService(
                backend, self.config.consumer, **common, traces=traces, replies=sends.replies
            )
            self.consumer.start()
            self.declare_groups(self.config)
            self._listen("consumer", self.consumer.service())
            self.consumer.advertise(str(reachable_address(self.addresses["consumer"])))
            self._log_unreachable(backend)
        if self.security.callers is not None:
            metrics.add_collector(self._publish_usage)
        if "admin" in self.components:
            self._listen_admin(backend, self._scheduler)

    def _publish_usage(self) -> None:
        if self.backend is not None:
            parts = UsedParts(self.security.callers, self.backend, self.producer, self.timers)
            publish_usage(self.metrics, list_usage(parts))

    def _producer_address(self) -> HostPort:
        """Return where other processes reach the producer proxy: at the host that the consumer proxy states,
        if one is configured."""
        own, stated = reachable_address(self.addresses["producer"]), self.config.consumer.advertise
        if stated and "consumer" in self.components:
            return HostPort(parse(stated).host, own.port)
        return own

    def _log_unreachable(self, backend: Backend) -> None:
        """Log that proxies on other machines cannot pass results on to this one, if that is so."""
        address = self.config.consumer.advertise or str(self.addresses["consumer"])
        if backend.capabilities.engine == KAFKA and is_loopback(parse(address).host):
            log.info(
                "consumer proxies on other machines cannot pass results on to this one: it is known to them"
                " as %s; to run on several machines, let the consumer port listen beyond loopback or set"
                " advertise in proxy_consumer.yaml",
                address,
            )

    def _trace_name(self) -> str:
        """Return the name of this process in stories: its configured name, or its admin address."""
        machine, serve = socket.gethostname(), self.config.serve
        self._bind_admin()
        port = f":{self.addresses['admin'].port}" if "admin" in self.addresses else f" process {os.getpid()}"
        return serve.process_name or machine + port

    def _delay_stores(self) -> tuple[Path, int]:
        delay, data_dir = self.config.delay, self.config.serve.data_dir
        default_dir = data_dir / "delay"
        check_store_folder(delay.dir or default_dir, default_dir, data_dir / "delay-stores")
        return delay.dir or default_dir, delay.shards

    def _listen(self, component: str, service: Service) -> None:
        """Serve `service` on the port of `component`, in place of an earlier service."""
        if component in self._rpc:
            self._rpc[component].serve(service)
            return
        address = self.config.serve.listen_address(component)
        server = RpcServer(
            service,
            address.host,
            address.port,
            self._limits,
            self.metrics,
            self.clock,
            self.security.describe_tls_port(component),
            self.security.callers,
        )
        try:
            server.start()
        except ConfigError as error:
            raise self._cannot_listen(component, address, error.__cause__ or error) from error
        self._rpc[component] = server
        self.addresses[component] = HostPort(*server.address[:2])

    def _bind_admin(self) -> str:
        """Open the admin port, and return the address at which other processes reach it. Requests wait until
        `_answer_admin` is called."""
        if "admin" not in self.components:
            return ""
        address = self.config.serve.listen_address("admin")
        if self._admin_socket is not None:
            return str(reachable_address(self.addresses["admin"]))
        try:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            self._admin_socket = WSGIServer.get_listener(tuple(address), family=family)
        except OSError as error:
            raise self._cannot_listen("admin", address, error) from error
        self.addresses["admin"] = HostPort(address.host, self._admin_socket.getsockname()[1])
        return str(reachable_address(self.addresses["admin"]))

    def _cannot_listen(self, component: str, address: HostPort, error: BaseException) -> ConfigError:
        source = find_address_source(self.config, component)
        return cannot_listen([UnusablePort(component, address, describe_error(error), source)])

    def _server_names(self) -> tuple[str, ...]:
        serve = self.config.serve
        return (serve.listen_address("admin").host, socket.gethostname(), *serve.admin_names)

    def _listen_admin(self, backend: Backend, scheduler: SchedulerWatch) -> None:
        self._findings = FindingsWatch(self.metrics, self.clock, self._bind_admin(), scheduler.health)
        self._findings.start()
        api = AdminApi(
            backend, self.consumer, self.metrics, self.clock, self.health, self.timers, self._server_names(),
            self.config.serve.backups, self.others, self.config.delay.table,
            self.producer or self.sends, self._findings, self._trace_name(), self._describe_process(),
            self.security.callers, self.delay, self.security.files,
        )  # fmt: skip
        self._operations = api.operations
        gevent.spawn(self._operations.resume_all)
        if self.consumer is not None:
            HubTimer(ref=False).every(groups.PERIOD_S, api.groups.sample)
        self._live = api.live
        self._live.start()
        self._answer_admin(api.router)

    def _describe_process(self) -> ProcessInfo:
        return ProcessInfo(
            self._trace_name(),
            secrets.token_hex(8),
            self.components,
            self._started_ms,
            lambda: {name: str(reachable_address(address)) for name, address in self.addresses.items()},
            lambda: list_settings(self.config),
            lambda: self._rpc["producer"].list_peers() if "producer" in self._rpc else [],
            self._bind_admin(),
        )

    def _answer_admin(self, router: AdminRouter) -> None:
        """Let `router` answer the requests to the admin port."""
        if self._admin is not None:
            self._admin.application = router
        elif self._bind_admin():
            self._admin = AdminServer(self._admin_socket, router, self.security.describe_tls_port("admin"))
            self._admin.start()
        if self._local_admin is not None:
            self._local_admin.application = router
        elif self.config.serve.admin_socket is not None and "consumer" in self.components:
            # With --processes, the public admin port is that of the consumer proxy.
            mode = int(self.config.serve.admin_socket_mode, 8)
            self._local_admin = AdminServer(open_local_socket(self.config.serve.admin_socket, mode), router)
            self._local_admin.start()

    def health(self) -> Health:
        """Return the health of this process. It is ready if the backend accepts appends, some process fires
        delayed messages, and nothing is draining."""
        if self._draining:
            return Health(False, "draining")
        if self.backend is None:
            return Health(False, self._waits_for)
        health = self.backend.health()
        levels: LevelService | SchedulerWatch | None = self.delay or self._scheduler
        if not health.ready or levels is None:
            return health
        for service in (levels, self.timers):
            scheduler = health if service is None else service.health()
            if not scheduler.ready:
                return scheduler._replace(warning=health.warning)
        return health

    def run_until_stopped(self) -> None:
        """Block until `request_stop` is called, then drain and close."""
        self._stop.wait()
        self.drain()
        self.close()

    def request_stop(self) -> None:
        """Drain on the first call, stop at once on the second. The handler of SIGTERM and SIGINT."""
        if self._stop.is_set():
            log.warning("second stop signal: closing at once")
            self.close()
            sys.stderr.flush()
            raise SystemExit(0)
        self._stop.set()

    def on_parent_exit(self) -> None:
        """Request a drain, because the parent process has ended; does nothing during a drain."""
        self._stop.set()

    def drain(self) -> None:
        """Reject new requests and finish open ones within `drain_ms`."""
        self._draining = True
        deadline = self.clock.monotonic() + self.config.serve.drain_ms / 1000
        log.info("draining", extra={"drain_ms": self.config.serve.drain_ms})
        if self._live is not None:
            self._live.close()
        for server in self._rpc.values():
            server.stop_accepting()
        if self._operations is not None:
            self._operations.runner.close(min(BATCH_WAIT_S, deadline - self.clock.monotonic()))
        if self._samples is not None:
            self._samples.begin_stop()
        for service in (self.producer, self.consumer, self.sends, self.delay, self.timers):
            if service is not None:
                _wait(service.drain(deadline), deadline - self.clock.monotonic())
        sends = self.producer or self.sends
        if sends is not None:
            sends.close()
        if self.traces is not None:
            _wait(self.traces.drain(deadline), deadline - self.clock.monotonic())
        if self.backend is not None:
            _wait(self.backend.drain(deadline), deadline - self.clock.monotonic())
        if self._samples is not None:
            self._samples.finish()

    def close(self) -> None:
        """Release the ports and the log at once, without draining."""
        if self._samples is not None:
            self._samples.close()
        if self._live is not None:
            self._live.close()
        if self._findings is not None:
            self._findings.stop()
        for server in (self._admin, self._local_admin):
            if server is not None:
                server.stop(timeout=0)
        rpc = self._rpc.values()
        for resource in (self._admin_socket, *rpc, self.delay, self.timers, self.traces, self.backend):
            if resource is not None:
                resource.close()
        self._hub.stop()
        self.security.close()
        log.info("stopped")


def reachable_address(address: HostPort) -> HostPort:
    """Return the address at which other processes reach a component that listens on `address`. An any-address
    is replaced by this machine's name."""
    if address.host in ("0.0.0.0", "::"):
        return HostPort(socket.gethostname(), address.port)
    return address


def _wait(completion: Any, seconds: float) -> None:
    """Wait for a drain; a timeout is logged, not raised."""
    if completion is None:
        return
    try:
        completion.wait(max(seconds, 0.0))
    except TimeoutError:
        log.warning("drain ran out of time; what was acknowledged is stored")
