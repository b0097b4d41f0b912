"""`ddmq serve --processes`: each component as its own process over one directory, watched by this one.

The consumer proxy's process holds the public admin port, because the live state of groups is there; the
others' own admin ports are 100 and 200 above it, or free ones, said in the log and to that process, which
asks them for what they count. A component that dies is
started again after a pause that doubles from 100 ms to 5 s, until it has lived for 5 s; SIGTERM is passed on
to all, a second one kills. When this one is killed the components drain and end (signals.py).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from select import select
from typing import IO, Any

import click

from backend.engines import FILE_LOG
from ddmq.address import COMPONENTS, HostPort, read_ready, ready_line
from ddmq.server.admin.figures import PART, PROXY, component_line
from ddmq.server.config import PROCESS_NAME_MAX, Configuration, ServeConfig, load_folder, with_flags
from ddmq.server.process import logs
from ddmq.server.process.ports import check_ports
from ddmq.server.retired_keys import warn_of_old_name, warn_of_retired
from ddmq_common.clock import NEVER
from ddmq_common.private_files import UMASK

READY_WITHIN_S = 30.0
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 5.0
ADMIN_ABOVE = {"producer": 100, "delay-service": 200}  # so that what scrapes them can know them beforehand
WITHOUT_PROXY = "delay-service"  # the component that has no producer proxy
EPHEMERAL_FROM = 32_768  # from here on a port may become any connection's at any time
log = logging.getLogger("ddmq.processes")


def block_hangup() -> None:
    """Block SIGHUP in this process and in processes that it starts. A SIGHUP during a start then waits until
    the process can handle it; otherwise it would kill the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def unblock_hangup() -> None:
    """Unblock SIGHUP; one that has arrived meanwhile is delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})


class ComponentProcess:
    """A child process that runs a component of the server: its command line and, once it is ready, its
    addresses."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.arguments = arguments
        self.ready = threading.Event()
        self.when_ready: Callable[[], None] = lambda: None  # called just before, in a thread
        self.addresses: dict[str, HostPort] = {}
        self.child: subprocess.Popen[str] | None = None
        self.started_at = 0.0  # monotonic seconds
        self.restart_at = NEVER  # it died, and is started again then
        self.pause_s = PAUSE_FIRST_S

    def start(self) -> None:
        """Start the process; `ready` is set when it prints its ready line."""
        command = [sys.executable, "-P", "-m", "ddmq", self.name, *self.arguments]
        self.started_at = time.monotonic()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C comes through us, once
        block_hangup()  # inherited as well, until the component can read its configuration again
        try:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        finally:
            unblock_hangup()
            signal.signal(signal.SIGINT, before)
        assert self.child.stdout is not None
        threading.Thread(target=self._listen, args=(self.child.stdout,), daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            if addresses := read_ready(line):
                self.addresses = addresses
                self._keep_ports()
                log.info("part ready", extra={"part": self.name, "admin": str(self.addresses["admin"])})
                self.when_ready()
                self.ready.set()

    def send_lines(self, lines: str) -> None:
        """Write lines to the child's standard input, where signals.py reads them."""
        assert self.child is not None
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # it died: its next life is told when it is ready
            os.write(self.child.stdin.fileno(), lines.encode())

    def _keep_ports(self) -> None:
        """Store the child's actual ports where port 0 was requested, so that its next start uses the same
        ones."""
        for name, address in self.addresses.items():
            self.arguments[self.arguments.index(f"--{name}") + 1] = str(address)


class Wakes:
    """Waits for signals, including SIGCHLD. A signal that came since the last wait, or since this object was
    created, ends the wait at once; a plain system wait would miss a signal that comes just before it."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def close(self) -> None:
        """Stop waiting for signals. Their handlers still run."""
        signal.set_wakeup_fd(-1)
        self._read.close()
        self._write.close()

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most for `seconds`. The signal's handler has run when this returns."""
        if select([self._read], [], [], None if seconds == NEVER else max(seconds, 0.0))[0]:
            self._read.recv(4096)


class Supervisor:
    """Starts the component processes, restarts those that die, and stops all of them together.

    The first component has the public admin port. `ready_within_s`: the time within which each must become
    ready. `together`: all are started at the same time, because none needs another one to be ready first.
    """

    def __init__(
        self,
        components: list[ComponentProcess],
        ready_within_s: float = READY_WITHIN_S,
        together: bool = False,
    ) -> None:
        self.components = components
        self._together = together
        self._ready_within_s = ready_within_s
        self.stopping = False
        self._hangups = 0
        self._publish_lock = threading.Lock()
        for component in components:
            component.when_ready = self._publish_admin_addresses

    def _publish_admin_addresses(self) -> None:
        """Send the first component the admin addresses of the others that are ready, and a component without
        a producer proxy those of the others that have one."""
        public, *others = self.components
        with self._publish_lock:
            public.send_lines(_address_lines(others, PART))
            proxies = [component for component in self.components if component.name != WITHOUT_PROXY]
            for component in others:
                if component not in proxies and component.child is not None:
                    component.send_lines(_address_lines(proxies, PROXY))

    def start(self) -> None:
        """Start all components, and wait until they are ready or a stop is requested. Raises ClickException
        if a component is not ready in time."""
        if self._together:
            for component in self.components:
                self._start(component)
        for component in self.components:
            if self.stopping:
                return
            if not self._together:
                self._start(component)
            self._await_ready(component)

    def _await_ready(self, component: ComponentProcess) -> None:
        deadline = time.monotonic() + self._ready_within_s
        while not component.ready.wait(0.05) and not self.stopping:
            assert component.child is not None
            if component.child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise click.ClickException(
                    f"the {component.name} process did not get ready; its reason is above"
                )

    def watch(self) -> None:
        """Restart components that die, until a stop is requested."""
        with closing(Wakes()) as wakes:
            while not self.stopping:
                for component in self.components:
                    self.check_component(component, time.monotonic())
                wakes.wait(min(component.restart_at for component in self.components) - time.monotonic())

    def check_component(self, component: ComponentProcess, now: float) -> None:
        """Record that a component has died, or restart it once its pause is over. Each component has its own
        pause."""
        if component.restart_at == NEVER:
            if component.child is not None and component.child.poll() is not None:
                how = _describe_end(component.child.returncode)
                log.warning("part died, starting it again", extra={"part": component.name, "how": how})
                if now - component.started_at > PAUSE_MAX_S:
                    component.pause_s = PAUSE_FIRST_S  # it had settled
                component.restart_at = now + component.pause_s
                component.pause_s = min(component.pause_s * 2, PAUSE_MAX_S)
        elif now >= component.restart_at and not self.stopping:
            component.restart_at = NEVER
            self._start(component)

    def _start(self, component: ComponentProcess) -> None:
        """Start a component, and send it the signals that arrived before it was a child of this process."""
        hangups = self._hangups
        component.start()
        assert component.child is not None
        if self.stopping:
            component.child.terminate()
        elif self._hangups > hangups:
            component.child.send_signal(signal.SIGHUP)  # it may have read its configuration before that

    def stop(self, *_: Any) -> None:
        """Send SIGTERM to every component; on the second call, SIGKILL."""
        number = signal.SIGKILL if self.stopping else signal.SIGTERM
        self.stopping = True
        self.pass_on(number)

    def hang_up(self, *_: Any) -> None:
        """Send SIGHUP to every component; a component that is just being started gets it right afterwards."""
        self._hangups += 1
        self.pass_on(signal.SIGHUP)

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to every component that is running."""
        for component in self.components:
            if component.child is not None and component.child.poll() is None:
                component.child.send_signal(number)

    def join(self) -> None:
        """Wait until every component process has ended."""
        for component in self.components:
            if component.child is not None:
                component.child.wait()


def run_processes(config_dir: Path | None, flags: dict[str, Any]) -> None:
    """Run each component as its own process until SIGTERM; print `ready …` when all of them answer."""
    os.umask(UMASK)
    config = with_flags(load_folder(config_dir), **flags)
    config.check_reach(COMPONENTS)
    check_ports(config, COMPONENTS)
    logs.set_up(config.serve.log_level, config.serve.log_format)
    warn_of_retired(config.retired)
    warn_of_old_name(config.serve.beyond_loopback)
    names = ("consumer", "producer", "delay-service")
    remote = config.backend.engine != FILE_LOG
    waits = NEVER if remote else READY_WITHIN_S  # a cluster may be away for long
    supervisor = Supervisor(
        [_build_component(config, config_dir, name) for name in names], waits, together=remote
    )

    signal.signal(signal.SIGHUP, supervisor.hang_up)
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, supervisor.stop)
    supervisor.start()
    if not supervisor.stopping:
        consumer, producer, _ = supervisor.components
        addresses = {
            "producer": producer.addresses["producer"],
            "consumer": consumer.addresses["consumer"],
            "admin": consumer.addresses["admin"],
        }
        click.echo(ready_line(addresses, config.serve.data_dir))
    supervisor.watch()
    supervisor.join()


def _address_lines(components: list[ComponentProcess], kind: str) -> str:
    return "".join(
        component_line(component.name, component.addresses["admin"], kind)
        for component in components
        if component.addresses
    )


def _describe_end(code: int) -> str:
    """Describe how a child ended, from its return code."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _process_name(serve: ServeConfig, name: str) -> str:
    """Return a component's name in the sample files: the same at every start, even if its admin port
    changes."""
    public = serve.build_process_name((name.removesuffix("-service"),), socket.gethostname())
    return (f"{name}@{public}" if serve.process_name else public)[:PROCESS_NAME_MAX]


def choose_admin_address(public: HostPort, name: str) -> HostPort:
    """Return the address for a component's own admin API, given the server's public one; port 0 means any
    free port."""
    port = public.port + ADMIN_ABOVE.get(name, 0)
    if port == public.port:
        return public
    is_usable = public.port and port < EPHEMERAL_FROM and _is_free(HostPort(public.host, port))
    return HostPort(public.host, port if is_usable else 0)


def _is_free(address: HostPort) -> bool:
    try:
        with socket.create_server(address, family=socket.AF_INET6 if ":" in address.host else socket.AF_INET):
            return True
    except OSError:
        return False


def _build_component(config: Configuration, config_dir: Path | None, name: str) -> ComponentProcess:
    serve = config.serve
    admin = choose_admin_address(serve.listen_address("admin"), name)
    arguments = ["--with-parent", "--data-dir", str(serve.data_dir), "--admin", str(admin)]
    arguments += ["--process-name", _process_name(serve, name)]
    if serve.insecure or serve.beyond_loopback:
        arguments.append("--insecure")
    if name != "delay-service":
        arguments += [f"--{name}", str(serve.listen_address(name))]
    options = {"engine": "--backend", "bootstrap": "--bootstrap"}
    for name_of_flag, value in config.backend_flags.items():
        arguments += [options[name_of_flag], value]
    if config_dir is not None:
        arguments += ["--config", str(config_dir)]
    return ComponentProcess(name, arguments)
