"""A Kafka cluster on this machine for a trial or a test: one broker, or several that copy to each other.

    DIR/cluster.json      its id and ports: what was started once is started again as it was
    DIR/broker-N/         server.properties, data, the broker's output (server.log), its process number (pid)

Each broker is a controller, too (KRaft), and a process of its own that outlives the command. They listen on
loopback alone, without authentication. The settings are for a short life on a small machine: few partitions
of Kafka's own topics, and a broker that was killed may come back at once.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ddmq.trial.jars import java, libraries
from ddmq_common.errors import ConfigError

HOST = "127.0.0.1"
READY_S, STOP_S, POLL_INTERVAL_S = 90.0, 20.0, 0.1
READY = "Kafka Server started"
_MEMORY = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC")
_QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_PROPERTIES = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
num.partitions=4
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.num.partitions=8
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=8
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
log.segment.bytes=268435456
"""


class Ports(NamedTuple):
    """The ports of one Kafka broker."""

    port: int
    controller_port: int


class TrialCluster:
    """A Kafka cluster for trials: the brokers of one folder, on this machine. `more`: further properties for
    every broker."""

    def __init__(self, folder: Path, more: Mapping[str, str] | None = None) -> None:
        self.folder = folder.absolute()
        self._more = more or {}
        self._id = ""
        self._ports: list[Ports] = []
        if self._state_file.exists():
            state = json.loads(self._state_file.read_text(encoding="utf-8"))
            self._id, self._ports = state["id"], [Ports(*each) for each in state["ports"]]

    @property
    def _state_file(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def brokers(self) -> range:
        """The numbers of the cluster's brokers, from 1."""
        return range(1, len(self._ports) + 1)

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of every broker, separated by commas."""
        return ",".join(f"{self.host(n)}:{self._ports[n - 1].port}" for n in self.brokers)

    def host(self, number: int) -> str:
        """Return the host that a broker listens on."""
        return HOST

    def make(self, ports: list[Ports]) -> None:
        """Create the folder of the cluster. Raises ConfigError if it contains a cluster with other ports."""
        if self._ports and self._ports != ports:
            raise ConfigError(
                f"{self.folder} holds a cluster of {len(self._ports)} brokers at {self.bootstrap}; start "
                "that, choose another folder, or delete it"
            )
        if self._ports:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._id, self._ports = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="), ports
        for number in self.brokers:
            folder = self._broker_folder(number)
            folder.mkdir(exist_ok=True)
            (folder / "server.properties").write_text(self._format_properties(number), encoding="utf-8")
        self._state_file.write_text(json.dumps({"id": self._id, "ports": self._ports}), encoding="utf-8")

    def _format_properties(self, number: int) -> str:
        count = len(self._ports)
        own = _PROPERTIES.format(
            number=number,
            voters=",".join(f"{n}@{self.host(n)}:{self._ports[n - 1].controller_port}" for n in self.brokers),
            host=self.host(number),
            **self._ports[number - 1]._asdict(),
            data=self._broker_folder(number) / "data",
            copies=min(count, 3),
            in_sync=2 if count > 2 else 1,
        )
        return own + "".join(f"{name}={value}\n" for name, value in self._more.items())

    def _broker_folder(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    # --- processes

    def start(self, numbers: list[int] | None = None, ready_s: float = READY_S) -> None:
        """Start these brokers (or all) that are not running yet, and wait until they are ready. Raises
        ConfigError."""
        stopped = [n for n in numbers or self.brokers if self.pid(n) is None]
        positions = {number: self._start_one(number) for number in stopped}
        end = time.monotonic() + ready_s
        for number, position in positions.items():
            self._wait_ready(number, position, end)

    def program(self, number: int) -> list[str]:
        """Return the command line of the Java process that runs a broker."""
        return [str(java()), *_MEMORY, *_QUIET, "-cp", f"{libraries()}/*"]

    def _start_one(self, number: int) -> int:
        """Start one broker. Returns the position in its log at which the output of this start begins."""
        folder, program = self._broker_folder(number), self.program(number)
        properties = str(folder / "server.properties")
        if not (folder / "data").exists():
            command = [
                *program,
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._id}",
                "-c",
                properties,
            ]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                raise ConfigError(
                    f"broker {number} cannot lay out {folder / 'data'}: {result.stderr.strip()}"
                )
        output = folder / "server.log"
        position = output.stat().st_size if output.exists() else 0
        with output.open("ab") as file:
            started = subprocess.Popen(
                [*program, "kafka.Kafka", properties],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        wait_for_command_line(started)
        (folder / "pid").write_text(str(started.pid), encoding="ascii")
        return position

    def _is_ready(self, number: int, position: int) -> bool:
        output = self._broker_folder(number) / "server.log"
        if self.pid(number) is None:
            lines = output.read_text(encoding="utf-8", errors="replace")[position:].splitlines()
            why = next((line for line in lines if "ERROR" in line or "Exception" in line), "no reason given")
            raise ConfigError(f"broker {number} ended at its start: {why.strip()}; its output is {output}")
        with output.open("rb") as file:
            file.seek(position)
            return READY.encode() in file.read()

    def _wait_ready(self, number: int, position: int, end: float) -> None:
        while not self._is_ready(number, position):
            if time.monotonic() > end:
                output = self._broker_folder(number) / "server.log"
                raise ConfigError(f"broker {number} is not ready in time; its output is {output}")
            time.sleep(POLL_INTERVAL_S)

    def pid(self, number: int) -> int | None:
        """Return the process id of a broker; None if it is not running."""
        try:
            pid = int((self._broker_folder(number) / "pid").read_text(encoding="ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            os.waitpid(pid, os.WNOHANG)  # a child of ours that has ended is gone, not a zombie
        except ChildProcessError:
            pass
        except (OSError, ValueError):
            return None
        is_own_broker = str(self._broker_folder(number) / "server.properties").encode() in command
        return pid if is_own_broker and Path(f"/proc/{pid}/cmdline").exists() else None

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal (SIGKILL, SIGSTOP, SIGCONT …) to a running broker."""
        pid = self.pid(number)
        if pid is not None:
            os.kill(pid, what)

    def stop(self, numbers: list[int] | None = None) -> None:
        """Stop these brokers, or all: with SIGTERM, and with SIGKILL after STOP_S."""
        brokers = list(numbers or self.brokers)
        for number in brokers:
            self.signal(number, signal.SIGCONT)
            self.signal(number, signal.SIGTERM)
        end = time.monotonic() + STOP_S
        while any(self.pid(number) for number in brokers):
            if time.monotonic() > end:
                for number in brokers:
                    self.signal(number, signal.SIGKILL)
            time.sleep(POLL_INTERVAL_S)


def wait_for_command_line(started: subprocess.Popen[bytes]) -> None:
    """Wait until the command line of a new process can be read. It is empty at first, as it is after the end
    of a process."""
    while started.poll() is None and not Path(f"/proc/{started.pid}/cmdline").read_bytes():
        time.sleep(0.001)


def free_ports(count: int) -> list[int]:
    """Return ports on which no program listens now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
