"""The demo's server, and its way to speak: what is typed at the server, what happens, what was counted.

The server is the real `ddmq serve` as a process that can be killed and started again. Commands are printed as
a user would type them, then run just as they were printed.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import click

from ddmq.address import HostPort, read_ready
from ddmq.trial.cluster import TrialCluster
from ddmq_common.errors import RemoteError

READY_WITHIN_S = 30.0
SAMPLED_WITHIN_S = 30.0
SAMPLES_POLL_S = 0.1
SIDE_FILES = ("conf", "kafka", "log", "spark")  # what the demo keeps beside its data directory
CONFIG = "process_name: demo\nsamples:\n  interval_ms: 500\n"


def side_path(data_dir: Path, suffix: str) -> Path:
    """Return the path beside the data directory that has the directory's whole name and one of SIDE_FILES."""
    return data_dir.with_name(f"{data_dir.name}.{suffix}")


class DemoServer:
    """A `ddmq serve` process over one directory, with the same ports after each restart. `cluster`: the Kafka
    cluster to run on, if any; `config`: further configuration files."""

    def __init__(self, data_dir: Path, cluster: TrialCluster | None = None, **config: str) -> None:
        self.data_dir = data_dir
        self._files = {"ddmq": CONFIG, **config}
        self.cluster = cluster
        self.addresses: dict[str, HostPort] = {}
        self._process: subprocess.Popen[str] | None = None
        self._log = side_path(data_dir, "log")

    def start(self) -> float:
        """Start the server, and wait until it is ready. Returns the seconds that it took."""
        start = time.monotonic()
        command = [sys.executable, "-P", "-m", "ddmq", "serve", "--data-dir", str(self.data_dir)]
        command += ["--config", str(self._write_config())]
        if self.cluster is not None:
            command += ["--backend", "kafka", "--bootstrap", self.cluster.bootstrap]
        for component in ("producer", "consumer", "admin"):
            command += [f"--{component}", str(self.addresses.get(component, HostPort("127.0.0.1", 0)))]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._read_ready(self._process)
        return time.monotonic() - start

    def _write_config(self) -> Path:
        """Write the demo's settings: a name, and frequent samples, because the demo is short."""
        folder = side_path(self.data_dir, "conf")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._files.items():
            (folder / f"{name}.yaml").write_text(text)
        return folder

    def _read_ready(self, process: subprocess.Popen[str]) -> None:
        watchdog = threading.Timer(READY_WITHIN_S, process.kill)
        watchdog.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        self.addresses = read_ready(line)
        if not self.addresses:
            raise RemoteError(
                f"the server did not get ready; see {self._log}: {self._log.read_text()[-400:]}"
            )

    def wait_for_samples(self) -> None:
        """Wait until the server has written two more sample files: the second one was begun after this call.

        Without it, the last sample before a stop may be older than the last thing that happened, and the
        report would show a key as blocked that is not. Returns after SAMPLED_WITHIN_S in any case.
        """
        start = time.time()
        deadline = time.monotonic() + SAMPLED_WITHIN_S
        while time.monotonic() < deadline:
            files = [path for path in (self.data_dir / "metrics").rglob("*") if path.is_file()]
            if sum(_modified_at(path) > start for path in files) >= 2:
                return
            time.sleep(SAMPLES_POLL_S)

    def kill(self) -> None:
        """Kill the server with SIGKILL, so that it cannot clean up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop the server with SIGTERM and wait; after 20 s, kill it with SIGKILL."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


def _modified_at(path: Path) -> float:
    """Return the time of the last write in epoch seconds; 0 if the file was merged into another meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


class Narrator:
    """Prints the output of the demo: with `verbose` every step, command and number, else the few lines for a
    newcomer."""

    def __init__(self, *, verbose: bool) -> None:
        self.verbose = verbose

    def print_short(self, text: str) -> None:
        """Print a line for a newcomer; nothing when verbose, because the steps say the same in detail."""
        if not self.verbose:
            click.echo(f"  {text}")

    def print_step(self, text: str) -> None:
        """Print a step of the story, when verbose."""
        if self.verbose:
            click.echo(f"[demo] {text}")

    def print_facts(self, facts: Mapping[str, str]) -> None:
        """Print counts, one per line; only when verbose."""
        for name, value in facts.items() if self.verbose else ():
            click.echo(f"  {name:<14} {value}")

    @contextmanager
    def quiet_unless_verbose(self) -> Iterator[io.StringIO]:
        """Collect the output of the block in the yielded buffer; if verbose, print it at once."""
        output = io.StringIO()
        if self.verbose:
            yield output
            return
        with redirect_stdout(output), redirect_stderr(output):
            yield output


class Typed:
    """Runs `ddmq LINE` in this process against one server, whose addresses are set in the environment."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator
        self._shown = ""

    def use_server(self, addresses: Mapping[str, HostPort]) -> None:
        """Direct later commands to this server; print the `export` line when it changes."""
        variables = {f"DDMQ_{component.upper()}": str(address) for component, address in addresses.items()}
        os.environ.update(variables)
        export = "export " + " ".join(f"{name}={value}" for name, value in variables.items())
        if export != self._shown:
            with self._narrator.quiet_unless_verbose():
                click.echo(f"$ {export}")
            self._shown = export

    def __call__(self, line: str) -> None:
        """Print the command and run it. Raises ClickException when it fails."""
        from ddmq.cli.root import run

        with self._narrator.quiet_unless_verbose() as output:
            click.echo(f"$ ddmq {line}")
            code = run(shlex.split(line))
            sys.stdout.flush()
        if code != 0:
            raise click.ClickException(
                f"`ddmq {line}` ended with exit code {code} {output.getvalue()}".rstrip()
            )
