"""Build the server's wheel, install it into empty environments and run the demo from there.

    python tools/wheel_trial.py            without extras, then with `spark`, then with `kafka`
    python tools/wheel_trial.py --plain    without extras only

What a user installs is a wheel, what the tests run is the source tree: a module, a conf file or an IDL that
is not packaged shows here only. Versions are those of requirements.lock. Where the extra `kafka` is missing,
`--backend kafka` must say so in one line; where it is there, the engine must load. Exit code 1 when one of
these fails.

tools/wheels.py makes the short trials `try_server` and `try_client` on every Python: with uv in place of pip,
and a message in place of the demo.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from ddmq_common import compiled
from tools.interpreters import run_uv
from tools.tree_copy import copy_tree
from tools.wheel_contents import WheelContents

ROOT = compiled.ROOT
SERVER_LOCK = ROOT / "conf" / "docker" / "server.lock"
PATIENCE_S = 60.0
MISSING = "pip install '.[kafka]'"  # what `--backend kafka` answers without the extra
_PINNED = re.compile(r"^[A-Za-z0-9._-]+==[^ \\]+(?: ; [^\\]+)?", re.MULTILINE)


def pinned() -> str:
    """The versions of requirements.lock, without its hashes: for pip, a list of constraints."""
    return "\n".join(_PINNED.findall((ROOT / "requirements.lock").read_text(encoding="utf-8")))


def build(folder: Path) -> Path:
    """The wheel, made in `folder` from a copy of the tree."""
    source = folder / "source"
    copy_tree(source)
    if compiled.FOLDER.exists():  # used where it fits these sources
        shutil.copytree(compiled.FOLDER, source / compiled.FOLDER.relative_to(ROOT))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def trial(wheel: Path, extra: str, folder: Path) -> None:
    """The demo from an environment that holds the wheel, nothing of the tree. Raises CalledProcessError."""
    environment, start = folder / f"env{extra}", time.monotonic()
    constraints = folder / "constraints.txt"
    constraints.write_text(pinned(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    install = [environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(constraints), f"{wheel}{extra}"], check=True)
    installed_s = time.monotonic() - start
    ddmq = str(environment / "bin" / "ddmq")
    version = subprocess.run([ddmq, "--version"], cwd=folder, capture_output=True, text=True, check=True)
    if str(compiled.STATE) not in version.stdout:
        raise subprocess.CalledProcessError(1, [ddmq, f"--version: {version.stdout.strip()}"])
    result = subprocess.run([ddmq, "demo"], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode:
        print(result.stdout + result.stderr)
        result.check_returncode()
    demo_s = time.monotonic() - start - installed_s
    kafka_trial(environment, extra, folder)
    print(f"wheel{extra}: installed in {installed_s:.0f} s, its demo ran {demo_s:.0f} s", flush=True)


def kafka_trial(environment: Path, extra: str, folder: Path) -> None:
    """The engine loads where its extra is installed; elsewhere the command says what to install."""
    if extra == "[kafka]":
        load = [environment / "bin" / "python", "-c", "import backend.kafka.engine.backend"]
        subprocess.run(load, cwd=folder, check=True)
        return
    serve = [environment / "bin" / "ddmq", "serve", "--backend", "kafka", "--bootstrap", "127.0.0.1:1"]
    serve += ["--data-dir", folder / "none"]
    result = subprocess.run(serve, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if result.returncode == 0 or MISSING not in result.stderr or "Traceback" in result.stderr:
        print(result.stdout + result.stderr)
        raise subprocess.CalledProcessError(result.returncode, serve)


# --- the short trials of tools/wheels.py

IMPORTS = """
import backend.kafka.engine.backend, ddmq.cli.root, ddmq.server.config, ddmq_client.aio, ddmq_client.sql
import delay_service.service, proxy_consumer.service, proxy_producer.service
"""
CLIENT_EXTRAS = "[dramatiq,msgspec,opentelemetry,testing]"
CLIENT = """
import os
import ddmq_client.aio, ddmq_client.dramatiq, ddmq_client.opentelemetry, ddmq_client.sql
from ddmq_client import Consumer, Producer
from ddmq_client.testing import TestBroker
with Producer(os.environ["DDMQ_PRODUCER"]) as producer:
    assert producer.send("trial", b"one espresso", key="order-17").stored
with Consumer(os.environ["DDMQ_CONSUMER"], "baristas", "trial", start="first") as consumer:
    (message,) = consumer.pull(1, 20_000)
    assert (message.key, message.text()) == ("order-17", "one espresso")
    assert message.ack()
texts = []
with TestBroker() as broker:
    broker.create_group("baristas", "trial")
    broker.consumer("baristas", "trial", lambda message: texts.append(message.text()))
    broker.producer().send("trial", "one espresso")
    broker.run_until_idle()
assert texts == ["one espresso"]
"""


class TrialError(Exception):
    """A wheel does not do what it should; the text says what and shows the output."""


def try_server(python: Path, wheel: WheelContents) -> float:
    """Install the server's wheel with the versions and hashes of the lock; send and receive a message.

    Returns the seconds that it took.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch), Path(scratch, "home")
        install_wheel(python, home, f"{wheel.path}", "--no-deps", locks=[SERVER_LOCK])
        ddmq = str(home / "bin" / "ddmq")
        state = f"{wheel.modules} modules compiled" if wheel.modules else "interpreted"
        if state not in (version := run_step([ddmq, "--version"], folder)):
            raise TrialError(f"ddmq --version reports {version.strip()!r}, not {state!r}")
        run_step([str(home / "bin" / "python"), "-c", IMPORTS], folder)
        with running_server([ddmq], folder) as addresses:
            run_step([ddmq, "send", "trial", "one espresso", "--key", "order-17"], folder, addresses)
            received = run_step([ddmq, "pull", "trial", "--group", "baristas"], folder, addresses)
            if "key=order-17  one espresso" not in received:
                raise TrialError(f"ddmq pull printed {received!r}")
    return time.monotonic() - begin


def try_client(python: Path, wheel: Path) -> float:
    """Install the client's wheel with its extras; use it at a server of this tree and in a test broker.

    Returns the seconds that it took.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder, home = Path(scratch), Path(scratch, "home")
        constraints = folder / "constraints.txt"
        constraints.write_text(pinned(), encoding="utf-8")
        install_wheel(python, home, f"{wheel}{CLIENT_EXTRAS}", "--constraints", str(constraints))
        with running_server([sys.executable, "-P", "-m", "ddmq"], folder, PYTHONPATH=str(ROOT)) as addresses:
            run_step([str(home / "bin" / "python"), "-c", CLIENT], folder, addresses)
    return time.monotonic() - begin


def install_wheel(python: Path, home: Path, *arguments: str, locks: Sequence[Path] = ()) -> None:
    """Install what `locks` list, then a wheel, into a new environment; build nothing."""
    install = ["pip", "install", "--python", str(home / "bin" / "python"), "--only-binary", ":all:"]
    try:
        run_uv("venv", "--python", str(python), str(home))
        for lock in locks:
            run_uv(*install, "--require-hashes", "-r", str(lock))
        run_uv(*install, *arguments)
    except subprocess.CalledProcessError as error:
        raise TrialError(f"not installed: {error.stderr[-4_000:].strip()}") from error


def run_step(command: Sequence[str], folder: Path, variables: dict[str, str] | None = None) -> str:
    """Run a command in `folder`; return what it prints."""
    try:
        result = subprocess.run(
            command, cwd=folder, env=own_variables() | (variables or {}), capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"{command[0]}: no end within {PATIENCE_S:.0f} s") from error
    if result.returncode:
        raise TrialError(f"{' '.join(command)[:200]}: {result.stdout}{result.stderr}"[-4_000:])
    return result.stdout


def own_variables() -> dict[str, str]:
    """Return the environment without settings of ddmq and of Python, which would reach the wheel."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("DDMQ_", "PYTHON"))}


@contextmanager
def running_server(ddmq: Sequence[str], folder: Path, **variables: str) -> Iterator[dict[str, str]]:
    """Run a server over the file log on free ports; yield the variables with which `ddmq` finds it."""
    services = ("producer", "consumer", "admin")
    command = [*ddmq, "serve", "--data-dir", str(folder / "data")]
    command += [f"--{service}=127.0.0.1:0" for service in services]
    log = folder / "server.log"
    with open(log, "w") as stderr:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=own_variables() | variables,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    deadline = Timer(PATIENCE_S, server.kill)
    deadline.start()
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        deadline.cancel()
        if not ready.startswith("ready "):
            raise TrialError(f"the server did not start: {log.read_text()[-4_000:]}")
        addresses = dict(word.split("=", 1) for word in ready.split()[1:4])
        yield {f"DDMQ_{service.upper()}": addresses[service] for service in services}
    finally:
        deadline.cancel()
        server.terminate()
        try:
            server.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()
    if server.returncode:
        raise TrialError(f"the server ended with {server.returncode}: {log.read_text()[-4_000:]}")


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build(folder)
        try:
            for extra in ("",) if "--plain" in arguments else ("", "[spark]", "[kafka]"):
                trial(wheel, extra, folder)
        except subprocess.CalledProcessError as error:
            print(f"the wheel is not whole: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
