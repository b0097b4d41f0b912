"""The real `ddmq serve` as a process of its own, for tests that look at it from outside.

`running(folder)` starts one on free ports and stops it afterwards. A RealServer keeps its ports over
kills and restarts (one whose `ports` are 0 chooses at its first start). With `processes` each component is
its own process; `component_pids` finds them. `command` may also be `producer`, `consumer` or
`delay-service`: that component alone. It uses the file log unless an installation is passed. Everything it
starts ends with it: the process leads a group of its own, which is killed at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from select import POLLIN, poll
from typing import Any
from urllib.parse import quote

from ddmq_common.security.rights import CLUSTER_RIGHTS, NAME_RIGHTS
from tests.support.installations import Installation
from tests.support.ports import port_of, reserved
from tests.support.rights import Who, write_rights

PATIENCE_S = 60.0
MESSAGES_MAX = 1_000  # in one answer
COMPONENTS = ("producer", "consumer", "admin")
SECURED = bool(os.environ.get("TEST_SECURED"))  # servers have rights on
_REPOSITORY = Path(__file__).resolve().parents[2]


def secured(folder: Path, config: Path | None) -> Path:
    """The --config folder with rights on, if it had none: all clients are one identity with all rights."""
    config = config or folder / "secured"
    if not (config / "security.yaml").exists():
        named = {(right, "*") for right in NAME_RIGHTS}
        everyone = Who("everyone", frozenset(named | {(right, "") for right in CLUSTER_RIGHTS}))
        write_rights(config, [everyone], legacy={"127.0.0.0/8": everyone.name})
    return config


class NotReady(Exception):
    """The server ended, or said nothing in time; the text holds what it wrote."""


def ddmq_command(*arguments: str) -> list[str]:
    """The command line of `ddmq ARGUMENTS` with this interpreter."""
    return [sys.executable, "-m", "ddmq", *arguments]


def ddmq(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `ddmq` command to its end."""
    return subprocess.run(
        ddmq_command(*arguments),
        input=None if stdin is None else stdin.decode(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=_REPOSITORY,
        check=False,
    )


def write_config(folder: Path, **files: Any) -> Path:
    """A --config folder: `topics={…}` becomes topics.yaml. JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tree in files.items():
        (folder / f"{name}.yaml").write_text(json.dumps(tree, indent=1))
    return folder


class RealServer:
    """One `ddmq serve` (or one part) over one directory. `tree`: the source tree that it runs from.

    `host`: where it listens; `before`: what stands before its command line. `ready_s`: how long it may
    take to be ready. `constants`: other values of the product's constants, as MODULE:CLASS.CONSTANT.
    `environment`: more variables of its processes. `token`: of the identity that asks the admin API; ""
    with rights off.
    """

    tree = _REPOSITORY
    host = "127.0.0.1"
    before: tuple[str, ...] = ()
    ready_s = PATIENCE_S
    constants: Mapping[str, Any] = {}
    environment: Mapping[str, str] = {}
    token = ""

    def __init__(
        self,
        folder: Path,
        config: Path | None = None,
        processes: bool = False,
        command: str = "serve",
        installation: Installation | None = None,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_path = folder / f"{command}.log"
        self.config = installation.configured(folder, config) if installation else config
        if SECURED:
            self.config = secured(folder, self.config)
        self.processes = processes
        self.command = command
        alone = ("admin",) if command == "delay-service" else (command, "admin")
        components = COMPONENTS if command == "serve" else alone
        self._reserved = [reserved() for _ in components]  # over kills and restarts, too
        self.ports = dict(zip(components, map(port_of, self._reserved), strict=True))
        self.process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def log(self) -> str:
        """What it wrote on standard error, over all its lives."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> RealServer:
        """Blocks until `ready`. Raises NotReady."""
        self.launch()
        assert self.process is not None
        self._read_ready(self.process)
        return self

    def launch(self) -> None:
        """Start the process and do not wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.tree,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        self._groups.add(self.process.pid)

    def _command(self) -> list[str]:
        command = [*self.before, *ddmq_command(self.command, "--data-dir", str(self.data_dir))]
        if self.constants:
            assert not self.processes, "its parts would have the product's constants"
            script = _REPOSITORY / "tests/support/ddmq_with_constants.py"
            command[command.index("-m") : command.index(self.command)] = [
                str(script),
                json.dumps(self.constants),
            ]
        for component, port in self.ports.items():
            command += [f"--{component}", f"{self.host}:{port}"]
        if self.config is not None:
            command += ["--config", str(self.config)]
        return [*command, "--processes"] if self.processes else command

    def _read_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        line = b""
        output = poll()  # select() takes no descriptor above 1,023
        output.register(process.stdout, POLLIN)
        deadline = time.monotonic() + self.ready_s
        while not line.endswith(b"\n"):
            readable = output.poll(max(deadline - time.monotonic(), 0) * 1_000)
            more = os.read(process.stdout.fileno(), 4096) if readable else b""
            line += more
            if not more:
                process.kill()
                process.wait()
                raise NotReady(f"said {line!r}; {self.log[-2000:]}")
        words = line.decode().split()
        assert words[0] == "ready", line
        addresses = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        self.ports = {component: int(addresses[component].rpartition(":")[2]) for component in self.ports}

    # --- ending

    def kill(self) -> None:
        """SIGKILL, to all of its processes."""
        if self.process is not None:
            self._signal_group(self.process.pid)
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def terminate(self) -> None:
        """SIGTERM: it drains."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def end(self) -> None:
        """SIGTERM, then whatever it takes."""
        for reserved_socket in self._reserved:
            reserved_socket.close()
        if self.process is None:
            return
        self.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        for group in self._groups:
            self._signal_group(group)
        self.process.wait()

    @staticmethod
    def _signal_group(group: int) -> None:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass

    # --- looking inside

    def component_pids(self) -> dict[str, int]:
        """With `processes`: the process of each part, by its name."""
        pids = {}
        for pid in _children(self.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it died since
            for component in ("producer", "consumer", "delay-service"):
                if component.encode() in words:
                    pids[component] = pid
        return pids

    def admin(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer of the admin API. Asserts that it is no error."""
        status, answer = self.request(
            method, "/" + "/".join(quote(segment, safe="") for segment in path), body
        )
        assert status == 200, (status, answer)
        return answer

    def describe_own_shards(self) -> dict[str, Any]:
        """The overview of the delay shards that this process owns."""
        status, answer = self.request("GET", "/delay?forwarded=1")
        assert status == 200, (status, answer)
        return dict(answer)

    def request(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """Status and JSON (or text) of one request to the admin port."""
        connection = http.client.HTTPConnection(self.host, self.ports["admin"], timeout=PATIENCE_S)
        try:
            payload = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            if self.token:
                headers["Authorization"] = f"Bearer {self.token}"
            connection.request(method, target, payload, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return response.status, json.loads(text) if is_json else text

    def address(self, component: str) -> str:
        """Where clients find a part of it."""
        return f"{self.host}:{self.ports[component]}"

    def messages(self, topic: str) -> list[dict[str, Any]]:
        """What lies in a topic. (A difference of offsets counts gaps, too, which Kafka has.)"""
        target = f"/topics/{quote(topic, safe='')}/messages?count={MESSAGES_MAX}"
        status, rows = self.request("GET", target)
        assert status == 200, (status, rows)
        return list(rows)

    def bodies(self, topic: str) -> list[str]:
        """The bodies of what lies in a topic, sorted."""
        return sorted(one["body"] for one in self.messages(topic))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name that carry these labels, 0 when there are none."""
        _, text = self.request("GET", "/metrics")
        total = 0.0
        for line in text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(f'{k}="{v}"' in sample for k, v in labels.items()):
                total += float(value)
        return total


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(
    folder: Path,
    config: Path | None = None,
    processes: bool = False,
    installation: Installation | None = None,
) -> Iterator[RealServer]:
    """A server that is ready, ended afterwards."""
    server = RealServer(folder, config, processes, installation=installation)
    try:
        yield server.start()
    finally:
        server.end()
